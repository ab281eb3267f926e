"""Draw figures/loop.gif: blocks that travel between HBM and SRAM, once round Algorithm 1's loops. From a run's own events.

python scripts/loop_picture.py
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

import flashsim
from flashsim.drawing.bars import COLOURS
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole
from flashsim.tracing import Step, Trace
from flashsim.tracing.data import TraceEvent
from flashsim.tracing.sample import operands

ROOT = Path(__file__).resolve().parents[1]
SIZE, CELL = (800, 350), 14  # pixels: of the picture, and of one element
INK, FAINT, PAPER = "#1b1d22", "#8b909a", "#ffffff"
Point = tuple[float, float]
STRIPS = {"Q": 40, "K": 112, "V": 184, "O": 256, "l": 328, "m": 356}  # where each array stands in HBM
HBM_TOP = 126
SLOTS: dict[str, Point] = {
    "K": (440, 126), "V": (512, 126), "Q": (584, 126), "O": (656, 126), "l": (728, 126), "m": (756, 126),
    "S_ij": (440, 212), "m_tilde_ij": (512, 212), "l_tilde_ij": (540, 212), "l_i_new": (728, 212), "m_i_new": (756, 212),
}  # fmt: skip
SLOTS |= {"P_tilde_ij": SLOTS["S_ij"], "O_i_new": SLOTS["O"]}
COLOUR = {**COLOURS, "S_ij": COLOURS["S"], "P_tilde_ij": COLOURS["P"], "O_i_new": COLOURS["O"]}
COLOUR |= {name: COLOURS[name[0]] for name in ("m_tilde_ij", "l_tilde_ij", "m_i_new", "l_i_new")}
SHOWN = {"l": "ℓ", "S_ij": "S", "P_tilde_ij": "P̃", "O_i_new": "O", "m_tilde_ij": "m̃", "l_tilde_ij": "ℓ̃"}
SHOWN |= {"m_i_new": "m′", "l_i_new": "ℓ′"}
SAID = {
    "line 2": "O, ℓ, m begin in HBM, as 0, 0, −∞",
    "line 6": "load a block of K and of V",
    "line 8": "load a block of Q, with its O, ℓ, m",
    "line 9": "S = Q Kᵀ: this tile stays on the chip",
    "line 10": "its row maxima m̃, P̃ = exp(S − m̃), row sums ℓ̃",
    "line 11": "the new maximum m′ and sum ℓ′ of each row",
    "line 12": "O, rescaled and with P̃V added, goes back to HBM",
    "line 13": "and so do ℓ and m",
}
SLOW, MOVES, MOVE, STAY = 2, 4, 70, 260  # the first tiles are slow; frames of a move; milliseconds of a frame


def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font, which is everywhere where matplotlib is."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)


SMALL, PLAIN, BOLD = font(13), font(15), font(15, bold=True)


class Stage:
    """Draws frames of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.total = trace.events[-1].reads + trace.events[-1].writes
        self.done: set[tuple[int, int]] = set()

    def frame(
        self, step: Step, event: TraceEvent, moving: list[tuple[TraceEvent, float]], hidden: set[str], said: str = ""
    ) -> Image.Image:
        """Return the picture after `event`: what is on chip but `hidden`, and each block that moves, so far on its way."""
        image = Image.new("RGB", SIZE, PAPER)
        draw = ImageDraw.Draw(image)
        about = self.trace.about
        draw.rectangle((0, 0, SIZE[0] - 1, SIZE[1] - 1), outline=FAINT)
        loops = dict(step.loops)
        where = ", ".join(f"{name} = {index + 1} of {about.blocks.T_c if name == 'j' else about.blocks.T_r}"
                          for name, index in loops.items())  # fmt: skip
        draw.text((16, 12), f"Algorithm 1, {step.label}", INK, BOLD)
        draw.text((200, 12), said or SAID[step.label], INK, PLAIN)
        draw.text((784, 12), "" if said else where, INK, PLAIN, anchor="ra")
        self._box(draw, (16, 44, 396, 334), "HBM", f"{event.reads + event.writes} of {self.total} accesses so far")
        self._box(draw, (424, 44, 784, 334), "SRAM", f"{event.occupancy} of M = {about.M} elements")
        draw.rectangle((440, 78, 440 + 328, 90), outline=FAINT)
        draw.rectangle((440, 78, 440 + 328 * event.occupancy / about.M, 90), fill=COLOURS["K"])
        for array in about.arrays:
            x = STRIPS[array.name]
            draw.text((x, HBM_TOP - 20), SHOWN.get(array.name, array.name), INK, PLAIN)
            rows, columns = array.shape
            height = about.blocks.B_c if array.name in "KV" else about.blocks.B_r
            for top in range(0, rows, height):
                self._block(draw, (x, HBM_TOP + CELL * top), (height, columns), COLOURS[array.name])
        self._tiles(draw, loops)
        for name, elements in event.resident:
            base = name.partition("[")[0]
            if base not in hidden:
                at = SLOTS[base]
                shape = (elements, 1) if elements == about.blocks.B_r else (elements // about.shape.d, about.shape.d)
                draw.text((at[0], at[1] - 20), SHOWN.get(base, base), INK, PLAIN)
                self._block(draw, at, shape, COLOUR[base], grid=True)
        for moved, way in moving:
            self._travel(draw, moved, way)
        return image

    def _box(self, draw: ImageDraw.ImageDraw, corners: tuple[int, int, int, int], name: str, said: str) -> None:
        draw.rectangle(corners, outline=INK)
        draw.text((corners[0] + 16, corners[1] + 8), name, INK, BOLD)
        draw.text((corners[2] - 16, corners[1] + 9), said, INK, PLAIN, anchor="ra")

    def _block(
        self, draw: ImageDraw.ImageDraw, at: Point, shape: tuple[int, int], colour: str, *, grid: bool = False
    ) -> None:
        end = at[0] + CELL * shape[1], at[1] + CELL * shape[0]
        draw.rectangle((*at, *end), fill=colour, outline=INK)
        if grid:
            for column in range(1, shape[1]):
                draw.line((at[0] + CELL * column, at[1], at[0] + CELL * column, end[1]), PAPER)
            for row in range(1, shape[0]):
                draw.line((at[0], at[1] + CELL * row, end[0], at[1] + CELL * row), PAPER)

    def _tiles(self, draw: ImageDraw.ImageDraw, loops: dict[str, int]) -> None:
        """Draw which tiles of S have been, and which is."""
        blocks, side, left, top = self.trace.about.blocks, 12, 656, 288
        draw.text((left - 12, top + 2), "tiles of S done", INK, SMALL, anchor="ra")
        if len(loops) == 2:
            self.done.add((loops["i"], loops["j"]))
        for i in range(blocks.T_r):
            for j in range(blocks.T_c):
                colour = COLOURS["S"] if (i, j) == (loops.get("i"), loops.get("j")) else FAINT
                fill = colour if (i, j) in self.done else PAPER
                corner = left + side * j, top + side * i
                draw.rectangle((*corner, corner[0] + side, corner[1] + side), fill=fill, outline=INK)

    def _travel(self, draw: ImageDraw.ImageDraw, event: TraceEvent, way: float) -> None:
        assert event.array is not None
        assert event.where is not None
        (top, end), (first, last) = event.where
        there: Point = (STRIPS[event.array], HBM_TOP + CELL * top)
        here = SLOTS[event.array] if event.kind == "load" or event.array == "O" else SLOTS[f"{event.array}_i_new"]
        start, stop = (there, here) if event.kind == "load" else (here, there)
        at = start[0] + way * (stop[0] - start[0]), start[1] + way * (stop[1] - start[1])
        self._block(draw, at, (end - top, last - first), COLOURS[event.array], grid=True)


def frames(trace: Trace) -> Iterator[tuple[Image.Image, int]]:
    """Yield each picture, and for how many milliseconds it stays."""
    stage = Stage(trace)
    for step in trace.steps:
        events = trace.of(step)
        last = trace.events[step.last]
        moved = [event for event in events if event.kind in ("load", "store")]
        slow = len(stage.done) < SLOW
        arriving = {event.array or "" for event in moved if event.kind == "load"}
        for number in range(MOVES if slow else MOVES // 2) if moved else ():
            way = (number + 0.5) / (MOVES if slow else MOVES // 2)
            yield stage.frame(step, last, [(event, way) for event in moved], arriving), MOVE
        if slow or step.label in ("line 9", "line 6", "line 13"):
            yield stage.frame(step, last, [], set()), STAY * (5 if slow else 1)
    standard = sum(trace.about.standard or ())
    yield (
        stage.frame(step, last, [], set(), f"S and P were never in HBM. Standard attention: {standard} accesses"),
        4_000,
    )


def recorded() -> Trace:
    """Return the run that is shown."""
    Q, K, V = operands(12, 4)
    return flashsim.trace("flash_basic", Q, K, V, M=104, sizing="fit")


def draw() -> Path:
    """Write the run's frames as a GIF of few colours."""
    pictures, times = zip(*frames(recorded()), strict=True)
    palette = pictures[len(pictures) // 2].quantize(48)
    small = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    buffer = io.BytesIO()
    small[0].save(buffer, "GIF", save_all=True, append_images=small[1:], duration=list(times), loop=0, optimize=True)
    return write_whole(ROOT / "figures" / "loop.gif", buffer.getvalue())


def main() -> None:
    """Draw: there are no options."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = draw()
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    run_script(main)
