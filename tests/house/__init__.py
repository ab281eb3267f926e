"""The house as a whole: docs, structure, types."""
