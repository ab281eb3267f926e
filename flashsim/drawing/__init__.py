"""What pictures have in common: their look, and the bars of one run's accesses, which
`run.plot()` draws.
"""
