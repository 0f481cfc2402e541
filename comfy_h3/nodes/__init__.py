"""The nodes, one file a family."""
