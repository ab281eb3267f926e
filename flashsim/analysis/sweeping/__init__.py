"""Sweeps: what algorithms move at many points, as rows. `flashsim.sweep` is the way in.

points     arguments, one value or many each -> the points
rows       a point -> what it costs, by closed form or by counting, or the reason why it makes no
           sense, as one row
running    `sweep`: all points, over processes perhaps, and some of them cross-checked
result     `Sweep`: the rows, as CSV, JSON, a DataFrame, a picture
checkpoint the rows that are done, in a file, so that a sweep goes on where it ended
crossovers where one algorithm moves less than another
formatting the rows on a page
"""

from flashsim.analysis.sweeping.result import Sweep
from flashsim.analysis.sweeping.running import Disagreement, sweep

__all__ = ["Disagreement", "Sweep", "sweep"]
