"""Draw figures/lower: accesses divided by what no schedule can beat, against N and against M / d²."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("lower", __file__, __doc__)
