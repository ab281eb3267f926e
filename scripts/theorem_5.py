"""Draw figures/theorem_5: Theorem 5, HBM accesses of the backward pass against N, d and M, with fitted exponents."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("theorem5", __file__, __doc__, dtype="float16")
