"""A picture as files: PNG to look at, SVG to print, JSON with the numbers and how they were
made.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flashsim.drawing.style import drawn, styled
from flashsim.support.files import write_whole
from flashsim.version import __version__


def figure_of(ax: Axes | Sequence[Axes]) -> Figure:
    """Return the whole figure that axes are on: what a `plot_*` function returned, one or
    several.
    """
    figure = (ax if isinstance(ax, Axes) else ax[0]).figure
    assert isinstance(figure, Figure), (
        "flashsim draws on figures of its own, which have no subfigures"
    )
    return figure


@styled
def save(
    figure: Figure,
    stem: str | Path,
    data: dict[str, Any],
    command: str,
    *,
    machine: str | None = None,
) -> list[Path]:
    """Write stem.png (200 dpi), stem.svg (text as paths) and stem.json; return the three paths.

    The same figure gives the same bytes every time. `command` is what to type to make it again.
    `machine`: where the numbers were measured; None for counts, which are the same anywhere.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = contents(figure, data, command, machine=machine)
    return [
        write_whole(stem.with_name(stem.name + suffix), content)
        for suffix, content in files.items()
    ]


@styled
def contents(
    figure: Figure, data: dict[str, Any], command: str, *, machine: str | None = None
) -> dict[str, str | bytes]:
    """Return what `save` writes, by suffix."""
    versions = {
        "numpy": np.__version__,
        "matplotlib": matplotlib.__version__,
        "flashsim": __version__,
    }
    made_with = {"python": platform.python_version(), **versions}
    on = machine or "any: these are counts, the same on every machine"
    text = json.dumps(
        {"command": command, "made_with": made_with, "machine": on, "data": data},
        indent=1,
        ensure_ascii=False,
    )
    text = re.sub(r'\n\s*(?=[^\[\]{}"]*\])', " ", text)  # a list of numbers on one line
    return {".png": drawn(figure, "png"), ".svg": drawn(figure, "svg"), ".json": text + "\n"}
