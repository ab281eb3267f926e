"""Draw figures/figure_3_right: extra memory against sequence length, the paper's Figure 3 (right) as a model."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("memory", __file__, __doc__, dtype="float16")
