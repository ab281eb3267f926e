"""`Chart`: a figure, made of the function that draws it; and the setting of one head's counts,
which figures have in common.

To add a figure:

1. `flashsim/plots/x.py`: `x_data(…)` counts, `plot_x(data, ax)` draws on the axes; `@chart(…)`
   above it makes it the figure. `shown=` has the documentation's arguments if they are not the
   defaults.
2. `flashsim plot x -o figures/x` with these arguments, and look at the picture. Commit its JSON,
   from which the site draws it again. Commit the PNG only if README or a page shows it; else add
   its name to `.gitignore`.
3. `tests/plots/test_plots.py`: its numbers against counts, and what the picture shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flashsim.attention.arguments import check_count
from flashsim.attention.inputs import check_M, float_dtype
from flashsim.drawing.style import Panels, apply_style, column_figure, slide, styled
from flashsim.plots.saving import figure_of
from flashsim.simulate.planning import check_sizing
from flashsim.support.sizes import Size

Data = Mapping[str, Any]  # what a figure is drawn of
Several = Sequence[Axes]  # the panels of one that has several


@dataclass(frozen=True)
class Chart:
    """A figure: `data()` counts, `what` says what it shows, `on(data, ax)` draws on axes, dressed;
    several panels are a list.

    height   inches of its printed column, or a function of the data that says it
    columns  how many printed columns wide it is; panels stand side by side where it is more than
             one
    grid     what else `Figure.subplots` is to be asked for
    x, y     the bases of its panels' scales; 0: not logarithmic
    slide    the width in inches of its slide, if not `style.slide`'s own
    exact    whether its numbers are the same on every machine: counts are, what BLAS rounds is not
    shown    the arguments with which the documentation has it, where they are not `data`'s defaults
    rows     a function that returns the data as rows, for a CSV file; None: it has none
    """

    name: str
    data: Callable[..., dict[str, Any]]
    what: str
    height: float | Callable[[Data], float]
    on: Callable[[Data, Any], None]
    panels: int = 1
    columns: float = 1
    grid: Mapping[str, Any] = field(default_factory=dict)
    x: int = 0
    y: int = 0
    slide: float = 0.0
    exact: bool = True
    shown: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[Data], list[dict[str, Any]]] | None = None

    @property
    def takes(self) -> dict[str, Any]:
        """The arguments of `data`, with their defaults; not `on_done`."""
        given = inspect.signature(self.data).parameters.items()
        return {name: parameter.default for name, parameter in given if name != "on_done"}

    @property
    def says_progress(self) -> bool:
        """Whether `data` takes `on_done`, a function that it calls with (done, of) while it
        works.
        """
        return "on_done" in inspect.signature(self.data).parameters

    @styled
    def __call__(
        self,
        data: Data | None = None,
        *,
        ax: Axes | Sequence[Axes] | None = None,
        wide: bool = False,
    ) -> Any:
        """Draw `data`, by default `data()`, on `ax`, by default of a new figure, `wide` as a slide
        of 16:9; return the axes.

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
                f"ax: got {got}; expected {self.panels} axes, such as a Figure's subplots(1, "
                f"{self.panels})"
            )
        for panel in panels:
            apply_style(panel, x=self.x, y=self.y)
        axes = panels if self.panels > 1 else panels[0]
        self.on(data, axes)
        if wide and len(panels) == 1:
            panels[0].set_title(panels[0].get_title(loc="left").replace("\n", " "))
        return axes

    def draw(self, data: dict[str, Any] | None = None, *, wide: bool = False) -> Figure:
        """Return the figure of `data`, by default of `data()`: as tall as it needs, one printed
        column wide; `wide`: 16:9.
        """
        return figure_of(self(data, wide=wide))


def chart(*about: Any, **how: Any) -> Callable[[Callable[[Data, Any], None]], Chart]:
    """Return what makes a `Chart` of the function that draws it; arguments are the chart's, in
    order.
    """
    return partial(Chart, *about, **how)


def setting(
    *,
    N: int,
    d: int,
    M: Size | None,
    dtype: Any,
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
) -> dict[str, Any]:
    """Return arguments of `flashsim.count`: N, d, M in elements (by default 100 KB of the dtype),
    dtype by its name.

    And `blocks`, where they are given, else `sizing`. Raises ValueError or TypeError, with the
    argument's name, for what makes no sense.
    """
    stored = float_dtype(dtype)
    checked = {
        "N": check_count("N", N),
        "d": check_count("d", d),
        "M": check_M(M, stored.itemsize),
        "dtype": stored.name,
    }
    check_sizing(sizing, blocks)
    return {**checked, **({"sizing": sizing} if blocks is None else {"blocks": tuple(blocks)})}


def said(data: Data, *names: str) -> str:
    """Say those numbers of a figure's data, its dtype, mask and heads, and who chose its blocks:
    "N = 1,024, …, one head".
    """
    words = [
        *(f"{name} = {data[name]:,}" for name in names),
        data["dtype"],
        *["causal"] * data.get("causal", False),
    ]
    heads = data.get("heads", 1)
    kv_heads = data.get("kv_heads", 1)
    shared = "" if heads == kv_heads else f" on {kv_heads:,} KV head{'s' * (kv_heads > 1)}"
    of = "one head" if heads == 1 else f"{heads:,} heads{shared}"
    return f"{', '.join(words)}\n{said_blocks(data)}, {of}"


def said_blocks(data: Data) -> str:
    """Say who chose the blocks, and of line 1's what they need of M, by `sram_peak`."""
    if "blocks" in data:
        return "{:,} × {:,} blocks".format(*data["blocks"])
    if data["sizing"] == "fit":
        return "the largest blocks that fit M"
    peak = data["sram_peak"]
    M = data["M"]
    return f"line 1's blocks: needs {peak / M:.0%} of M"
