"""Trials of attention's algorithms: forward, backward, and the variants with a sink."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.with_sink import variants
from flashsim.attention.masks import patterns
from flashsim.attention.masks.rules import Mask
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.sram import Observer
from flashsim.reference import (
    attention,
    attention_with_statistics,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
    score_reach,
)
from flashsim.simulate.results import Result
from flashsim.tracing import Trace
from tests.contract.trials import Array, Trial
from tests.helpers.cases import (
    DROPOUTS,
    DTYPES,
    MASKS,
    Case,
    cases,
    combined_masks,
    of_bound,
    room_for,
)

PROGRAMS: Mapping[str, Algorithm] = {
    **FORWARD,
    **{f"{name}, backward": algorithm for name, algorithm in BACKWARD.items()},
    **{f"{name}, with a sink": algorithm for name, algorithm in variants().items()},
}
POLICIES = ("paper", "fit", "blocks")
GRADIENTS = ("dQ", "dK", "dV")
LOGITS = (-800.0, -3.0, 0.0, 50.0)
MASKS_OF_SINKS = ("none", "causal", "packed entry", "dense")


@dataclass(frozen=True)
class AttentionTrial(Trial):
    """
    policy   "blocks": the case's own
    M        of the memory; None: enough for any algorithm
    options  the algorithm's own
    sink     the logit of a variant's sink
    """

    program: Algorithm
    case: Case
    policy: str = "blocks"
    M: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sink: float | None = None

    @property
    def is_backward(self) -> bool:
        return self.program.direction == "backward"

    @property
    def ahead(self) -> Algorithm:
        """The forward pass: the program, or what it is the backward pass of."""
        return FORWARD[self.program.forward_pass] if self.is_backward else self.program

    @cached_property
    def arrays(self) -> dict[str, Array]:
        Q, K, V = self.case.inputs()
        arrays = {"Q": Q, "K": K, "V": V}
        if self.is_backward:
            arrays["dO"] = self.case.dO()
        if isinstance(self.mask, np.ndarray):
            arrays["mask"] = self.mask
        return arrays

    def operands(self) -> Mapping[str, Array]:
        return self.arrays

    @property
    def inputs(self) -> tuple[Array, Array, Array]:
        return self.arrays["Q"], self.arrays["K"], self.arrays["V"]

    @cached_property
    def mask(self) -> Any:
        mask, _ = self.case.masked()
        if self.sink is None:
            return mask
        sink = flashsim.Sink(self.sink)
        return sink if mask is None else mask & sink

    @property
    def room(self) -> int:
        case = self.case
        if self.M is not None:
            return self.M
        return 2 * room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k)

    @property
    def sizing(self) -> dict[str, Any]:
        if self.policy == "blocks":
            return {"blocks": (self.case.B_r, self.case.B_c)}
        return {"sizing": self.policy}

    @property
    def problem(self) -> dict[str, Any]:
        """What runs and counts take alike."""
        return {"mask": self.mask, "dropout_p": self.case.dropout_p, **self.options}

    @cached_property
    def before(self) -> Result:
        """The forward pass of a backward pass."""
        Q, K, V = self.inputs
        how = {"M": self.room, "seed": self.case.seed, **self.sizing, **self.problem}
        return flashsim.forward(self.ahead, Q, K, V, **how)

    def run(
        self, program: Any = None, M: int | None = None, observers: Sequence[Observer] = ()
    ) -> Result:
        program = program or self.program
        if self.is_backward:
            # the forward pass's blocks may have filled SRAM without dO, dQ and the rest
            M = 4 * self.room if M is None else M
            return flashsim.backward(
                program, self.before, self.arrays["dO"], M=M, observers=observers
            )
        Q, K, V = self.inputs
        how = {"seed": self.case.seed, **self.sizing, **self.problem}
        M = self.room if M is None else M
        return flashsim.forward(program, Q, K, V, M=M, observers=observers, **how)

    def run_in(self, M: int, run: Result) -> Result:
        """Count: it refuses what a run refuses."""
        return self._count(M, {"blocks": (run.blocks.B_r, run.blocks.B_c)})

    def count(self) -> Result:
        sizing = self.sizing
        M = self.room
        if self.is_backward:
            M = 4 * self.room
            if callable(self.options.get("block_mask")):  # it keeps its blocks
                blocks = self.before.blocks
                sizing = {"blocks": (blocks.B_r, blocks.B_c), "enforce": self.policy != "paper"}
        return self._count(M, sizing)

    def _count(self, M: int, sizing: Mapping[str, Any]) -> Result:
        return flashsim.count(
            self.program,
            **self.case.shape,
            dtype=self.case.dtype,
            direction=self.program.direction,
            M=M,
            **sizing,
            **self.problem,
        )

    def costs(self, result: Result) -> Any:
        return self._costs(result)

    def exact(self, result: Result) -> Any:
        exact = self._exact(result)
        return None if exact is None else self._costs(exact)

    def _costs(self, result: Result | theory.Exact) -> Any:
        """A backward pass keeps what its forward pass said of M, and a count knows none."""
        on_chip = result.sram.peak if self.is_backward else result.sram
        return result.hbm, on_chip, result.blocks

    def matmul(self, result: Result) -> int | None:
        exact = self._exact(result)
        return None if exact is None else exact.matmul

    def _exact(self, result: Result) -> theory.Exact | None:
        """Tiles that a mask without a band leaves empty are known by looking alone."""
        try:
            exact: theory.Exact = result.plan.exact()
        except theory.NoClosedForm:
            mask = result.problem.mask
            if mask.band(Shape(1, 1, 1, 1), ()) is not None:
                raise
            return None
        return exact

    def oracle(self, blocks: Blocks) -> dict[str, Any]:
        """Return what the reference is told: the case, and what the algorithm's options forbid."""
        oracle = self.case.oracle
        if self.sink is not None:
            oracle["sink"] = self.sink
        allowed = self._allowed_by_options(blocks)
        if allowed is not None:
            mask = oracle["mask"]
            oracle["mask"] = allowed if mask is None else allowed & mask
        return oracle

    def _allowed_by_options(self, blocks: Blocks) -> Array | None:
        allowed = None
        case = self.case
        for option in self.ahead.options:
            value = self.options.get(option.name)
            if option.name == "block_mask" and callable(value):
                tiles = np.asarray(value(blocks.T_r, blocks.T_c), bool)
                rows = tiles.repeat(blocks.B_r, axis=0)[: case.N_q]
                allowed = rows.repeat(blocks.B_c, axis=1)[:, : case.N_k]
            elif option.name != "block_mask" and value is not None:
                mask = option.check(value)
                if isinstance(mask, Mask):
                    shape = Shape(case.N_q, case.N_k, case.d, case.d_v)
                    allowed = mask.allows(np.arange(case.N_q), np.arange(case.N_k), shape, ())
        return allowed

    def wrong(self, run: Result) -> list[str]:
        return self._wrong_gradients(run) if self.is_backward else self._wrong_output(run)

    def _wrong_output(self, run: Result) -> list[str]:
        Q, K, V = self.inputs
        oracle = self.oracle(run.blocks)
        bound = error_bound(Q, K, V, **rounding(self.program, run.blocks), **oracle)
        names = []
        fits = run.O.dtype == Q.dtype and run.O.shape == (self.case.N_q, self.case.d_v)
        if not fits or of_bound(run.O, attention(Q, K, V, **oracle), bound) > 1:
            names.append("O")
        if self.case.dtype == "float64" and self.sink is None and self._is_lse_wrong(run, oracle):
            names.append("lse")
        return names

    def _is_lse_wrong(self, run: Result, oracle: Mapping[str, Any]) -> bool:
        Q, K, V = self.inputs
        want = attention_with_statistics(Q, K, V, **oracle)
        rows = want.l > 0
        if run.lse is None or not np.array_equal(np.isneginf(run.lse), ~rows):
            return True
        T_c = run.blocks.T_c
        reach = score_reach(Q, K, scale=run.problem.scale, mask=oracle["mask"])[:, 0][rows]
        per_score = 2 * self.case.d + 2 * T_c + 12
        roundings = per_score * (reach + 1) + self.case.N_k + 8 * T_c + 8
        error = np.abs(run.lse[rows] - want.m[rows] - np.log(want.l[rows]))
        return not (error <= 4 * roundings * 2**-53).all()

    def _wrong_gradients(self, run: Result) -> list[str]:
        inputs = (*self.inputs, self.arrays["dO"])
        oracle = self.oracle(self.before.blocks)
        rounded = backward_rounding(self.program, self.before.blocks, run.blocks)
        bounds = gradient_bounds(*inputs, **rounded, **oracle)
        want = gradients(*inputs, **oracle)
        names = []
        for name, like in zip(GRADIENTS, self.inputs, strict=True):
            result = run.arrays[name]
            fits = result.dtype == like.dtype and result.shape == like.shape
            if not fits or of_bound(result, getattr(want, name), getattr(bounds, name)) > 1:
                names.append(name)
        return names

    def may_refuse(self, error: ValueError) -> bool:
        """In float16, scores that are kept in HBM may overflow, and gradients."""
        if self.case.dtype != "float16":
            return False
        if self.ahead.stores_scores and "float16 ends at" in str(error):
            return True
        if not self.is_backward or "overflows float16" not in str(error):
            return False
        blocks = self.before.blocks
        bounds = gradient_bounds(
            *self.inputs,
            self.arrays["dO"],
            **backward_rounding(self.program, blocks),
            **self.oracle(blocks),
        )
        return any(np.isinf(getattr(bounds, name)).any() for name in GRADIENTS)

    def trace(self) -> Trace:
        how = {"M": self.room, "seed": self.case.seed, **self.sizing, **self.problem}
        dO = self.arrays.get("dO")
        # a variant's own record is no name that users know: its problem chooses it
        program = self.program.name if self.sink is not None else self.program
        return flashsim.trace(program, *self.inputs, dO=dO, **how)


