"""A picture as files: PNG for the screen, SVG for print, JSON with the numbers and the command."""

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
    """Return the figure of axes, one or several, as a `plot_*` function returns them."""
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

    The same figure gives the same bytes every time. `command` makes it again. `machine` is where
    the numbers were measured; None for counts, which are the same anywhere.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = contents(figure, data, command, machine=machine)
    paths = []
    for suffix, content in files.items():
        paths.append(write_whole(stem.with_name(stem.name + suffix), content))
    return paths


@styled
def contents(
    figure: Figure, data: dict[str, Any], command: str, *, machine: str | None = None
) -> dict[str, str | bytes]:
    """Return what `save` writes, by suffix."""
    record = {
        "command": command,
        "made_with": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "matplotlib": matplotlib.__version__,
            "flashsim": __version__,
        },
        "machine": machine or "any: these are counts, the same on every machine",
        "data": data,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    text = re.sub(r'\n\s*(?=[^\[\]{}"]*\])', " ", text)  # a list of numbers on one line
    return {".png": drawn(figure, "png"), ".svg": drawn(figure, "svg"), ".json": text + "\n"}
