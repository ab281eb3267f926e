"""`Chart`: a figure, made from the function that draws it; and the arguments of one head's counts,
which figures have in common.

To add a figure:

1. `flashsim/plots/x.py`: `x_data(…)` counts, `plot_x(data, ax)` draws on the axes; `@chart(…)`
   above it makes it the figure. `docs_arguments=` has the documentation's arguments if they are
   not the defaults. A parameter of `x_data` that has the name of an option of `flashsim plot`, such
   as N, becomes this option, with one value. So a parameter with all values of the x axis, such as
   lengths N, must have another name.
2. `flashsim plot x -o figures/x` with the documentation's arguments, and look at the picture.
   Commit its JSON, from which the site draws it again. Commit the PNG only if README or a page
   shows it; else add its name to `.gitignore`.
3. `tests/plots/test_plots.py`: its numbers against counts, and what the picture shows. A line or
   a text that is drawn with `gid="x"` is found there by `xy(ax, "x")`.
4. Its line in the list of options in `docs/use.md`, and, if it is quick, its name in
   `QUICK_FIGURES` of `tests/golden/record.py`.
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

Data = Mapping[str, Any]  # the numbers of a figure
AxesList = Sequence[Axes]  # the panels of a figure that has several


@dataclass(frozen=True)
class Chart:
    """A figure.

    name     by which `flashsim.plots.draw` finds it
    data     counts, and returns the numbers; each of its arguments has a default
    about    a line about what it shows
    height   inches of its printed column, or a function of the data that returns them
    draw_on  (data, ax) draws on axes that have the project's style; several panels are a list
    panels   how many there are
    columns  how many printed columns wide it is; with more than one, panels stand side by side
    grid     other arguments of `Figure.subplots`
    x, y     the bases of its panels' scales; 0: not logarithmic
    slide    the width of its slide in inches, if not that of `style.slide`
    exact    whether its numbers are the same on every machine: counts are, BLAS's rounding is not
    docs_arguments  the documentation's arguments of `data`, if they are not the defaults
    rows     returns the data as rows, for a CSV file; None: it has none
    """

    name: str
    data: Callable[..., dict[str, Any]]
    about: str
    height: float | Callable[[Data], float]
    draw_on: Callable[[Data, Any], None]
    panels: int = 1
    columns: float = 1
    grid: Mapping[str, Any] = field(default_factory=dict)
    x: int = 0
    y: int = 0
    slide: float = 0.0
    exact: bool = True
    docs_arguments: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[Data], list[dict[str, Any]]] | None = None

    def __post_init__(self) -> None:
        for parameter in inspect.signature(self.data).parameters.values():
            is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.default is parameter.empty and not is_variadic:
                function = getattr(self.data, "__name__", "data")
                raise ValueError(
                    f"figure {self.name!r}: {function} has no default for {parameter.name}; "
                    f"expected one, as `flashsim plot {self.name}` draws it without options"
                )

    @property
    def takes(self) -> dict[str, Any]:
        """The arguments of `data`, with their defaults, except `on_done`."""
        parameters = inspect.signature(self.data).parameters.items()
        return {name: parameter.default for name, parameter in parameters if name != "on_done"}

    @property
    def reports_progress(self) -> bool:
        """Whether `data` takes `on_done`, a function that it calls with its progress: (done,
        total).
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
        """Draw `data`, by default `self.data()`, on `ax`, and return the axes. None: on a new
        figure, `wide` as a slide of 16:9.

        Raises ValueError unless there are as many `ax` as panels.
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
            count = "one" if len(panels) == 1 else len(panels)
            raise ValueError(
                f"ax: got {count}; expected {self.panels} axes, such as a Figure's subplots(1, "
                f"{self.panels})"
            )
        for panel in panels:
            apply_style(panel, x=self.x, y=self.y)
        axes = panels if self.panels > 1 else panels[0]
        self.draw_on(data, axes)
        if wide and len(panels) == 1:
            panels[0].set_title(panels[0].get_title(loc="left").replace("\n", " "))
        return axes

    def draw(self, data: dict[str, Any] | None = None, *, wide: bool = False) -> Figure:
        """Return the figure of `data`, by default `self.data()`: a printed column, or, `wide`, a
        slide of 16:9.
        """
        return figure_of(self(data, wide=wide))


def chart(*arguments: Any, **options: Any) -> Callable[[Callable[[Data, Any], None]], Chart]:
    """Return a decorator that makes a `Chart` of the function that draws it. The arguments are the
    chart's, in order, without that function.
    """
    return partial(Chart, *arguments, **options)


def count_arguments(
    *,
    d: int,
    M: Size | None,
    dtype: Any,
    N: int | None = None,
    blocks: tuple[int, int] | None = None,
    sizing: str = "fit",
) -> dict[str, Any]:
    """Return arguments of `flashsim.count`: N, if it is not None, as in a figure over many N; d; M
    in elements (by default 100 KB of the dtype); the dtype's name; and `blocks` if they are not
    None, else `sizing`.

    Raises ValueError or TypeError with the name of an invalid argument.
    """
    stored = float_dtype(dtype)
    arguments: dict[str, Any] = {} if N is None else {"N": check_count("N", N)}
    arguments["d"] = check_count("d", d)
    arguments["M"] = check_M(M, stored.itemsize)
    arguments["dtype"] = stored.name
    check_sizing(sizing, blocks)
    if blocks is None:
        arguments["sizing"] = sizing
    else:
        arguments["blocks"] = tuple(blocks)
    return arguments


def describe(data: Data, *names: str) -> str:
    """Return the setting of a figure's data: numbers of these names, dtype, mask, blocks and heads:
    "N = 1,024, …, one head".
    """
    words = [f"{name} = {data[name]:,}" for name in names]
    words.append(data["dtype"])
    if data.get("causal", False):
        words.append("causal")
    return f"{', '.join(words)}\n{describe_blocks(data)}, {_describe_heads(data)}"


def _describe_heads(data: Data) -> str:
    heads = data.get("heads", 1)
    kv_heads = data.get("kv_heads", 1)
    if heads == 1:
        return "one head"
    if heads == kv_heads:
        return f"{heads:,} heads"
    plural = "s" if kv_heads > 1 else ""
    return f"{heads:,} heads on {kv_heads:,} KV head{plural}"


def describe_blocks(data: Data) -> str:
    """Return where the blocks come from. Of line 1's blocks also how much of M they need, by
    `sram_peak`.
    """
    if "blocks" in data:
        B_r, B_c = data["blocks"]
        return f"{B_r:,} × {B_c:,} blocks"
    if data["sizing"] == "fit":
        return "the largest blocks that fit M"
    peak = data["sram_peak"]
    M = data["M"]
    return f"line 1's blocks: needs {peak / M:.0%} of M"
