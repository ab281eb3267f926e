"""Attention problems for property tests: regime + small shape + seed, so that failures shrink to
something readable.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray

import flashsim
from flashsim import Causal, Dense, KeyPadding, QueryPadding, SlidingWindow, Tree, theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.attention.masks.dropout import keep_mask
from flashsim.attention.masks.rules import All, Both, Mask
from flashsim.attention.shapes import Shape
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.memory.sram import Observer
from flashsim.tracing import Recorder, Trace, traced
from flashsim.tracing.planting import mutated
from tests import masks

Array = NDArray[Any]
Arguments = dict[str, Any]  # by keyword, of a call
# for what is asked of each of many algorithms
FEW = settings(max_examples=settings().max_examples // 2)
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def _gaussian(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return q, k


def _rising(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    sizes = np.linspace(0, 30, len(k))
    return np.abs(q), np.broadcast_to(sizes[:, None], k.shape)


def _falling(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    sizes = np.linspace(30, 0, len(k))
    return np.abs(q), np.broadcast_to(sizes[:, None], k.shape)


def _equal(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return q, np.ones_like(k)


def _massive(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.sign(q) / q.shape[1], np.sign(k) * 5e4


def _very_negative(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.ones_like(q) / q.shape[1], k - 1e4


def _mostly_masked_like(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    """All keys but a few look masked, as by a large negative bias."""
    live = rng.random((len(k), 1)) < 0.2
    q_alike = np.ones_like(q) / q.shape[1]
    return q_alike, np.where(live, k, -3e4)


def _outliers(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    is_outlier = rng.random(k.shape) < 0.05
    return q, k + 30 * is_outlier * rng.normal(size=k.shape)


def _ties(rng: Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.round(q), np.round(k)


Regime = Callable[[Generator, Array, Array], tuple[Array, Array]]
REGIMES: dict[str, Regime] = {
    "gaussian": _gaussian,
    "rising": _rising,
    "falling": _falling,
    "all equal": _equal,
    "±5·10⁴": _massive,
    "all very negative": _very_negative,
    "masked-like": _mostly_masked_like,
    "outliers": _outliers,
    "ties": _ties,
}


Masked = tuple[Any, Array | None]  # what `forward` is given as its mask, and what that must mean


def _rows_and_keys(n: int, k: int) -> tuple[Array, Array]:
    """Numbers i (n, 1) and j (k,) of queries and keys."""
    return np.arange(n)[:, None], np.arange(k)


def _causal(n: int, k: int, offset: int | None = None) -> Array:
    """Query i at position i + offset; by default the last query at the last key's."""
    i, j = _rows_and_keys(n, k)
    allowed: Array = j <= i + (k - n if offset is None else offset)
    return allowed


def _window(n: int, k: int, left: int, right: int) -> Array:
    i, j = _rows_and_keys(n, k)
    position = i + k - n
    allowed: Array = (position - left <= j) & (j <= position + right)
    return allowed


def _first(n: int, k: int, keys: int) -> Array:
    _, j = _rows_and_keys(n, k)
    return np.broadcast_to(j < keys, (n, k)).copy()


def _dense(rng: Generator, n: int, k: int, share: float = 0.6) -> Array:
    return np.asarray(rng.random((n, k)) < share)


def _padding_mask(rng: Generator, n: int, k: int) -> Masked:
    keys = int(rng.integers(0, k + 1))
    return KeyPadding(keys), _first(n, k, keys)


def _window_mask(rng: Generator, n: int, k: int) -> Masked:
    left, right = (int(side) for side in rng.integers(0, 6, size=2))
    return SlidingWindow(left, right), _window(n, k, left, right)


def _dense_mask(share: float) -> Callable[[Generator, int, int], Masked]:
    def make(rng: Generator, n: int, k: int) -> Masked:
        allowed = _dense(rng, n, k, share)
        return allowed, allowed

    return make


def _broadcast_mask(
    rows: bool, cols: bool, flat: bool = False
) -> Callable[[Generator, int, int], Masked]:
    def make(rng: Generator, n: int, k: int) -> Masked:
        array = _dense(rng, n if rows else 1, k if cols else 1)
        return (array[0] if flat else array), np.broadcast_to(array, (n, k))

    return make


def _first_keys_masked(rng: Generator, n: int, k: int) -> Masked:
    """Most rows lose their first keys, perhaps whole tiles of them, perhaps all."""
    starts = rng.integers(0, k + 1, size=n)
    allowed = np.arange(k)[None, :] >= starts[:, None]
    return Dense(allowed), allowed


