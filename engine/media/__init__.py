"""Reading what users bring, in a process of its own (``python -m engine.media``), and making it what H3 takes."""