def scattered(seed: int, density: float) -> Callable[[int, int], Array]:
    """Return a mask of tiles at random."""

    def tiles(T_r: int, T_c: int) -> Array:
        return np.random.default_rng(seed).random((T_r, T_c)) < density

    return tiles


def corner(T_r: int, T_c: int) -> Array:
    """Return a mask of the last tile alone."""
    return np.outer(np.arange(T_r) == T_r - 1, np.arange(T_c) == T_c - 1).astype(int)


@st.composite
def own_options(draw: st.DrawFn, algorithm: Algorithm) -> dict[str, Any]:
    """Draw values of the options that only this algorithm has."""
    values: dict[str, Any] = {}
    for option in algorithm.options:
        choices = [option.default, *option.examples, *(option.choices or {})]
        if option.name == "block_mask":
            drawn = scattered(draw(st.integers(0, 99)), draw(st.sampled_from((0.0, 0.1, 0.5, 1.0))))
            choices = [None, drawn, corner, patterns.butterfly, "live"]
        if option.name == "splits":
            choices = [None, draw(st.integers(1, 45))]
        values[option.name] = draw(st.sampled_from(choices))
    return values


@st.composite
def arguments_of_count(draw: st.DrawFn, algorithm: Algorithm) -> dict[str, Any]:
    """Draw arguments of `count` and `theory.exact`, with memories that may be too small."""
    most = 40
    N_q = draw(st.integers(1, most))
    N_k = draw(st.integers(1, most))
    d = draw(st.integers(1, 9))
    d_v = draw(st.integers(1, 9))
    widest = max(d, d_v)
    drawn: dict[str, Any] = {
        "N_q": N_q,
        "N_k": N_k,
        "d": d,
        "d_v": d_v,
        "M": draw(st.integers(widest, widest + 900)),
        "direction": algorithm.direction,
        "dtype": draw(st.sampled_from(sorted(DTYPES))),
        "heads": draw(st.integers(1, 3)),
    }
    if "MASK" in algorithm.parts:
        drawn["mask"] = draw(combined_masks(N_q, N_k))
        drawn["causal"] = draw(st.booleans())
    if "dropout" in algorithm.parts:
        drawn["dropout_p"] = draw(st.sampled_from((0.0, 0.0, 0.25)))
    policy = draw(st.sampled_from(POLICIES))
    if policy == "blocks":
        drawn["blocks"] = draw(st.integers(1, most + 5)), draw(st.integers(1, most + 5))
        drawn["M"] += 10_000 * draw(st.booleans())
    else:
        drawn["sizing"] = policy
    return drawn | draw(own_options(FORWARD[algorithm.forward_pass]))


