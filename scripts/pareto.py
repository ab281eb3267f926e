"""Draw figures/pareto: accesses against occupancy for every block size of both loop orders."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("pareto", __file__, __doc__)
