"""Draw figures/lower_backward: accesses of backward passes divided by what none can beat, against M / d²."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("lower_backward", __file__, __doc__)
