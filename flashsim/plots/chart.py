"""`Chart`: a figure. Each figure's file ends in its record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flashsim.plots.saving import figure_of
from flashsim.plots.style import slide


@dataclass(frozen=True)
class Chart:
    """A figure: `data()` counts, `plot(data)` draws on a new figure and returns the axes, `what` says what it shows."""

    name: str
    data: Callable[..., dict[str, Any]]
    plot: Callable[..., Axes | Sequence[Axes]]
    what: str
    panels: int = 1
    slide: float = 0.0  # the width in inches of its slide, if not `style.slide`'s own
    exact: bool = True  # whether its numbers are the same on every machine: counts are, what BLAS rounds is not

    @property
    def takes(self) -> dict[str, Any]:
        """The arguments of `data`, with their defaults; not `on_done`."""
        given = inspect.signature(self.data).parameters.items()
        return {name: parameter.default for name, parameter in given if name != "on_done"}

    @property
    def says_progress(self) -> bool:
        """Whether `data` takes `on_done`, a function that it calls with (done, of) while it works."""
        return "on_done" in inspect.signature(self.data).parameters

    def draw(self, data: dict[str, Any] | None = None, *, wide: bool = False) -> Figure:
        """Return the figure of `data`, by default of `data()`: as tall as it needs, one printed column wide; `wide`: 16:9."""
        data = self.data() if data is None else data
        if not wide:
            return figure_of(self.plot(data))
        axes = slide(self.panels, self.slide)
        self.plot(data, ax=axes if self.panels > 1 else axes[0])
        if self.panels == 1:
            axes[0].set_title(
                axes[0].get_title(loc="left").replace("\n", " "), fontsize=8.5, fontweight="bold", loc="left"
            )
        return figure_of(axes)
