"""`Chart`: a figure, made of the function that draws it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flashsim.plots.saving import figure_of
from flashsim.plots.style import Panels, column_figure, dress, slide, styled


@dataclass(frozen=True)
class Chart:
    """A figure: `data()` counts, `what` says what it shows, `on(data, ax)` draws on axes, dressed; several panels are a list.

    height   inches of its printed column, or a function of the data that says it
    columns  how many printed columns wide it is; panels stand side by side where it is more than one
    grid     what else `Figure.subplots` is to be asked for
    x, y     the bases of its panels' scales; 0: not logarithmic
    slide    the width in inches of its slide, if not `style.slide`'s own
    exact    whether its numbers are the same on every machine: counts are, what BLAS rounds is not
    """

    name: str
    data: Callable[..., dict[str, Any]]
    what: str
    height: float | Callable[[Mapping[str, Any]], float]
    on: Callable[[Mapping[str, Any], Any], None]
    panels: int = 1
    columns: float = 1
    grid: Mapping[str, Any] = field(default_factory=dict)
    x: int = 0
    y: int = 0
    slide: float = 0.0
    exact: bool = True

    @property
    def takes(self) -> dict[str, Any]:
        """The arguments of `data`, with their defaults; not `on_done`."""
        given = inspect.signature(self.data).parameters.items()
        return {name: parameter.default for name, parameter in given if name != "on_done"}

    @property
    def says_progress(self) -> bool:
        """Whether `data` takes `on_done`, a function that it calls with (done, of) while it works."""
        return "on_done" in inspect.signature(self.data).parameters

    @styled
    def __call__(
        self, data: Mapping[str, Any] | None = None, *, ax: Axes | Sequence[Axes] | None = None, wide: bool = False
    ) -> Any:
        """Draw `data`, by default `data()`, on `ax`, by default of a new figure, `wide` as a slide of 16:9; return the axes.

        Raises ValueError unless `ax` are as many as there are panels.
        """
        data = self.data() if data is None else data
        panels = [ax] if isinstance(ax, Axes) else ax
        if panels is None and wide:
            panels = slide(self.panels, self.slide)
        elif panels is None:
            height = self.height(data) if callable(self.height) else self.height
            cells = (1, self.panels) if self.columns > 1 else (self.panels, 1)
            panels = Panels(column_figure(height, self.columns), *cells, **self.grid)
        elif len(panels) != self.panels:
            got = "one" if len(panels) == 1 else len(panels)
            raise ValueError(
                f"ax: got {got}; expected {self.panels} axes, such as a Figure's subplots(1, {self.panels})"
            )
        for panel in panels:
            dress(panel, x=self.x, y=self.y)
        axes = panels if self.panels > 1 else panels[0]
        self.on(data, axes)
        if wide and len(panels) == 1:
            panels[0].set_title(panels[0].get_title(loc="left").replace("\n", " "))
        return axes

    def draw(self, data: dict[str, Any] | None = None, *, wide: bool = False) -> Figure:
        """Return the figure of `data`, by default of `data()`: as tall as it needs, one printed column wide; `wide`: 16:9."""
        return figure_of(self(data, wide=wide))
