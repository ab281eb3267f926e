"""The same training curve, whichever attention trains it: the paper's §4.1 and Appendix E, at the
size of a laptop.

In flashsim: flashsim.forward and flashsim.backward of each algorithm named, and flashsim.gpu's
where there is a GPU, in the transformer of flashsim.learn.examples.transformer. Its bugs are
planted by flashsim.tracing.planting; in a kernel's CUDA, by flashsim.gpu.kernel_bugs. `flashsim
plot same_curve` draws it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.algorithms.record import Algorithm
from flashsim.algorithms.softmax_rows import whole_rows_backward
from flashsim.attention.inputs import Array
from flashsim.learn.examples.text import fixed, paragraph, table, tiny
from flashsim.learn.examples.transformer import (
    CONTEXT,
    HEADS,
    LAYERS,
    WIDTH,
    Adam,
    Attend,
    Back,
    initial,
    loss_and_gradients,
)
from flashsim.simulate.api import backward, forward
from flashsim.support.blas import one_blas_thread
from flashsim.support.jobs import in_any_order
from flashsim.tracing.planting import planted

STEPS = 300
BATCH = 4
SEED = 0
LAST = 20  # steps whose mean loss is a curve's end
EARLY = 10
# how far losses may be apart: at any step; at the first `EARLY` ones
WITHIN = {"float64": 1e-12, "float32": 1e-5}
GPU = "gpu"
Tiled = tuple[str, tuple[int, int] | None]


@dataclass(frozen=True)
class Bug:
    """What is wrong, the text to change in a backward pass, and what holds it: the algorithm's
    own, or a function or .cu file.
    """

    what: str
    before: str
    after: str
    within: Callable[..., Any] | None = None
    file: str = ""


SCALED_TWICE = Bug(
    "dK scaled by τ twice", "tau * product(dS_ij.T, Q_i)", "tau * tau * product(dS_ij.T, Q_i)"
)
NO_D = Bug("no − D in dS", "dP_ij - D_i", "dP_ij")
NO_D_IN_ROWS = Bug(NO_D.what, "dP_i - D_i", "dP_i", whole_rows_backward)
ON_GPU = (  # in the kernel that gpu.backward chooses for float32
    Bug(SCALED_TWICE.what, "element *= p.tau;", "element *= p.tau * p.tau;", file="algorithm_4.cu"),
    Bug(NO_D.what, "dP_ij.at[a][b] - D_i", "dP_ij.at[a][b]", file="algorithm_4.cu"),
)


@dataclass(frozen=True)
class Setup:
    """What trains a curve: an attention by name with its tiles (None: line 1's), a dtype, a bug,
    or none, and how long.
    """

    name: str
    blocks: tuple[int, int] | None
    dtype: str
    steps: int
    bug: Bug | None = None

    @property
    def title(self) -> str:
        """Its name and tiles."""
        if self.blocks is None:
            return self.name
        B_r, B_c = self.blocks
        return f"{self.name}, {B_r} × {B_c}"

    def attend(self) -> Attend:
        """Return its attention as the transformer takes it."""
        if self.name == GPU:
            return partial(on_a_gpu, self.bug)
        algorithm = BACKWARD[self.name]
        bug = self.bug
        if bug is not None:
            algorithm = planted(
                algorithm, (bug.before, bug.after), within=bug.within, what=bug.what
            )
        return partial(simulated, FORWARD[self.name], algorithm, self.blocks)


@dataclass(frozen=True)
class Curve:
    """The loss at each step, before its update, in nats a character."""

    title: str
    dtype: str
    bug: str
    losses: tuple[float, ...]

    @property
    def end(self) -> float:
        """The mean of its last losses."""
        return float(np.mean(self.losses[-LAST:]))


@dataclass(frozen=True)
class Distance:
    """How far a curve is from that of standard attention in its dtype: over the first steps, and
    over all that it has.

    `end` is its own last losses' mean. `shows` is the first step, counted from 1, at which they are
    further apart than rounding explains; None if there is none.
    """

    title: str
    dtype: str
    bug: str
    early: float
    all: float
    end: float
    steps: int
    shows: int | None


@dataclass(frozen=True)
class SameCurve:
    """The text's length and number of distinct characters, the curves, and their distances:
    `curves[0]` is standard attention.
    """

    characters: int
    distinct: int
    steps: int
    curves: tuple[Curve, ...]
    distances: tuple[Distance, ...]


def simulated(
    algorithm: Algorithm,
    back: Algorithm,
    blocks: tuple[int, int] | None,
    Q: Array,
    K: Array,
    V: Array,
) -> tuple[Array, Back]:
    """Causal attention on the counted memory, and its backward pass."""
    run = forward(algorithm, Q, K, V, causal=True, blocks=blocks)

    def back_pass(dO: Array) -> tuple[Array, Array, Array]:
        gradients = backward(back, run, dO)
        return gradients.dQ, gradients.dK, gradients.dV

    return run.O, back_pass


def on_a_gpu(bug: Bug | None, Q: Array, K: Array, V: Array) -> tuple[Array, Back]:
    """Causal attention by a GPU's kernels, in float32. They take d = 32, so columns of zeros are
    added, which change nothing.
    """
    import cupy

    from flashsim import gpu
    from flashsim.gpu.kernel_bugs import planted

    d = Q.shape[-1]
    padding = [(0, 0), (0, 0), (0, 0), (0, 32 - d)]
    wide = [cupy.asarray(np.pad(x, padding)) for x in (Q, K, V)]
    o, lse = gpu.forward(*wide, causal=True, scale=d**-0.5, return_lse=True)

    def back_pass(dO: Array) -> tuple[Array, Array, Array]:
        do = cupy.asarray(np.pad(dO, padding))
        q, k, v = wide
        with planted(bug.file, (bug.before, bug.after)) if bug else nullcontext():
            gradients = gpu.backward(q, k, v, o, lse, do, causal=True, scale=d**-0.5)
        dq, dk, dv = (cupy.asnumpy(gradient)[..., :d] for gradient in gradients)
        return dq, dk, dv

    return cupy.asnumpy(o)[..., :d], back_pass


@cache
def text() -> tuple[Array, int]:
    """Return the Gettysburg Address as numbers, one a character, and how many distinct ones
    there are.
    """
    address = (files("flashsim.data") / "gettysburg.txt").read_text(encoding="utf-8")
    alphabet = sorted(set(address))
    return np.array([alphabet.index(character) for character in address]), len(alphabet)


def train(setup: Setup) -> Curve:
    """Train from the same weights on the same batches as every other."""
    characters, distinct = text()
    attend = setup.attend()
    weights = initial(distinct, SEED, setup.dtype)
    adam = Adam(weights)
    rng = np.random.default_rng(SEED)
    losses = []
    with one_blas_thread():
        for _ in range(setup.steps):
            starts = rng.integers(0, len(characters) - CONTEXT, size=BATCH)
            passages = [characters[start : start + CONTEXT + 1] for start in starts]
            loss, gradients = loss_and_gradients(weights, np.stack(passages), attend)
            adam.step(gradients)
            losses.append(loss)
    return Curve(setup.title, setup.dtype, setup.bug.what if setup.bug else "", tuple(losses))


def setups(steps: int) -> list[Setup]:
    """Return all setups, standard attention first in either dtype. A few steps show most bugs."""
    standard: Tiled = ("standard", None)
    flash: Tiled = ("flash", (32, 16))
    q_outer: Tiled = ("q_outer", (16, 32))
    every = []
    for dtype in WITHIN:
        for name, blocks in (standard, flash, q_outer):
            every.append(Setup(name, blocks, dtype, steps))
    few = min(steps, EARLY)
    if has_gpu():
        every.append(Setup(GPU, None, "float32", steps))
        for bug in ON_GPU:
            every.append(Setup(GPU, None, "float32", few, bug))
    for (name, blocks), length, bugs in (
        (flash, steps, (SCALED_TWICE, NO_D)),
        (standard, few, (SCALED_TWICE, NO_D_IN_ROWS)),
        (q_outer, few, (SCALED_TWICE, NO_D)),
    ):
        for bug in bugs:
            every.append(Setup(name, blocks, "float64", length, bug))
    return every


def has_gpu() -> bool:
    """Say whether flashsim's kernels can run here."""
    from flashsim.gpu.compiling import MissingGPU, current_device

    try:
        current_device()
    except MissingGPU:
        return False
    return True


def distances(curves: Sequence[Curve]) -> Iterator[Distance]:
    """Yield how far each curve is from the first of its dtype."""
    for curve in curves:
        first = next(c for c in curves if c.dtype == curve.dtype)
        if curve is first:
            continue
        distance = np.abs(np.subtract(curve.losses, first.losses[: len(curve.losses)]))
        compared = distance if curve.dtype == "float64" else distance[:EARLY]
        (beyond,) = np.nonzero(~(compared <= WITHIN[curve.dtype]))
        yield Distance(
            title=curve.title,
            dtype=curve.dtype,
            bug=curve.bug,
            early=float(distance[:EARLY].max()),
            all=float(distance.max()),
            end=curve.end,
            steps=len(distance),
            shows=int(beyond[0]) + 1 if len(beyond) else None,
        )


def compute(steps: int = STEPS, jobs: int | None = None) -> SameCurve:
    """Train every curve, over `jobs` processes; None: over all cores."""
    every = setups(steps)
    characters, distinct = text()
    by_number = dict(in_any_order(train, every, jobs or os.cpu_count() or 1))
    curves = tuple(by_number[number] for number in range(len(every)))
    return SameCurve(len(characters), distinct, steps, curves, tuple(distances(curves)))


def lines(run: SameCurve) -> Iterator[str]:
    """Yield the distances as text."""
    yield "Does a transformer train the same, whichever algorithm computes its attention?"
    yield from paragraph(
        f"A character transformer ({LAYERS} layers of width {WIDTH}, {HEADS} heads, {CONTEXT} "
        "characters of context) learns "
        f"the Gettysburg Address ({run.characters:,} characters, {run.distinct} distinct): "
        f"{run.steps} steps of Adam on "
        f"{BATCH} passages each, from the same weights, on the same passages. Losses are in nats a "
        "character; the distance "
        "is to the curve of standard attention in the same dtype."
    )
    yield ""
    rows = [("", "dtype", f"end (mean of {LAST})", f"apart, {EARLY} steps", "apart, all")]
    for dtype in WITHIN:
        first = next(curve for curve in run.curves if curve.dtype == dtype)
        rows.append((first.title, dtype, fixed(first.end, 3), "", ""))
        for curve in run.distances:
            if curve.dtype == dtype and not curve.bug:
                early = tiny(curve.early)
                rows.append((curve.title, dtype, fixed(curve.end, 3), early, tiny(curve.all)))
    yield from table(rows, left=(0, 1))
    yield from paragraph(_verdict(run))
    buggy = [curve for curve in run.distances if curve.bug]
    on_gpu = ", on the GPU float32" if any(curve.title == GPU for curve in buggy) else ""
    yield f"\nWith a bug planted in the backward pass, float64{on_gpu}:"
    yield ""
    rows = [("", "bug", "end", "shows at step", "apart, all")]
    for curve in buggy:
        end = fixed(curve.end, 3) if curve.steps == run.steps else f"({curve.steps} steps)"
        step = str(curve.shows or "never")
        rows.append((curve.title, curve.bug, end, step, tiny(curve.all)))
    yield from table(rows, left=(0, 1), gap="  ")
    yield from paragraph(
        "A curve is a weak test: with a bug it falls too, and the eye may find nothing wrong with "
        "it. In float64, beside a "
        f"right one, it is a sharp one: a right curve stays within {tiny(WITHIN['float64'])}, so a "
        "step or two tell. In "
        "float32 training itself amplifies rounding, and after some tens of steps right curves "
        "drift apart too."
    )


def _verdict(run: SameCurve) -> str:
    wrong = []
    for curve in run.distances:
        if not curve.bug and curve.shows:
            wrong.append(f"{curve.title} ({curve.dtype}, from step {curve.shows})")
    if wrong:
        return "THE CURVES ARE NOT THE SAME: " + "; ".join(wrong) + "."
    return (
        f"They are the same: in float64 within {tiny(WITHIN['float64'])} at every step, in float32 "
        "within "
        f"{tiny(WITHIN['float32'])} over the first {EARLY}."
    )
