"""Draw figures/same_curve: the loss of a small transformer, trained with one attention after the other, and with bugs."""

from __future__ import annotations

from flashsim.plots import write_figure

if __name__ == "__main__":
    write_figure("same_curve", __file__, __doc__)
