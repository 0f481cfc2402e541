"""The VAE's decoding, in chunks."""
