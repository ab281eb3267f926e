"""optimal."""
