"""What else the tiling does: kernel products, MLPs, approximations."""
