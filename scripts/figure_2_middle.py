"""Draw figures/figure_2_middle: HBM accesses against block size, the paper's Figure 2 (middle) as a model."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("blocks", __file__, __doc__, dtype="float16")
