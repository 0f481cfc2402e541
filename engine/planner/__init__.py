"""What a configuration and a request take, from configurations alone: bytes by rank and stage, seconds, what fits.

Torch-free. `plan` adds up, `search` looks for what fits, `capacity` guards an engine; `shapes` and `sizes` know the
tensors, `activations` the peaks, `time` the seconds.
"""
