"""What results draw of themselves, and what all pictures have in common.

style, numbers, labels  the look, numbers on axes, labels that do not overlap
bars                    the accesses of one run: `run.plot()`
sweep                   the lines of a sweep: `sweep.plot()`
proof                   the proof of a lower bound, in a notebook

The figures, one in each file, are `flashsim.plots`.
"""
