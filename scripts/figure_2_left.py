"""Draw figures/figure_2_left: GPT-2 medium's attention, GB and GFLOPs by pass, the paper's Figure 2 (left) as a model."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("traffic", __file__, __doc__)
