"""The two-level memory: HBM, SRAM, and what they count. It knows nothing of attention."""
