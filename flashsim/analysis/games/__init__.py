"""Optima of small problems: the row game, the search for its optimum, its replay on the memory,
a certificate and its checker.
"""
