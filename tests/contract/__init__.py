"""What every program must satisfy, whatever its kind."""