@st.composite
def trials(draw: st.DrawFn, program: Algorithm) -> AttentionTrial:
    if program is variants().get(program.name):
        case = draw(cases(masks=MASKS_OF_SINKS, dropouts=DROPOUTS, regimes=("gaussian", "rising")))
        policy = draw(st.sampled_from(("fit", "blocks")))
        return AttentionTrial(program, case, policy, sink=draw(st.sampled_from(LOGITS)))
    ahead = FORWARD[program.forward_pass]
    case = draw(cases(masks=tuple(MASKS), dropouts=DROPOUTS)).for_algorithm(ahead.name)
    policy = draw(st.sampled_from(POLICIES))
    M = None
    if policy == "paper":  # M is not enforced: it may be too small
        least = max(case.d, case.d_v)
        M = draw(st.none() | st.integers(least, least + 900))
    return AttentionTrial(program, case, policy, M, draw(own_options(ahead)))


def samples(program: Algorithm) -> list[AttentionTrial]:
    """Return a problem in a memory that holds no row of S, and one with a mask and dropout, where
    there may be.
    """
    ahead = FORWARD[program.forward_pass]
    sink = 0.5 if program is variants().get(program.name) else None
    small = Case("gaussian", 4, 9, 3, 2, "float64", 1, 3, 5)
    masked = Case("gaussian", 5, 7, 3, 2, "float64", 2, 2, 3, "all together", 0.3)
    return [
        AttentionTrial(program, small, "paper", M=8, sink=sink),
        AttentionTrial(program, masked.for_algorithm(ahead.name), sink=sink),
    ]
