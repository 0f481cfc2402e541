"""The VAEs: their owner (staging), tiles over all ranks (tiles, crew, spread), gather buffers (workspace), sound."""
