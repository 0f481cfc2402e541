"""Decoding in chunks and, later, tiles."""
