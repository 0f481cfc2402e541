"""Weights that are on the device only while they are used: streamed blocks, modulation tables, shared host copies."""
