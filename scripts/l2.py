"""Draw figures/l2: DRAM traffic against the size of an L2 cache between SRAM and DRAM."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("l2", __file__, __doc__, dtype="float16")
