"""Loading and adapting the diffusers and transformers classes of MiniMax-H3."""
