"""A fuzz of the public API: every function, with arguments that make sense and arguments that do
not.

A call ends in one of two ways: a correct result, or an error that flashsim itself raises. Neither
warns, changes an argument, or leaves NumPy's error state or BLAS's threads other than they were.
`pytest tests/simulate/test_fuzz.py --fuzz 100000` tries that many calls in each test, and three times as
many of the cheap ones.

Last long run: both files with `-n 0 --fuzz 750 --hypothesis-seed=20261124` at commit c29c757 on 22
November 2026, on a busy machine of two cores (Python 3.11.7, NumPy 2.4.6, Hypothesis 6.170.15; CuPy
was installed): 750 calls in each of 17 tests here and 4 of the kit's, and 2,250 in each of two,
20,250 in all, in 45 minutes. One thing was found: `testing.wrap` took any object for a device of
CuPy's; it is refused now, and the test that found it passes. Before it, 5,700 calls at commit
7cdcd50; all passed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import flashsim
import flashsim.attention.shapes
from flashsim import reference, theory
from flashsim.algorithms import BACKWARD, FORWARD, backward_passes
from flashsim.analysis.tune import tune
from flashsim.attention.masks import dropout, patterns
from flashsim.hardware import machines
from flashsim.hardware.cache import L2
from flashsim.memory.errors import MemoryModelError
from flashsim.plots.blocks import blocks_data
from flashsim.plots.cache_size import cache_size_data
from flashsim.plots.pareto import pareto_data
from flashsim.plots.roofline import roofline_data
from tests.helpers.cases import DROPOUTS, DTYPES, MASKS, REGIMES, Case, of_bound
from tests.helpers.fuzzing import FUZZ, JUNK, accepted, outcome

# for calls that take a millisecond or two
CHEAP = settings(FUZZ, max_examples=3 * FUZZ.max_examples)
OWN: list[Any] = [
    "paper",
    "fit",
    "live",
    "forward",
    "backward",
    "flash",
    "tree",
    flashsim.Causal(),
    flashsim.Causal,
    flashsim.KeyPadding(1),
    flashsim.Tree([-1, 0]),
]
junk = st.sampled_from(JUNK + OWN)


@st.composite
def arguments(draw: st.DrawFn, valid: Mapping[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Valid arguments, of which up to two are replaced by junk; "spoiled" says which."""
    inputs = {name: draw(values) for name, values in valid.items()}
    spoiled = draw(st.lists(st.sampled_from(sorted(valid)), max_size=2))
    return {**inputs, **{name: draw(junk) for name in spoiled}, "spoiled": spoiled}


# --------------------------------------------------------------------------------------------------
# runs

HEADS = [((), ()), ((2,), (2,)), ((4,), (2,)), ((2, 2), (2, 1))]
small = st.integers(1, 9)
BLOCK_MASKS = [
    None,
    "live",
    patterns.butterfly,
    lambda T_r, T_c: [[(i + j) % 2 for j in range(T_c)] for i in range(T_r)],
]
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "M": st.sampled_from([None, 10_000, 200, 9]),
    "sizing": st.sampled_from(["paper", "fit", flashsim.Fit(), flashsim.Paper(enforced=True)]),
    "blocks": st.none() | st.tuples(small, small),
    "splits": st.sampled_from([None, 1, 3]),
    "merge": st.sampled_from(["sequence", "tree"]),
    "gqa": st.sampled_from(["separate", "grouped"]),
    "block_mask": st.sampled_from(BLOCK_MASKS),
    "dropout_p": st.sampled_from(DROPOUTS),
    "causal": st.booleans(),
}
ONLY = {
    "splits": "splits",
    "merge": "splits",
    "block_mask": "block_mask",
    "dropout_p": "dropout",
    "causal": "MASK",
    "mask": "MASK",
}
RUN = {
    **OPTIONS,
    "scale": st.sampled_from([None, 1.0, -0.3, 0, np.float32(0.1)]),
    "seed": st.sampled_from([0, 5, 2**64 - 1]),
    "check_finite": st.just(True),
    "observers": st.just(()),
    "on_head": st.none(),
}


