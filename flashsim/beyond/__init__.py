"""What else the tiling does: kernel products, MLPs, cross-entropy, approximations."""
