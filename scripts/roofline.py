"""Draw figures/roofline: arithmetic intensity, and whether bandwidth or arithmetic binds, on an A100."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("roofline", __file__, __doc__, dtype="float16")
