"""Draw figures/approximate: accesses, FLOPs and extra memory of exact and approximate attention against N."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("approximate", __file__, __doc__)
