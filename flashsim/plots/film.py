"""`film`: steps of a trace as an animated GIF. A picture shows SRAM with its blocks, HBM with its
arrays, the blocks that move between them, and the score matrix.

matplotlib draws it, and Pillow, which matplotlib needs anyway, writes it; no browser is needed.
figures/loop.gif is one.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from math import isqrt
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle
from numpy.typing import NDArray

from flashsim.support.files import write_whole
from flashsim.tracing.data import Span, TraceEvent
from flashsim.tracing.listing import label_of
from flashsim.tracing.steps import Recording, Step, quantity

MOST_STEPS = 300
MOVES = ("load", "store")
LOAD = "#2563b0"
CHIP = "#357244"
CURRENT = "#b3261e"
DONE = "#cfe3f7"
# inches
WIDE = 8.0
TALL = 5.6
HEAD = 1.15  # of them for the words above
# the boxes' sides
CHIP_RIGHT = 4.1
HBM_LEFT = 4.35
RIGHT = 7.9
FLOOR = TALL - HEAD - 0.05
POINTS = 18  # of all words: on a phone, where 8 inches are 358 pixels, 11 pixels
COLOURS = 96
ASIDE = 0.68  # inches below HBM's upper part
# milliseconds of a step, and of a picture of blocks on their way
STAY = 700
MOVE = 90
ON_THE_WAY = (0.2, 0.5, 0.8)
Point = tuple[float, float]


def film(trace: Recording, first: int, last: int, path: Path) -> Path:
    """Write the steps first … last as an animated GIF, and return its path.

    Raises ValueError if the trace has not all of these steps, or they are more than `MOST_STEPS`.
    """
    steps = len(trace.steps)
    if not 0 <= first <= last < steps:
        raise ValueError(f"steps {first}:{last}; expected A:B with 0 ≤ A ≤ B ≤ {steps - 1}")
    if last - first >= MOST_STEPS:
        raise ValueError(
            f"steps {first}:{last} are {last - first + 1}; expected at most {MOST_STEPS}"
        )
    from PIL import Image

    camera = _Camera(trace, trace.steps[first : last + 1])
    pictures, times = zip(*camera.roll(), strict=True)
    sample = Image.fromarray(np.concatenate(pictures[:: max(1, len(pictures) // 8)]))
    palette = sample.quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    colours = np.array(palette.getpalette(), np.int64).reshape(-1, 3)
    # the paper, which Pillow mixes with what is nearly white
    colours[colours.min(axis=1) > 248] = 255
    palette.putpalette(colours.ravel().tolist())
    frames = [
        Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE)
        for picture in pictures
    ]
    buffer = BytesIO()
    frames[0].save(
        buffer,
        "GIF",
        save_all=True,
        append_images=frames[1:],
        duration=list(times),
        loop=0,
        optimize=True,
    )
    return write_whole(path, buffer.getvalue())


class _Camera:
    """Draws the pictures of steps of a trace, in order."""

    def __init__(self, trace: Recording, steps: tuple[Step, ...]) -> None:
        self._trace = trace
        self._steps = steps
        self._figure = Figure((WIDE, TALL), dpi=100)
        self._canvas = FigureCanvasAgg(self._figure)
        self._listing = {label_of(line): line.split(maxsplit=1)[-1] for line in trace.about.listing}
        self._visits: dict[tuple[int, int], int] = {
            step.tile: step.number for step in trace.steps if step.tile is not None
        }
        self._values: dict[str, NDArray[Any]] = {}
        self._most: dict[str, float] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}  # the largest of each name
        for event in trace.events:
            if event.value is not None:
                finite = np.abs(event.value[np.isfinite(event.value)])
                name = quantity(event.name)
                shape = event.value.shape
                known_shape = self._shapes.get(event.name, shape)
                self._most[name] = max(self._most.get(name, 0.0), float(finite.max(initial=0)))
                self._shapes[event.name] = tuple(map(max, shape, known_shape))
        self._cell = self._largest_cell()
        self._accesses = trace.events[-1].reads + trace.events[-1].writes
        arrays = trace.about.arrays
        self._beside = [
            array.name for array in arrays if array.kind[0] == "N_q" and array.kind[1] != "N_k"
        ]
        self._above = [array.name for array in arrays if array.kind[0] == "N_k"]
        # a matrix as large as the scores is in HBM
        self._stored = any(array.kind == ("N_q", "N_k") for array in arrays)
        # not all of S at once
        strips = not trace.about.sizes and any(array.name == "S" for array in arrays)
        self._storage = "stored in strips" if strips else "never stored"
        most_arrays = max(len(self._beside), len(self._above), 1)
        self._pitch = min(0.32, 1.7 / most_arrays)
        letters = max((len(name) for name in self._beside), default=1)
        self._label = min(POINTS, 72 * self._pitch / (0.8 * letters))
        self._left = HBM_LEFT + 0.3 + self._pitch * len(self._beside)
        self._top = 1.0 + self._pitch * len(self._above) + (0.4 if self._stored else ASIDE)
        self._next = 0  # the first event that is not in `_values` yet

    def _largest_cell(self) -> float:
        """Return the largest side of an element, in inches, with which every step's blocks have
        room in SRAM.
        """
        sets_of_shapes = set()
        for step in self._steps:
            resident = self._trace.events[step.last].resident
            sets_of_shapes.add(tuple(self._shape(name, size) for name, size in resident))
        for cell in np.geomspace(0.32, 0.001, 60):
            if all(_fits(shapes, cell) for shapes in sets_of_shapes):
                return float(cell)
        return 0.001

    @property
    def _outline(self) -> list[Point]:
        """HBM's corners: around the matrix where that is stored; else above and beside it."""
        edge = self._left - 0.1
        under = self._top - ASIDE
        inner = [(RIGHT, under), (edge, under), (edge, FLOOR)]
        corner = [(RIGHT, FLOOR)] if self._stored else inner
        return [(HBM_LEFT, 0.05), (RIGHT, 0.05), *corner, (HBM_LEFT, FLOOR)]

    def _shape(self, name: str, size: int) -> tuple[int, ...]:
        """Return a tile's shape; one too large to be recorded is a square of about its area."""
        rows = isqrt(size)
        return self._shapes.get(name, (rows, -(-size // rows)))

    def roll(self) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Yield each picture, (height, width, 3), and for how many milliseconds it stays."""
        for step in self._steps:
            if any(event.kind in MOVES for event in self._trace.of(step)):
                for share in ON_THE_WAY:
                    yield self.frame(step, share), MOVE
            yield self.frame(step), STAY

    def frame(self, step: Step, share: float = 1.0) -> NDArray[np.uint8]:
        """Return the picture of a step, whose blocks have gone a share of their way. Steps are
        asked for in order.
        """
        trace = self._trace
        for event in trace.events[self._next : step.last + 1]:
            if event.value is not None:
                self._values[event.name] = event.value
        self._next = step.last + 1
        self._figure.clear()
        loops = ", ".join(f"{_math(name)} = {index + 1}" for name, index in step.loops)
        title = " · ".join(filter(None, (f"step {step.number}", step.label, loops)))
        self._figure.text(0.02, 1 - 0.1 / TALL, title, size=POINTS, weight="bold", va="top")
        line = fill(self._listing.get(step.label, "").split(". ")[0], 56)
        look: dict[str, Any] = {"size": POINTS - 2, "va": "top", "linespacing": 1.05}
        self._figure.text(0.02, 1 - 0.45 / TALL, line, **look)
        below = (TALL - HEAD, 0)
        box_of_axes = (0.0, 0.0, 1.0, below[0] / TALL)
        axes: Axes = self._figure.add_axes(box_of_axes, xlim=(0, WIDE), ylim=below)
        axes.axis("off")
        last = trace.events[step.last]
        on_sram = f"SRAM: {last.occupancy:,} of\nM = {trace.about.M:,}"
        on_hbm = f"HBM: {last.reads + last.writes:,} of\n{self._accesses:,} accesses"
        chip = [(0.1, 0.05), (CHIP_RIGHT, 0.05), (CHIP_RIGHT, FLOOR), (0.1, FLOOR)]
        for outline, name in ((chip, on_sram), (self._outline, on_hbm)):
            axes.add_patch(Polygon(outline, fill=False, ec="#5d616b", lw=1.2))
            axes.text(outline[0][0] + 0.08, 0.12, name, size=POINTS, weight="bold", va="top")
        if not self._stored:
            words = f"S: by tiles,\n{self._storage}"
            look = {"size": POINTS, "color": "#5d616b", "linespacing": 1}
            axes.text(self._left, self._top - 0.05, words, **look)
        moves = [event for event in trace.of(step) if event.kind in MOVES]
        places = self._hbm(axes, step, moves)
        coming = {event.name for event in moves if event.kind == "load" and share < 1}
        slots = self._sram(axes, last, {event.name for event in trace.of(step)}, coming)
        for event, place in zip(moves, places, strict=True):
            outside = (CHIP_RIGHT / 2, FLOOR - 0.6)
            if event.kind == "load":
                start = place
                end = slots.get(event.name, outside)
                colour = LOAD
            else:  # the last block of this array is the one that is stored
                blocks = [name for name in slots if quantity(name) == event.array]
                start = slots[blocks[-1]] if blocks else outside
                end = place
                colour = CHIP
            arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 12}
            axes.add_patch(FancyArrowPatch(start, end, color=colour, lw=1.6, alpha=0.85, **arrow))
            if share < 1:
                x = start[0] + (end[0] - start[0]) * share
                y = start[1] + (end[1] - start[1]) * share
                self._tile(axes, event.name, event.elements, (x, y), colour)
        axes.set(xlim=(0, WIDE), ylim=below)
        self._canvas.draw()  # type: ignore[no-untyped-call]

        return np.asarray(self._canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]

    def _hbm(self, axes: Axes, step: Step, moves: list[TraceEvent]) -> list[tuple[float, float]]:
        """Draw the score matrix, in HBM if it is stored, and HBM's arrays beside it; return
        where the blocks that move are.
        """
        about = self._trace.about
        N_q = about.shape.N_q
        N_k = about.shape.N_k
        blocks = about.blocks
        beside = self._beside
        above = self._above
        pitch = self._pitch
        left = self._left
        top = self._top
        x = (RIGHT - 0.15 - left) / N_k
        y = (FLOOR - 0.15 - top) / N_q

        def place(name: str, rows: Span, cols: Span) -> tuple[tuple[float, float], float, float]:
            """Return the corner, width and height of a part of an array; one that is not beside
            the scores is on them.
            """
            length = rows[1] - rows[0]
            down = top + rows[0] * y
            if name in beside:
                corner = HBM_LEFT + 0.1 + beside.index(name) * pitch, down
                return corner, pitch * 0.75, length * y
            if name in above:
                corner = left + rows[0] * x, 0.85 + above.index(name) * pitch
                return corner, length * x, pitch * 0.75
            corner = left + cols[0] * x, down
            return corner, (cols[1] - cols[0]) * x, length * y

        for i in range(blocks.T_r):
            for j in range(blocks.T_c):
                visit = self._visits.get((i, j), step.number)
                colour = DONE if visit < step.number else "white"
                rows = i * blocks.B_r, min((i + 1) * blocks.B_r, N_q)
                cols = j * blocks.B_c, min((j + 1) * blocks.B_c, N_k)
                tile = place("S", rows, cols)
                axes.add_patch(Rectangle(*tile, fc=colour, ec="#8b909a", lw=0.8))
        if step.rows or step.cols:
            tile = place("S", step.rows or (0, N_q), step.cols or (0, N_k))
            axes.add_patch(Rectangle(*tile, fill=False, ec=CURRENT, lw=2.2))
        resident = [name for name, _ in self._trace.events[step.last].resident]
        on_chip = {quantity(name): CHIP for name in resident}
        on_chip |= {quantity(name): LOAD for name in resident if "[" in name}
        for names, span, length in ((beside, step.rows, N_q), (above, step.cols, N_k)):
            for name in names:
                (across, down), *size = place(name, (0, length), (0, 0))
                axes.add_patch(Rectangle((across, down), *size, fill=False, ec="#5d616b", lw=0.8))
                if span is not None and name in on_chip:
                    part = place(name, span, (0, 0))
                    axes.add_patch(Rectangle(*part, color=on_chip[name]))
                if names is beside:
                    corner, side = (across, top - 0.06), "left"
                else:
                    corner, side = (left - 0.08, down + pitch * 0.75), "right"
                axes.text(*corner, _math(name), size=self._label, ha=side)
        middles = []
        for event in moves:
            spans = event.where or ((0, 0), (0, 0))
            (across, down), width, height = place(event.array or "", *spans)
            middles.append((across + width / 2, down + height / 2))
        return middles

    def _sram(
        self, axes: Axes, event: TraceEvent, fresh: set[str], coming: set[str]
    ) -> dict[str, Point]:
        """Draw what is on chip but `coming`, in rows; return the middle of each block."""
        shapes = [self._shape(name, size) for name, size in event.resident]
        corners, _ = _lay_out(shapes, self._cell)
        middles = {}
        for (name, size), shape, (x, y) in zip(event.resident, shapes, corners, strict=True):
            height, width = shape[0] * self._cell, shape[1] * self._cell
            middles[name] = x + width / 2, y + height / 2
            if name not in coming:
                edge = LOAD if "[" in name else CHIP
                line = 1
                if name in fresh:
                    edge = CURRENT
                    line = 2
                self._tile(axes, name, size, middles[name], edge, line)
                axes.text(x, y - 0.03, _math(name), size=POINTS, va="bottom")
        return middles

    def _tile(
        self, axes: Axes, name: str, size: int, middle: Point, edge: str, line: float = 1.5
    ) -> None:
        tile = self._values.get(name, np.full(self._shape(name, size), np.nan))
        width = tile.shape[1] * self._cell
        height = tile.shape[0] * self._cell
        x = middle[0] - width / 2
        y = middle[1] - height / 2
        most = 1.4 * (self._most.get(quantity(name), 0.0) or 1.0)
        finite = np.where(np.isfinite(tile), tile, np.nan)
        axes.imshow(
            finite,
            cmap="RdBu_r",
            vmin=-most,
            vmax=most,
            extent=(x, x + width, y + height, y),
            aspect="auto",
        )
        axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=edge, lw=line))


def _lay_out(
    shapes: Sequence[tuple[int, ...]], cell: float
) -> tuple[list[tuple[float, float]], float]:
    """Return the corners of blocks laid in rows on the chip, and how far down they reach."""
    x = 0.2
    y = 1.15
    tall = 0.0
    corners = []
    for rows, columns in shapes:
        width = max(columns * cell, 0.62) + 0.1
        if x + width > CHIP_RIGHT and x > 0.2:
            x = 0.2
            y = y + tall + 0.46
            tall = 0.0
        corners.append((x, y))
        x = x + width
        tall = max(tall, rows * cell)
    return corners, y + tall


def _fits(shapes: Sequence[tuple[int, ...]], cell: float) -> bool:
    if any(columns * cell > CHIP_RIGHT - 0.3 for _, columns in shapes):
        return False
    _, bottom = _lay_out(shapes, cell)
    return bottom < FLOOR - 0.1


def _math(name: str) -> str:
    """Return a name of the program in matplotlib's mathematics, as K[0] as K_1 and m_tilde_ij with
    its tilde; or the name itself, if it has no such form.
    """
    base, bracket, index = name.partition("[")
    letter, *rest = base.split("_")
    if not letter.isalpha() or not all(part.isalnum() for part in rest) or index.startswith("["):
        return name.replace("$", r"\$")
    if letter == "l":
        letter = r"\ell"
    if rest[:1] == ["tilde"]:
        letter = rf"\tilde{{{letter}}}"
        rest = rest[1:]
    lower = [part for part in rest if len(part) <= 2]
    upper = [part for part in rest if len(part) > 2]
    if bracket:
        numbers = index.rstrip("]").split(",")
        from_one = [str(int(n) + 1) if n.strip().isdecimal() else n for n in numbers]
        lower.append(",".join(from_one))
    below = f"_{{{' '.join(lower)}}}" if lower else ""
    above = rf"^{{\mathrm{{{' '.join(upper)}}}}}" if upper else ""
    return f"${letter}{below}{above}$"
