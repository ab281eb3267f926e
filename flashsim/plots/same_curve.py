"""§4.1 and Appendix E of the paper, at the size of a laptop: one training curve, whichever
attention trains it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator

from flashsim.attention.arguments import check_count
from flashsim.drawing.style import BLACK, GREY, PURPLE, looks, on_slide, ticks, title_x
from flashsim.learn.examples import as_json
from flashsim.learn.examples.same_curve import EARLY, STEPS, WITHIN, compute
from flashsim.plots.chart import AxesList, Data, chart

_ABOUT = "§4.1: one training curve, whichever attention trains it"
_BUGS = (BLACK, PURPLE)
_WIDTHS = {"standard": 4.0, "flash": 2.2}  # what is drawn over by others is wider
_DASHES = {"float64": "-", "float32": ":"}
_LEAST = 1e-16  # where a distance of 0 is drawn


def same_curve_data(*, steps: int = STEPS) -> dict[str, Any]:
    """Return the loss (nats a character) of a small transformer at each step, by attention, dtype
    and planted bug.

    Takes about a minute on two cores. `distances`: how far each curve is from standard attention's
    of its dtype.
    """
    data: dict[str, Any] = as_json(compute(check_count("steps", steps)))
    return data


@chart("same_curve", same_curve_data, _ABOUT, 5.4, panels=2, exact=False)
def plot_same_curve(data: Data, axes: AxesList) -> None:
    """Draw the curves, and how far each is from standard attention's in its dtype."""
    above, below = axes
    curves = [curve for curve in data["curves"] if len(curve["losses"]) == data["steps"]]
    colours = looks(dict.fromkeys(_name(curve) for curve in curves if not curve["bug"]))
    of_bugs = dict(
        zip(dict.fromkeys(curve["bug"] for curve in curves if curve["bug"]), _BUGS, strict=True)
    )
    first = {
        curve["dtype"]: curve
        for curve in reversed(curves)
        if not curve["bug"] and _name(curve) == "standard"
    }
    for panel in axes:
        panel.set_xlim(1, data["steps"])
        panel.set_xlabel("step")
    for curve in curves:
        name = _name(curve)
        dtype = curve["dtype"]
        bug = curve["bug"]
        colour = of_bugs[bug] if bug else colours[name].colour
        gid = " ".join(part for part in (name, dtype, bug) if part)
        if dtype == "float64":
            wide, label = (
                (1, f"bug: {bug}")
                if bug
                else (_WIDTHS.get(name, 1), f"{colours[name].label}, no bug")
            )
            above.plot(
                _steps(curve), curve["losses"], color=colour, linewidth=wide, gid=gid, label=label
            )
        if curve is not first[dtype]:
            so_far = np.maximum(
                np.maximum.accumulate(np.abs(np.subtract(curve["losses"], first[dtype]["losses"]))),
                _LEAST,
            )
            below.plot(_steps(curve), so_far, _DASHES[dtype], color=colour, gid=f"{gid} apart")
    above.set_ylabel("loss (nats a character)")
    above.set_title("One training curve,\nwhichever attention trains it", x=title_x(above, -0.17))
    above.legend(loc="upper right")
    below.set_yscale("log")
    below.set_ylim(_LEAST / 2, 3)
    ticks(below.yaxis, LogLocator(10, numticks=7))
    below.set_ylabel("largest distance so far\nto standard attention's")
    title = "float64 tells a bug from rounding in two steps"
    below.set_title(
        title.replace(" from", "\nfrom") if on_slide(below) else title, x=title_x(below, -0.17)
    )
    for dtype, limit in WITHIN.items():
        until = data["steps"] if dtype == "float64" else EARLY
        below.plot([1, until], [limit] * 2, "--", color=GREY, linewidth=0.8, gid=f"{dtype} limit")
    below.text(
        data["steps"], WITHIN["float64"], "limit in float64", color=GREY, ha="right", va="bottom"
    )
    below.text(
        EARLY * 1.5, WITHIN["float32"], f"limit in float32,\n{EARLY} steps", color=GREY, va="center"
    )
    below.text(data["steps"], _LEAST * 20, "float64, no bug", ha="right", va="bottom")
    below.text(data["steps"], 2e-9, "dotted: float32, no bug", ha="right", va="bottom")


def _steps(curve: Mapping[str, Any]) -> Sequence[int]:
    return range(1, len(curve["losses"]) + 1)


def _name(curve: Mapping[str, Any]) -> str:
    return str(curve["title"]).partition(",")[0]
