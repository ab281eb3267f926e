"""Draw figures/fusing: an MLP's accesses against M, fused and unfused, beside attention's, and Saha and Ye's border."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("fusing", __file__, __doc__)