def _causal_and_padding(rng: Generator, n: int, k: int) -> Masked:
    keys = int(rng.integers(0, k + 1))
    return Causal() & KeyPadding(keys), _causal(n, k) & _first(n, k, keys)


def _offset_mask(rng: Generator, n: int, k: int) -> Masked:
    """Causal, query 0 at a position of its own: top-left and beyond either end included."""
    beyond = int(rng.integers(-n - 2, k + 3))
    offset = (0, k - n, beyond)[rng.integers(3)]
    return Causal(offset=offset), _causal(n, k, offset)


def _offset_window_mask(rng: Generator, n: int, k: int) -> Masked:
    left, right = (int(side) for side in rng.integers((0, 0), (6, 6)))
    offset = int(rng.integers(-n - 2, k + 3))
    ahead = offset - k + n
    allowed = _window(n, k, left - ahead, right + ahead)
    return SlidingWindow(left, right, offset=offset), allowed


def _query_padding_mask(rng: Generator, n: int, k: int) -> Masked:
    rows = int(rng.integers(0, n + 1))
    return QueryPadding(rows), _first(k, n, rows).T


def _packed_entry(rng: Generator, n: int, k: int) -> Masked:
    """One entry of a padded batch: queries and keys of lengths of their own, causal from the end
    of both.
    """
    rows = int(rng.integers(0, n + 1))
    keys = int(rng.integers(0, k + 1))
    left = int(rng.integers(-1, 7))
    causal = Causal(offset=keys - rows)
    mask = QueryPadding(rows) & SlidingWindow(left, -1) & causal & KeyPadding(keys)
    within = _window(n, k, n + k if left == -1 else left, n + k)
    real = _first(k, n, rows).T & _first(n, k, keys)
    return mask, real & within & _causal(n, k, keys - rows)


