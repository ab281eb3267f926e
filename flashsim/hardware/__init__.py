"""Below the two levels: an L2 cache, and GPUs by public numbers."""
