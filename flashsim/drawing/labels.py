"""Words beside what they name: each at the first of several places where it covers no line and
no other words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from flashsim.drawing.style import Picture

STEPS = 60  # points of each piece of a line that are looked at
MARGIN = 2  # pixels around words that stay free
# places, from left to right and from below up, that are looked at where none of the spots is free
GRID = 40, 120


class Spot(NamedTuple):
    """A place for words: a point of the axes, how many points (1/72 inch) from there, and which
    side of the words is there.
    """

    x: float
    y: float
    right: float
    up: float
    ha: str
    va: str


class Labels:
    """Puts words on axes. Make it once all lines are drawn and the axes have their ends."""

    def __init__(self, ax: Axes) -> None:
        self.ax = ax
        figure = ax.get_figure(root=True)
        if isinstance(figure, Picture):
            # lays it out: from here on pixels are where they will be
            figure.draw_without_rendering()
        self.lines = np.concatenate([np.empty((0, 2)), *map(self._pixels, ax.get_lines())])
        self.words: list[Bbox] = [
            text.get_window_extent() for text in ax.texts if text.get_visible()
        ]

    def put(self, words: str, spots: Sequence[Spot], **how: Any) -> Annotation:
        """Put words at the first spot that is free; if none is, where there is room nearest to
        the first.
        """
        first = spots[0]
        label = self.ax.annotate(
            words,
            (first.x, first.y),
            (0, 0),
            textcoords="offset points",
            annotation_clip=False,
            **how,
        )
        label.set_in_layout(False)
        for spot in spots:
            self._move(label, spot)
            if self._is_free(label.get_window_extent()):
                break
        else:
            self._move(label, self._nearest(label, first))
        self.words.append(label.get_window_extent())
        return label

    def _move(self, label: Annotation, spot: Spot) -> None:
        label.xy = spot.x, spot.y
        label.set_position((spot.right, spot.up))
        label.set(ha=spot.ha, va=spot.va)

    def _is_free(self, words: Bbox) -> bool:
        box = words.padded(MARGIN)
        within = self.ax.get_window_extent()
        if not (
            within.x0 <= box.x0
            and box.x1 <= within.x1
            and within.y0 <= box.y0
            and box.y1 <= within.y1
        ):
            return False
        return not any(box.overlaps(other) for other in self.words) and not box.count_contains(
            self.lines
        )

    def _nearest(self, label: Annotation, target: Spot) -> Spot:
        """Return the free spot nearest to one, of a grid over the axes; that one itself if there
        is none.
        """
        self._move(label, target)
        box = label.get_window_extent()
        within = self.ax.get_window_extent()
        rights = np.linspace(within.x0 - box.x0, within.x1 - box.x1, GRID[0])
        ups = np.linspace(within.y0 - box.y0, within.y1 - box.y1, GRID[1])
        points_of_a_pixel = 72 / label.get_figure(root=True).dpi  # type: ignore[union-attr]
        for right, up in sorted(
            ((right, up) for right in rights for up in ups), key=lambda way: float(np.hypot(*way))
        ):
            if self._is_free(box.translated(right, up)):
                return target._replace(
                    right=target.right + right * points_of_a_pixel,
                    up=target.up + up * points_of_a_pixel,
                )
        return target

    def _pixels(self, line: Any) -> NDArray[np.float64]:
        """Return points along a line, and the corners of its markers, in pixels."""
        path: NDArray[np.float64] = line.get_transform().transform(
            np.asarray(line.get_xydata(), float)
        )
        path = path[np.isfinite(path).all(axis=1)]
        if line.get_linestyle() == "None" or len(path) < 2:
            dense = path
        else:
            dense = np.concatenate(
                [np.linspace(start, end, STEPS) for start, end in pairwise(path)]
            )
        if line.get_marker() in ("None", "", None) or not len(path):
            return dense
        reach = line.get_markersize() / 2 * line.get_figure(root=True).dpi / 72
        corners = [
            path + np.array([right, up]) * reach for right in (-1, 0, 1) for up in (-1, 0, 1)
        ]
        return np.concatenate([dense, *corners])