def _all_together(rng: Generator, n: int, k: int) -> Masked:
    left, right, keys = (int(side) for side in rng.integers((2, 0, k // 2), (9, 6, k + 1)))
    a = _dense(rng, n, k, 0.9)
    b = _dense(rng, 1, k, 0.9)
    window = _window(n, k, left, right)
    allowed: Array = a & window & _first(n, k, keys) & b
    rest = KeyPadding(keys) & Dense(b)
    return Dense(a) & SlidingWindow(left, right) & rest, allowed


MASKS: dict[str, Callable[[Generator, int, int], Masked]] = {
    "none": lambda rng, n, k: (None, None),
    "causal": lambda rng, n, k: (Causal(), _causal(n, k)),
    "padding": _padding_mask,
    "window": _window_mask,
    "window, left open": lambda rng, n, k: (SlidingWindow(-1, 2), _window(n, k, n + k, 2)),
    "dense": _dense_mask(0.6),
    "dense, few": _dense_mask(0.1),
    "dense (1, N_k)": _broadcast_mask(False, True),
    "dense (N_k,)": _broadcast_mask(False, True, flat=True),
    "dense (N_q, 1)": _broadcast_mask(True, False),
    "dense (1, 1)": _broadcast_mask(False, False),
    "first keys": _first_keys_masked,
    "causal & padding": _causal_and_padding,
    "all together": _all_together,
    "causal, offset": _offset_mask,
    "window, offset": _offset_window_mask,
    "query padding": _query_padding_mask,
    "packed entry": _packed_entry,
    **{  # and those in files of their own
        file.name: import_module(f"{masks.__name__}.{file.name}").mask
        for file in pkgutil.iter_modules(masks.__path__)
    },
}
DROPOUTS = (0.0, 0.3, 0.9)


@dataclass(frozen=True)
class Case:
    """One problem, and how to tile it. What is masked is said twice: to `forward`, and here in
    plain words.
    """

    regime: str
    N_q: int
    N_k: int
    d: int
    d_v: int
    dtype: str
    seed: int
    B_r: int
    B_c: int
    mask: str = "none"
    dropout_p: float = 0.0

    def inputs(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(self.seed)
        q = rng.normal(size=(self.N_q, self.d))
        k = rng.normal(size=(self.N_k, self.d))
        v = rng.normal(size=(self.N_k, self.d_v))
        q, k = REGIMES[self.regime](rng, q, k)
        dtype = DTYPES[self.dtype]
        return q.astype(dtype), k.astype(dtype), v.astype(dtype)

    def dO(self) -> Array:
        """Random; small where keys are so large that dQ would overflow float16, which is
        refused.
        """
        rng = np.random.default_rng((self.seed, 1))
        Q, K, _ = self.inputs()
        largest = max(np.abs(Q.astype(float)).max(), np.abs(K.astype(float)).max())
        size = 2.0**-10 if self.dtype == "float16" and largest > 100 else 1.0
        dO = size * rng.normal(size=(self.N_q, self.d_v))
        return dO.astype(DTYPES[self.dtype])

    def masked(self) -> Masked:
        rng = np.random.default_rng((self.seed, 2))
        return MASKS[self.mask](rng, self.N_q, self.N_k)

    def for_algorithm(self, name: str) -> Case:
        """Without a mask, and without dropout, where the algorithm of that name has none."""
        parts = FORWARD[name].parts
        mask = self.mask if "MASK" in parts else "none"
        return replace(self, mask=mask, dropout_p=self.dropout_p if "dropout" in parts else 0.0)

    @property
    def shape(self) -> dict[str, Any]:
        """As `count` takes it."""
        return {"N_q": self.N_q, "N_k": self.N_k, "d": self.d, "d_v": self.d_v}

    @property
    def options(self) -> dict[str, Any]:
        """As `forward` takes mask and dropout."""
        return {"mask": self.masked()[0], "dropout_p": self.dropout_p, "seed": self.seed}

    @property
    def oracle(self) -> dict[str, Any]:
        """As the reference and its bounds take them."""
        kept = None
        if self.dropout_p:
            kept = keep_mask(self.seed, self.dropout_p, self.N_q, self.N_k)
        return {"mask": self.masked()[1], "keep": kept, "dropout_p": self.dropout_p}


def cases(
    max_n: int = 20,
    dtypes: tuple[str, ...] = tuple(DTYPES),
    masks: tuple[str, ...] = ("none",),
    dropouts: tuple[float, ...] = (0.0,),
    regimes: tuple[str, ...] = tuple(REGIMES),
) -> st.SearchStrategy[Case]:
    lengths = st.integers(1, max_n)
    blocks = st.integers(1, max_n + 10)  # B > N included
    return st.builds(
        Case,
        regime=st.sampled_from(regimes),
        N_q=lengths,
        N_k=lengths,
        d=st.integers(1, 9),
        d_v=st.integers(1, 9),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**16),
        B_r=blocks,
        B_c=blocks,
        mask=st.sampled_from(masks),
        dropout_p=st.sampled_from(dropouts),
    )


@st.composite
def combined_masks(draw: st.DrawFn, N_q: int, N_k: int) -> Mask | None:
    """None, or up to three masks of any kind, combined."""
    number = draw(st.integers(0, 3))
    if not number:
        return draw(st.sampled_from((None, All())))
    mask = draw(single_masks(N_q, N_k))
    for _ in range(number - 1):
        mask = mask & draw(single_masks(N_q, N_k))
    return mask


@st.composite
def single_masks(draw: st.DrawFn, N_q: int, N_k: int) -> Mask:
    offset = draw(st.none() | st.integers(-N_q - 2, N_k + 2))
    match draw(st.sampled_from(("causal", "window", "padding", "queries", "dense"))):
        case "causal":
            return Causal(offset)
        case "window":
            left = draw(st.integers(-1, N_k))
            right = draw(st.integers(-1, N_q))
            return SlidingWindow(left, right, offset)
        case "padding":
            return KeyPadding(draw(st.integers(0, N_k)))
        case "queries":
            return QueryPadding(draw(st.integers(0, N_q)))
        case _:
            shapes = [(N_q, N_k), (1, N_k), (N_q, 1), (1, 1), (N_k,), (1,), ()]
            shape = draw(st.sampled_from(shapes))
            return Dense(np.random.default_rng(0).random(shape) < 0.7)


def full_cases(max_n: int = 20, dtypes: tuple[str, ...] = tuple(DTYPES)) -> st.SearchStrategy[Case]:
    """Every mask and dropout; features off come first, so that failures shrink to them."""
    return cases(max_n, dtypes, tuple(MASKS), DROPOUTS)


def forward_of(name: str) -> str:
    """The forward pass that a pass of that name belongs to."""
    return BACKWARD[name].forward_pass if name in BACKWARD else name


def room_for(B_r: int, B_c: int, d: int, d_v: int, N_k: int) -> int:
    """Enough SRAM for any algorithm here with these blocks, forward and backward."""
    operands = 3 * (B_r + B_c) * (d + d_v)
    scores = 5 * B_r * B_c
    return operands + scores + 8 * B_r + N_k + 8


def of_bound(result: Array, want: Array, bound: Array) -> float:
    """Return the largest error as a part of its bound: at most 1 if all is well, ∞ where NaN is.

    No bound, ∞, is for what overflows the type it is kept in.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(np.asarray(result).astype(np.float64) - want)
        no_bound = np.where(error == 0, 0.0, np.inf)
        part = np.divide(error, bound, out=no_bound, where=bound > 0)
    part = np.where(np.isnan(part), np.inf, part)
    return float(np.where(bound == np.inf, 0.0, part).max(initial=0.0))


def same(
    result: flashsim.Result | flashsim.Result | flashsim.Result,
    want: flashsim.Result | theory.Exact,
) -> None:
    """Ask for the same accesses, array by array, the same peak on chip, and the same blocks."""
    assert result.hbm.by_array == want.hbm.by_array
    assert result.hbm == want.hbm
    assert result.sram == want.sram
    assert result.blocks == want.blocks


def refused(*calls: tuple[str, Callable[[], object]]) -> None:
    """Ask of each call for an error with these words."""
    for match, call in calls:
        with pytest.raises(ValueError, match=match):
            call()


def _dense_parts(mask: Mask | None) -> Mask:
    """What is left of a mask of which every tile is live, as far as positions tell."""
    if isinstance(mask, Both):
        return _dense_parts(mask.a) & _dense_parts(mask.b)
    return mask if isinstance(mask, Dense | Tree) else All()


def count_equals_theory(algorithm: Algorithm, drawn: dict[str, Any]) -> None:
    """Ask the same of both."""
    want = theory.exact(algorithm.name, **drawn)
    try:
        tally = flashsim.count(algorithm.name, **drawn)
    except SramOverflow:
        assert want.sram.enforced
        assert want.sram.peak > want.sram.capacity
        return
    except ValueError:  # "fit": not even blocks of one row
        assert drawn["sizing"] == "fit"
        every_tile = {**drawn, "block_mask": None}
        if {"live", "splits"} & {*algorithm.parts}:
            every_tile |= {"mask": _dense_parts(drawn["mask"]), "causal": False}
        own = [option for option in FORWARD[algorithm.forward_pass].options if option.name in drawn]
        every_tile |= {
            option.name: None
            for option in own
            if isinstance(option.check(drawn[option.name]), Mask)
        }
        whole = theory.exact(algorithm.name, **every_tile)
        assert whole.sram.peak > whole.sram.capacity
        assert whole.blocks.B_r == whole.blocks.B_c == 1
        return
    same(tally, want)
    assert tally.flops.matmul == want.matmul
    assert not want.sram.enforced or want.sram.peak <= want.sram.capacity


def swap(function: Any, before: str, after: str, patch: pytest.MonkeyPatch) -> None:
    """Give a function, wherever it is known already, the code of its mutant."""
    patch.setattr(function, "__code__", mutated(function, (before, after)).__code__)


def unnoticed(by: set[str], objections: Iterator[str]) -> set[str]:
    """Return those of the checks `by` that do not object, having run no more than it takes."""
    left = set(by)
    while left and (check := next(objections, None)) is not None:
        left.discard(check)
    return left


def on_each(
    cases: Iterable[Case],
    objections: Callable[..., Iterator[str]],
    algorithm: Algorithm,
    *more: Any,
) -> Iterator[str]:
    """Run on each case, and yield the checks that object: "refused", too, where that is an
    error.
    """
    with np.errstate(all="ignore"):
        for case in cases:
            try:
                yield from objections(algorithm, case, *more)
            except (MemoryModelError, LookupError, ValueError):
                yield "refused"


def exact_of(name: str, **options: Any) -> theory.Exact | None:
    """By formula; None where tiles are skipped that a mask without a band leaves empty."""
    try:
        return theory.exact(name, **options)
    except theory.NoClosedForm:
        one_tile = Shape(1, 1, 1, 1)
        if options["mask"].band(one_tile, ()) is not None:
            raise
        return None


def operands(
    N: int, d: int, e: int, seed: int = 0, dtype: str = "float64"
) -> tuple[Array, Array, Array]:
    """Q, K, V of a program that takes them."""
    rng = np.random.default_rng(seed)
    Q = rng.normal(size=(N, d)).astype(dtype)
    K = rng.normal(size=(N, d)).astype(dtype)
    V = rng.normal(size=(N, e)).astype(dtype)
    return Q, K, V


def tile_ends(top: int, bottom: int, left: int, right: int) -> tuple[Array, Array, Array, Array]:
    """Of one tile: its first row and the end of its rows, its first column and the end of these, as
    a mask takes them.
    """
    return np.array([top]), np.array([bottom]), np.array([left]), np.array([right])


def with_trace(
    call: Callable[..., Any], *inputs: Any, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Any, Trace]:
    """What a call returns that takes observers, and its trace."""
    recorder = Recorder()
    run = call(*inputs, observers=[*observers, recorder], **options)
    return run, traced(recorder, run)
