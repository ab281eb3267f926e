"""Draw figures/theorem_2: Theorem 2, HBM accesses against N, d and M, with fitted exponents."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("theorem2", __file__, __doc__, dtype="float16")
