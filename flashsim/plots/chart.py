"""`Chart`: a figure. Each figure's file ends in its record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flashsim.plots.saving import figure_of


@dataclass(frozen=True)
class Chart:
    """A figure: `data()` counts, `plot(data)` draws on a new figure and returns the axes, `what` says what it shows."""

    name: str
    data: Callable[..., dict[str, Any]]
    plot: Callable[..., Axes | Sequence[Axes]]
    what: str

    @property
    def takes(self) -> dict[str, Any]:
        """The arguments of `data`, with their defaults."""
        return {name: given.default for name, given in inspect.signature(self.data).parameters.items()}

    def draw(self, data: dict[str, Any] | None = None) -> Figure:
        """Return the figure of `data`, by default of `data()`."""
        return figure_of(self.plot(self.data() if data is None else data))
