"""Optima of small problems: the row game, a search for its optimum, the replay on the memory, and a certificate with its checker."""
