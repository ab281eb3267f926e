"""What is asked for, whatever algorithm then does it."""
