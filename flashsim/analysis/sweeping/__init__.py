"""Sweeps: what algorithms move at many points, as rows. `flashsim.sweep` is the way in.

records     `Row`, the record of a point; what its columns hold
arguments   arguments, one value or many each, and tables of points
points      the points: a product of arguments
costs       what a point costs, by closed form or by counting; or why it has no counts
bounds      the lower bound at a point
rows        a point and its cost as a row
checkpoint  the rows that are done, in a file, so that a sweep goes on where it ended
running     `sweep`: all points, over processes perhaps, and some of them cross-checked
table       the rows, and which arguments vary
crossovers  where one algorithm moves less than another
formatting  the rows on a page
series      the lines of a picture
result      `Sweep`: the table, as text, CSV, JSON, a DataFrame, a picture
"""

from flashsim.analysis.sweeping.result import Sweep
from flashsim.analysis.sweeping.running import Disagreement, sweep

__all__ = ["Disagreement", "Sweep", "sweep"]
