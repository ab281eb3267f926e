"""beyond/parts."""
