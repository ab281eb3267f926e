"""Axes to draw on, and where they have ticks."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import Locator, NullLocator

from flashsim.plots.style import column_figure, dress


def canvas(ax: Axes | None, height: float, *, x: int = 0, y: int = 0) -> Axes:
    """Return axes, dressed: those given, or new ones a printed column wide and `height` inches high."""
    ax = column_figure(height).subplots() if ax is None else ax
    dress(ax, x=x, y=y)
    return ax


def ticks(axis: Axis, at: Locator, said: Any = None) -> None:
    """Set where an axis has ticks, without minor ones, and what they say, if not their numbers."""
    axis.set_major_locator(at)
    axis.set_minor_locator(NullLocator())
    if said is not None:
        axis.set_major_formatter(said)