def options_of(
    name: str, options: Mapping[str, st.SearchStrategy[Any]]
) -> dict[str, st.SearchStrategy[Any]]:
    """Leave out the options that are of parts which an algorithm does not have."""
    parts = FORWARD[BACKWARD[name].forward_pass if name in BACKWARD else name].parts
    return {
        option: values for option, values in options.items() if ONLY.get(option, "") in ("", *parts)
    }


def inputs(case: Case, heads: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[NDArray[Any], ...]:
    rng = np.random.default_rng(case.seed)
    of_q, of_kv = heads
    q = rng.normal(size=(*of_q, case.N_q, case.d))
    k = rng.normal(size=(*of_kv, case.N_k, case.d))
    v = rng.normal(size=(*of_kv, case.N_k, case.d_v))
    regime = REGIMES[case.regime]
    rows_q, rows_k = regime(rng, q.reshape(-1, case.d), k.reshape(-1, case.d))
    dtype = DTYPES[case.dtype]
    return (
        rows_q.reshape(q.shape).astype(dtype),
        rows_k.reshape(k.shape).astype(dtype),
        v.astype(dtype),
    )


def oracles(run: flashsim.Result, case: Case, options: dict[str, Any]) -> Any:
    """Yield each head's index, its KV head's, and what the reference takes, made of the
    arguments alone.
    """
    n = case.N_q
    k = case.N_k
    B_r = run.blocks.B_r
    B_c = run.blocks.B_c
    g = run.plan.inputs.group
    member_rows = g if options["gqa"] == "grouped" else 1
    array = case.masked()[1]
    allowed = np.broadcast_to(np.True_ if array is None else array, (n, k))
    if options.get("causal", False):
        allowed = allowed & np.tri(n, k, k - n, dtype=bool)
    p = options.get("dropout_p", 0.0)
    for number, head in enumerate(np.ndindex(run.plan.inputs.leading)):
        mask = allowed
        block_mask = options.get("block_mask")
        if callable(block_mask):
            tiles = np.asarray(block_mask(run.blocks.T_r, run.blocks.T_c), bool)
            rows = tiles.repeat(B_r, 0)[: n * member_rows]
            whole = rows.repeat(B_c, 1)[:, :k]
            mask = mask & whole[number % member_rows :: member_rows]
        kept = dropout.keep_mask(options["seed"], p, n, k, number) if p else None
        yield (
            head,
            run.plan.inputs.kv(head),
            {"scale": run.problem.scale, "mask": mask, "keep": kept, "dropout_p": p},
        )


@pytest.mark.parametrize("name", FORWARD)
@FUZZ
@given(data=st.data())
def test_forward_and_backward(name: str, data: st.DataObject) -> None:
    case = data.draw(
        st.builds(
            Case,
            regime=st.sampled_from(sorted(REGIMES)),
            N_q=small,
            N_k=small,
            d=st.integers(1, 5),
            d_v=st.integers(1, 5),
            dtype=st.sampled_from(sorted(DTYPES)),
            seed=st.integers(0, 2**16),
            B_r=st.just(1),
            B_c=st.just(1),
            mask=st.sampled_from(sorted(MASKS) if "MASK" in FORWARD[name].parts else ["none"]),
        )
    )
    Q, K, V = inputs(case, data.draw(st.sampled_from(HEADS)))
    if case.dtype != "bfloat16" and data.draw(st.booleans()):
        Q = Q.astype(Q.dtype.newbyteorder(">"))
        V = V.astype(V.dtype.newbyteorder(">"))
    given_mask = st.just(case.masked()[0])
    strategies = options_of(name, {**RUN, "mask": given_mask})
    strategies |= {"Q": st.just(Q), "K": st.just(K), "V": st.just(V)}
    options = data.draw(arguments(strategies))
    spoiled = options.pop("spoiled")
    run = outcome(flashsim.forward, name, **options)
    if not spoiled and case.dtype in ("float32", "float64") and options["M"] is None:
        assert accepted(run), run
    if not accepted(run) or spoiled:
        return
    K = run.plan.inputs.K
    V = run.plan.inputs.V
    for head, shared, oracle in oracles(run, case, options):
        operands = (Q[head], K[shared], V[shared])
        rounded = reference.rounding(name, run.blocks)
        bound = reference.error_bound(*operands, **rounded, **oracle)
        want = reference.attention(*operands, **oracle)
        assert of_bound(run.O[head], want, bound) <= 1
    for backward in backward_passes(name):
        rng = np.random.default_rng((case.seed, 1))
        dO = rng.normal(size=run.O.shape).astype(run.O.dtype)
        how = data.draw(
            arguments(
                {
                    "dO": st.just(dO),
                    "M": st.sampled_from([None, 5_000]),
                    "check_finite": st.just(True),
                    "observers": st.just(()),
                    "on_head": st.none(),
                }
            )
        )
        spoiled = how.pop("spoiled")
        value = outcome(flashsim.backward, backward, run, **how)
        if accepted(value) and not spoiled and run.plan.inputs.group == 1:
            rounded = reference.backward_rounding(backward, run.blocks, value.blocks)
            for head, _, oracle in oracles(run, case, options):
                arrays = (Q[head], K[head], V[head], dO[head])
                exact = reference.gradients(*arrays, **oracle)
                bounds = reference.gradient_bounds(*arrays, **rounded, **oracle)
                for part in ("dQ", "dK", "dV"):
                    result = getattr(value, part)[head]
                    assert of_bound(result, getattr(exact, part), getattr(bounds, part)) <= 1, (
                        backward,
                        part,
                    )


X = np.random.default_rng(0).standard_normal((5, 3))


@pytest.mark.parametrize("name", ["flash", "split_kv"])
@FUZZ
@given(data=st.data())
def test_trace(name: str, data: st.DataObject) -> None:
    options = data.draw(arguments(options_of(name, RUN)))
    del options["spoiled"]
    recorded = outcome(flashsim.trace, name, X, X, X, **options)
    if accepted(recorded):
        run = flashsim.forward(name, X, X, X, **options)
        assert (recorded.events[-1].reads, recorded.events[-1].writes) == (
            run.hbm.reads,
            run.hbm.writes,
        )


# --------------------------------------------------------------------------------------------------
# counts

length = st.integers(1, 40)
COUNT = {
    **OPTIONS,
    "N": st.none() | length,
    "N_q": st.none() | length,
    "N_k": st.none() | length,
    "d": small,
    "d_v": st.none() | small,
    "heads": st.sampled_from([1, 2, 6]),
    "kv_heads": st.sampled_from([None, 1, 2]),
    "dtype": st.sampled_from([*DTYPES, *DTYPES.values(), np.float32, ">f4"]),
    "mask": st.sampled_from(
        [
            None,
            flashsim.KeyPadding(1),
            flashsim.SlidingWindow(3, 1),
            np.array([True]),
            flashsim.Tree([None]),
        ]
    ),
}
ALGORITHMS = [(name, "forward") for name in FORWARD]
ALGORITHMS += [(name, "backward") for name in BACKWARD]


@CHEAP
@given(data=st.data())
def test_count_and_exact(data: st.DataObject) -> None:
    """Where both answer they are equal; only what does not fit is refused by one alone."""
    name, way = data.draw(st.sampled_from(ALGORITHMS))
    strategies = options_of(name, COUNT)
    strategies |= {"name": st.just(name), "direction": st.just(way)}
    options = data.draw(arguments(strategies))
    del options["spoiled"]
    counted = outcome(flashsim.count, **options)
    exact = outcome(theory.exact, **options)
    if accepted(counted) and accepted(exact):
        assert counted.hbm == exact.hbm
        assert counted.sram == exact.sram
        assert counted.blocks == exact.blocks
        assert counted.flops.matmul == exact.matmul
    elif accepted(exact):
        assert isinstance(counted, MemoryModelError) or "too small" in str(counted), counted
    elif accepted(counted):
        assert not isinstance(options["sizing"], str), exact  # a policy object


TUNE = {
    **{name: COUNT[name] for name in ("N_q", "N_k", "d", "d_v", "dtype", "causal", "dropout_p")},
    "N": small,
    "M": st.integers(1, 300),
    "direction": st.sampled_from(["forward", "backward"]),
    "least": st.integers(1, 4),
    "on_tried": st.none(),
}


@FUZZ
@given(options=arguments(TUNE))
def test_tune(options: dict[str, Any]) -> None:
    options.pop("spoiled")
    tuned = outcome(tune, **options)
    if accepted(tuned):
        assert all(choice.peak <= tuned.M for choice in tuned.by_loops.values())
        assert tuned.best.accesses == min(choice.accesses for choice in tuned.by_loops.values())


# ----------------------------------------------------------------------------------------------
# everything else, by table

fraction = st.floats(0, 1)
way = st.sampled_from(["forward", "backward"])
sizes = {"N_q": length, "N_k": length, "d": small, "d_v": small}
NMd = {"N": length, "d": small, "M": st.integers(1, 99)}
named = {"name": st.sampled_from(sorted({*FORWARD, *BACKWARD})), "direction": way}
machine = st.sampled_from(list(machines.MACHINES.values()))
floats = st.sampled_from(["float16", "float32", np.float64])
q = st.sampled_from([X, X[None], X[:2], X.astype(np.float32), X.tolist(), X.astype(">f8")])
attends = st.sampled_from([None, np.eye(5, dtype=bool), np.zeros((5, 5), bool), [[True] * 5]])
data = {
    "Q": q,
    "K": q,
    "V": q,
    "scale": st.sampled_from([None, 0.5]),
    "mask": attends,
    "keep": attends,
    "dropout_p": fraction,
}
bound = {
    **data,
    "steps": small,
    "stores": st.none() | small,
    "logs_rounded": small,
    "C": st.sampled_from([1.0, 2.0]),
}
record = st.builds(flashsim.Blocks, small, small, N_q=length, N_k=length)
forward = st.sampled_from(sorted(FORWARD))
FUNCTIONS: list[tuple[Callable[..., Any], dict[str, st.SearchStrategy[Any]]]] = [
    (theory.matmul_flops, {**sizes, **named, "area": st.none() | length}),
    (theory.extra_memory, {**sizes, **named, "B_c": small, "B_r": small, "dropout": st.booleans()}),
    (theory.compulsory, {**sizes, "direction": way}),
    (theory.symbols, {**sizes, "M": length, "blocks": record, "direction": way}),
    (theory.proof_accounting, {"N": length, "d": small, "direction": way}),
    (theory.theorem_2_flash, NMd),
    (theory.theorem_5_flash, NMd),
    (theory.theorem_saha_ye, NMd),
    (theory.theorem_2_standard, {"N": length, "d": small}),
    (theory.theorem_5_standard, {"N": length, "d": small}),
    (theory.proposition_4, {**NMd, "s": fraction}),
    (theory.flash_constants, {"d": small}),
    (theory.flash_backward_constants, {"d": small}),
    (theory.q_outer_constants, {"d": small, "direction": way}),
    (theory.block_sparse_constants, {"d": small, "direction": way}),
    (theory.flash_over_compulsory_constant, {"d": small, "direction": way, "c": fraction}),
    (theory.small_cache_constants, {"d": small, "least": length}),
    (patterns.butterfly, {"T_r": small, "T_c": small}),
    (patterns.local, {"T_r": small, "T_c": small, "width": small}),
    (patterns.strided, {"T_r": small, "T_c": small, "stride": small}),
    (dropout.keep_mask, {"seed": length, "p": fraction, "n_q": small, "n_k": small, "head": small}),
    (L2, {"size": length, "line": small}),
    (machines.roofline, {"machine": machine, "nbytes": length, "flops": length, "dtype": floats}),
    (
        machines.predict,
        {"machine": machine, "algorithm": forward, "N": length, "d": small, "dtype": floats},
    ),
    (machines.kv_tile, {"B_q": small, "B_k": small, "d": small, "itemsize": small}),
    (machines.MACHINES["H100"].M, {"dtype": floats}),
    (machines.MACHINES["M2"].ridge, {"dtype": floats}),
    (reference.attention, {**data, "dtype": floats}),
    (reference.attention_with_statistics, data),
    (reference.gradients, {**data, "dO": q}),
    (reference.error_bound, bound),
    (reference.gradient_bounds, {**bound, "dO": q}),
    (reference.score_reach, {"Q": q, "K": q, "scale": fraction, "mask": attends}),
    (reference.rounding, {"name": forward, "blocks": record}),
    (reference.backward_rounding, {"name": st.sampled_from(sorted(BACKWARD)), "blocks": record}),
    (cache_size_data, {"N": st.integers(1, 4), "d": st.integers(1, 3)}),
    (pareto_data, {"N": st.integers(1, 4), "d": st.integers(1, 3), "M": small, "dtype": floats}),
    (blocks_data, {"N": st.integers(1, 4), "d": st.integers(1, 3), "M": length, "dtype": floats}),
    (
        roofline_data,
        {
            "machine": st.sampled_from(sorted(machines.MACHINES)),
            "N": st.just(16),
            "d": st.just(4),
            "dtype": floats,
        },
    ),
]


@CHEAP
@given(data=st.data())
def test_functions(data: st.DataObject) -> None:
    function, valid = data.draw(st.sampled_from(FUNCTIONS))
    arguments_ = data.draw(arguments(valid))
    spoiled = arguments_.pop("spoiled")
    result = outcome(function, **arguments_)
    if accepted(result) and isinstance(result, int | float) and not spoiled:
        assert result >= 0


@FUZZ
@given(
    parts=st.lists(
        st.sampled_from(["KeyPadding", "SlidingWindow", "Dense", "Tree", "Causal"]),
        min_size=1,
        max_size=3,
    ),
    data=st.data(),
)
def test_masks(parts: list[str], data: st.DataObject) -> None:
    """Any mask that can be made and combined, of junk or not, is refused by a run or means what
    its array says.
    """
    valid: dict[str, st.SearchStrategy[Any]] = {
        "KeyPadding": st.integers(0, 5),
        "SlidingWindow": st.integers(-1, 5),
        "Dense": attends,
        "Tree": st.just([None, 0, 0, 1, -1]),
    }
    combined: Any = flashsim.Causal()
    for kind in parts:
        made = flashsim.Causal()
        if kind != "Causal":
            values = [
                data.draw(st.one_of(valid[kind], junk))
                for _ in range(2 if kind == "SlidingWindow" else 1)
            ]
            made = outcome(getattr(flashsim, kind), *values)
        combined = outcome(lambda a, b: a & b, combined, made) if accepted(made) else combined
        if not accepted(combined):
            return
    run = outcome(flashsim.forward, "flash", X, X, X, mask=combined)
    if accepted(run):
        whole = combined.whole(flashsim.attention.shapes.Shape(5, 5, 3, 3), ())
        rounded = reference.rounding("flash", run.blocks)
        bound = reference.error_bound(X, X, X, mask=whole, **rounded)
        want = reference.attention(X, X, X, mask=whole)
        assert of_bound(run.O, want, bound) <= 1
