"""Decoding in chunks."""
