"""Draw figures/figure_2_right: HBM accesses against sparsity, the paper's Figure 2 (right) as a model, and Proposition 4."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("sparsity", __file__, __doc__, dtype="float16")
