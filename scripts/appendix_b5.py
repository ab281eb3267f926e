"""Draw figures/appendix_b5: FlashAttention and Rabe & Staats' attention, Appendix B.5's differences counted."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("appendix_b5", __file__, __doc__, dtype="float16")
