"""Draw figures/cache_size: accesses against M, from M much below d² to above Nd, and what is optimal."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("cache_size", __file__, __doc__)
