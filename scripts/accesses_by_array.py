"""Draw figures/accesses_by_array: HBM accesses by array, every algorithm, forward and backward."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("arrays", __file__, __doc__, dtype="float16")
