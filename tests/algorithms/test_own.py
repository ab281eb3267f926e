"""An algorithm of one's own: a function on the memory goes wherever a name does, and its
mistakes are told at its lines.
"""

import inspect
import os
import pickle
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.blocks import Fixed, q_outer_blocks
from flashsim.algorithms.notation import rowsum
from flashsim.algorithms.own import ARGUMENTS, algorithm_of, resolve
from flashsim.algorithms.with_sink import variants
from flashsim.analysis.tune import tune
from flashsim.attention.arguments import check_count
from flashsim.attention.matrices import Kind
from flashsim.attention.options import Option
from flashsim.attention.shapes import Blocks
from flashsim.cli import main
from flashsim.extensions.programs import programs
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.reference import attention, error_bound, rounding
from flashsim.theory.formulas import Mean, evaluated
from tests.helpers.cases import Arguments
from tests.helpers.own import FORM, SKIPPING, TWO_SWEEPS, module_of
from tests.helpers.two_sweeps import two_sweeps

rng = np.random.default_rng(0)
Q = rng.normal(size=(2, 9, 4))
K = rng.normal(size=(2, 11, 4))
V = rng.normal(size=(2, 11, 3))


def test_a_function_is_run_counted_bounded_and_traced() -> None:
    tiles: Arguments = {"blocks": (4, 5), "M": 200}
    run = flashsim.forward(two_sweeps, Q, K, V, **tiles)
    assert run.algorithm == "two_sweeps.py:two_sweeps"
    bound = error_bound(Q, K, V, **rounding(two_sweeps, run.blocks))
    error = np.abs(run.O - attention(Q, K, V))
    assert (error <= bound).all()
    assert run.l is run.m is run.lse is None
    sizes: Arguments = {
        "N_q": 9,
        "N_k": 11,
        "d": 4,
        "d_v": 3,
        "heads": 2,
        "dtype": "float64",
    }
    tally = flashsim.count(two_sweeps, **sizes, **tiles)
    assert (tally.hbm, tally.sram) == (run.hbm, run.sram)
    assert run.hbm.by_array["K"].reads == 2 * 2 * 3 * 11 * 4  # heads, sweeps, T_r, N_k, d
    traced = flashsim.trace(two_sweeps, Q, K, V, head=1, **tiles)
    assert traced.about.title == "two_sweeps"
    (_, first, lines) = traced.about.source[0]
    named = {
        event.name: lines[event.site[1] - first].strip()
        for event in traced.events
        if event.kind == "compute"
    }
    assert all(
        named[name].startswith(f"{name} = on_chip(")
        for name in ("S_ij", "m_new", "l_i", "m_i", "O_i")
    )
    with pytest.raises(flashsim.SramOverflow, match="too many"):
        flashsim.forward(two_sweeps, Q, K, V, blocks=(4, 5), M=50)


def test_the_bound_of_a_function_is_what_its_blocks_make_it() -> None:
    """For T_c = 3 roundings of O to float16, and three rescalings: by hand, where all scores are
    0, and V is positive.
    """
    rounded = rounding(two_sweeps, Blocks(4, 5, N_q=9, N_k=12))
    q = np.zeros((9, 4), np.float16)
    k = K[0].astype(np.float16)
    v = np.abs(V[0]).astype(np.float16)
    means = np.broadcast_to(v.mean(axis=0, dtype=np.float64), (9, 3))
    roundings_to_float32 = (11 + 8 * (3 + 1)) * 2.0**-24
    roundings_to_float16 = 3 * 2.0**-11
    least_float16 = 2.0**-24
    relative = roundings_to_float32 + roundings_to_float16
    want = 2 * relative * means + 3 * least_float16
    bound = error_bound(q, k, v, **rounded)
    assert np.allclose(bound, want, rtol=1e-9, atol=0)


def test_a_function_may_take_parts() -> None:
    def masked(
        hbm: Any,
        sram: Any,
        Q: Any,
        K: Any,
        V: Any,
        blocks: Any,
        tau: Any,
        MASK: Any,
        dropout: Any,
        sink: Any,
    ) -> tuple[Matrix, ...]:
        """Algorithm 2: with a mask.

        And with dropout.
        """
        return variants()["flash"].run(hbm, sram, Q, K, V, blocks, tau, MASK, dropout, sink)

    options: Arguments = {"causal": True, "dropout_p": 0.2, "M": 100}
    assert np.array_equal(
        flashsim.forward(masked, Q, K, V, **options).O,
        flashsim.forward("flash", Q, K, V, **options).O,
    )
    assert (
        flashsim.trace(masked, Q, K, V, head=0, **options).about.title == "Algorithm 2: with a mask"
    )
    with pytest.raises(ValueError, match="has no mask"):
        flashsim.forward(two_sweeps, Q, K, V, causal=True)


def test_a_function_may_take_options_of_its_own(tmp_path: Path) -> None:
    loads = module_of(SKIPPING, tmp_path / "loads.py").two_sweeps
    tiles: Arguments = {"blocks": (4, 5), "M": 200}
    once = flashsim.forward(two_sweeps, Q, K, V, **tiles)
    K_once = flashsim.forward(loads, Q, K, V, **tiles).hbm.by_array["K"].reads
    twice: Arguments = {"times": 2, **tiles}
    run = flashsim.forward(loads, Q, K, V, **twice)
    assert run.hbm.by_array["K"].reads == K_once * 3 // 2
    assert np.array_equal(run.O, once.O)
    lengths: Arguments = {"N_q": 9, "N_k": 11, "d": 4, "d_v": 3}
    lengths["dtype"] = "float64"
    assert flashsim.count(loads, **lengths, heads=2, **twice).hbm == run.hbm
    traced = flashsim.trace(loads, Q, K, V, head=1, **twice)
    assert "times 2" in traced.about.options
    ranges: dict[str, Any] = {"blocks": [(4, 5)], "times": [1, 2]}
    swept = flashsim.sweep(loads, **lengths, heads=2, M=200, **ranges)
    assert [row["K_reads_elements"] for row in swept.rows] == [K_once, K_once * 3 // 2]
    tuned_once = tune(**lengths, M=200, algorithms=[loads]).by_loops
    tuned_twice = tune(**lengths, M=200, algorithms=[loads], times=2).by_loops  # type: ignore[call-arg]
    mine = "loads.py:two_sweeps"
    assert tuned_once[mine].accesses < tuned_twice[mine].accesses
    assert tuned_once["flash"] == tuned_twice["flash"]
    for call in (
        lambda **own: flashsim.forward(loads, Q, K, V, **own),
        lambda **own: flashsim.count(loads, **lengths, **own),
        lambda **own: flashsim.trace(loads, Q, K, V, head=0, **own),
        lambda **own: flashsim.sweep(loads, **lengths, **own),
        lambda **own: tune(**lengths, algorithms=[loads], **own),
    ):
        with pytest.raises(TypeError, match="takes no argument 'time'; did you mean 'times'"):
            call(time=2)
        with pytest.raises(ValueError, match="takes no option splits; 'split_kv' does"):
            call(splits=2)


def test_a_form_that_does_not_know_an_option_says_nothing_of_it(tmp_path: Path) -> None:
    loads = module_of(SKIPPING + FORM, tmp_path / "loads.py")
    sys.modules["loads"] = loads
    loads.two_sweeps.__module__ = "loads"
    try:
        with pytest.raises(
            theory.NoClosedForm, match="has no option kind, times; expected it in its `options`"
        ):
            theory.form_of(algorithm_of(loads.two_sweeps), "forward")

        tuned = tune(N=20, d=4, M=200, algorithms=[loads.two_sweeps], times=3)  # type: ignore[call-arg]
        assert tuned.by_loops["loads.py:two_sweeps"].accesses > tuned.by_loops["q_outer"].accesses
    finally:
        del sys.modules["loads"]


def test_options_have_names_of_their_own() -> None:
    """Whatever flashsim's functions take themselves could not be given to the user's."""
    for function in (flashsim.forward, flashsim.count, tune, flashsim.sweep, flashsim.trace):
        duration = inspect.signature(function).parameters.values()
        assert {each.name for each in duration if each.kind is not each.VAR_KEYWORD} <= ARGUMENTS, (
            function
        )
    for text, message in (
        ("M=3", "an option 'M', which is an arg"),
        ("w", r"options with a default"),
        ("**w", r"V, blocks, w\)"),
    ):
        scope: dict[str, Any] = {}
        exec(f"def f(hbm, sram, Q, K, V, blocks, {text}): ...", scope)
        with pytest.raises(ValueError, match=message):
            flashsim.count(scope["f"], N=5, d=2)


def test_a_record_goes_where_its_name_does() -> None:
    mine = replace(FORWARD["flash"], name="mine")
    run = flashsim.forward(mine, Q, K, V, M=100)
    assert run.algorithm == "mine"
    theirs = flashsim.forward("flash", Q, K, V, M=100)
    assert np.array_equal(run.O, theirs.O)
    back = replace(BACKWARD["flash"], name="my backward", of="mine")
    dO = rng.normal(size=run.O.shape)
    theirs = flashsim.backward("flash", theirs, dO)
    assert np.array_equal(flashsim.backward(back, run, dO).dQ, theirs.dQ)
    assert resolve(mine, "forward") is mine
    with pytest.raises(
        ValueError, match="'my backward' is a backward pass; expected a forward pass"
    ):
        flashsim.forward(back, Q, K, V)


def with_a_statistic(
    hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks, *parts: Any
) -> Any:
    """Algorithm 2, which keeps each row's sum of Q besides, `weight` times."""
    *parts_of_flash, weight = parts
    q_sums = hbm.empty("q_sums", (Q.shape[0], 1), sram.dtype)
    for i in sram.loop(len(Q)):
        Q_i = sram.load(Q[i])
        q_i = sram.on_chip(weight * rowsum(Q_i))
        sram.store(q_sums[i], q_i)
    return variants()["flash"].run(hbm, sram, Q, K, V, blocks, *parts_of_flash)


SEEN: list[Any] = []


def and_its_gradients(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    l: Matrix,
    m: Matrix,
    q_sums: Matrix,
    blocks: Blocks,
    *parts: Any,
) -> Any:
    q_0 = sram.load(q_sums[0])
    SEEN.append(np.array(q_0) if hbm.arithmetic else q_0.shape)
    return BACKWARD["flash"].run(hbm, sram, Q, K, V, O, dO, l, m, blocks, *parts)


def whole_number(value: Any) -> int:
    return check_count("weight", value)


FORTH = replace(
    FORWARD["flash"],
    name="forth",
    run=with_a_statistic,
    parts=("tau", "MASK", "dropout", "sink", "weight"),
    options=(Option("weight", 2, whole_number, "by what row sums are multiplied"),),
    matrices={"q_sums": Kind("N_q", "1", "chip")},
    saves=("R", "q_sums"),
)
OF_BACK = (*BACKWARD["flash"].operands, "q_sums")
BACK = replace(
    BACKWARD["flash"],
    name="back",
    of=FORTH,
    run=and_its_gradients,
    operands=OF_BACK,
    matrices=FORTH.matrices,
)


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
def test_a_record_brings_its_backward_pass_its_options_and_its_kinds_of_matrices(gqa: str) -> None:
    options: Arguments = {"causal": True, "gqa": gqa, "M": 200, "blocks": (3, 4)}
    own: Arguments = {"weight": 5}
    four_heads = np.concatenate([Q, Q])
    run = flashsim.forward(FORTH, four_heads, K, V, **own, **options)
    theirs = flashsim.forward("flash", four_heads, K, V, **options)
    dO = rng.normal(size=run.O.shape)
    mine = flashsim.backward(BACK, run, dO)
    want = flashsim.backward("flash", theirs, dO)
    assert np.array_equal(mine.dQ, want.dQ)
    assert np.array_equal(mine.dK, want.dK)
    assert np.array_equal(mine.dV, want.dV)
    sums = Q.sum(axis=-1, keepdims=True)  # of heads 2 and 3; grouped, their rows take turns
    last_sums = sums[1] if gqa == "separate" else np.stack(sums, axis=1).reshape(-1, 1)
    assert np.allclose(SEEN[-1], 5 * last_sums)
    sizes: Arguments = {
        "N_q": 9,
        "N_k": 11,
        "d": 4,
        "d_v": 3,
        "heads": 4,
        "kv_heads": 2,
        "dtype": "float64",
    }
    back = flashsim.count(BACK, **sizes, **options, **own, direction="backward")
    assert back.hbm == mine.hbm
    assert flashsim.count(FORTH, **sizes, **options, **own).hbm == run.hbm
    tiles: Arguments = {"blocks": (3, 4), "M": 200}
    traced = flashsim.trace(BACK, Q, K, V, dO=dO[:2], head=1, weight=3, **tiles)
    assert traced.about.direction == "backward"
    assert "weight 3" in traced.about.options


def test_what_is_returned_besides_reaches_the_backward_pass_too() -> None:
    def returning_it(hbm: HBM, *rest: Any) -> Any:
        return *with_a_statistic(hbm, *rest), hbm.matrix("q_sums")

    returns = ("O", "l", "m", "q_sums")
    forth = replace(FORTH, run=returning_it, returns=returns, saves=("R",))
    run = flashsim.forward(forth, Q, K, V)
    flashsim.backward(replace(BACK, of=forth), run, np.ones_like(run.O))
    last_sums = Q[1].sum(axis=1, keepdims=True)
    assert np.allclose(SEEN[-1], 2 * last_sums)


def test_what_a_record_lacks_is_told() -> None:
    for weight, text in (
        (0, "weight is 0; expected at least 1"),
        (None, "weight is None; expected a whole number"),
    ):
        with pytest.raises(ValueError, match=text):
            flashsim.forward(FORTH, Q, K, V, weight=weight)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match="forward takes no argument 'wieght'; did you mean 'weight'"
    ):
        flashsim.forward(FORTH, Q, K, V, wieght=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="forward takes no argument 'weight'"):
        flashsim.forward("flash", Q, K, V, weight=2)  # type: ignore[call-arg]
    run = flashsim.forward(replace(FORTH, saves=("R",)), Q, K, V)
    with pytest.raises(
        MemoryModelError, match=r"'back' .* takes q_sums, which 'forth' neither returned nor saved"
    ):
        flashsim.backward(BACK, run, rng.normal(size=run.O.shape))
    without_kinds = replace(BACK, matrices={})
    with pytest.raises(
        ValueError, match=r"the shape of q_sums is not known; .* matrices=\{'q_sums': Kind"
    ):
        flashsim.count(without_kinds, N=8, d=4, direction="backward")
    of_nothing = replace(BACK, of="nosuch")
    with pytest.raises(
        ValueError, match="'back' is the backward pass of 'nosuch', which is not known"
    ):
        flashsim.trace(of_nothing, Q[0], K[0], V[0], dO=np.ones((9, 3)))
    with pytest.raises(
        ValueError, match="'forth' has the part 'weight'; expected one of tau, MASK"
    ):
        replace(FORTH, options=())
    with pytest.raises(ValueError, match="'back' is a backward pass without the part 'tau'"):
        replace(BACK, parts=("MASK", "dropout"))


def test_a_record_says_where_its_function_stands() -> None:
    code = two_sweeps.__code__
    assert algorithm_of(two_sweeps).site == (code.co_filename, code.co_firstlineno)
    assert FORTH.site == (__file__, with_a_statistic.__code__.co_firstlineno)


def test_a_run_can_be_pickled() -> None:
    run = flashsim.forward("split_kv", Q, K, V, splits=2)
    run = pickle.loads(pickle.dumps(run))
    assert run.plan.program is FORWARD["split_kv"]
    assert run.O.shape == (2, 9, 3)


@pytest.mark.parametrize("traffic", ["    traffic=traffic,\n", ""])
def test_a_form_of_ones_own_equals_the_count(traffic: str, tmp_path: Path) -> None:
    form = module_of(
        TWO_SWEEPS + FORM.replace("    traffic=traffic,\n", traffic), tmp_path / "formed.py"
    ).FORM
    options: Arguments = {"N_q": 9, "N_k": 11, "d": 4, "d_v": 3, "blocks": (4, 5)}
    assert theory.exact(form, **options).hbm == flashsim.count(two_sweeps, **options).hbm


def test_what_is_no_algorithm_is_refused() -> None:
    with pytest.raises(
        ValueError, match=re.escape("dropout_p); expected f(hbm, sram, Q, K, V, blocks)")
    ):
        algorithm_of(attention)
    with pytest.raises(ValueError, match="unknown algorithm 3"):
        flashsim.forward(3, Q, K, V)  # type: ignore[arg-type]
    for builtin in (int, dict, type):
        with pytest.raises(
            ValueError,
            match=rf"{builtin.__name__} does not say what it takes; expected f\(hbm, sram",
        ):
            flashsim.count(builtin, N=8, d=4)


def test_a_log_sum_exp_is_taken_from_what_is_returned_and_not_from_what_has_its_name() -> None:
    def keeps_L(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks) -> Any:
        hbm.full("L", (1, 1), 7.0, sram.dtype)
        return two_sweeps(hbm, sram, Q, K, V, blocks)  # type: ignore[no-untyped-call]

    run = flashsim.forward(keeps_L, Q, K, V, blocks=(4, 5), M=200)
    assert run.lse is None


HEAD = """import numpy as np
from flashsim.algorithms.notation import exp

def mine(hbm, sram, Q, K, V, blocks):
    on_chip = sram.on_chip
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    for i in sram.loop(blocks.T_r):
        Q_i, K_0, V_0 = sram.load(Q[i], K[0], V[0])
"""
TURNS = "sram.loop takes a number of turns, such as blocks.T_c, or a range"
MISTAKES = {
    "forgot to load": (
        "S = on_chip(Q[i] @ K_0.T)",
        "Q[0] (4×4) is in HBM. To compute with it, bring a block on chip: sram.load(Q[0]). To look",
    ),
    "forgot on_chip": (
        "sram.store(O[i], Q_i[:, :3] * 2)",
        "is not on chip. It was never registered with on_chip",
    ),
    "stored too little": (
        "S = on_chip(V_0[:1] * 2); sram.store(O[i], S)",
        "a 1×3 tile cannot be stored to O[0], which is 4×3",
    ),
    "a block of the wrong size": (
        "S = on_chip(exp(Q_i @ K_0.T)); O_i = on_chip(S @ V_0); sram.store(O.divide(2)[i], O_i)",
        "a 4×3 tile cannot be stored to O[0], which is 2×3",
    ),
    "a matrix for a block": (
        "Q_i = sram.load(Q)",
        "sram.load takes blocks in HBM such as K[j]; got <Q in HBM, 9×4",
    ),
    "assigned": ("O[i] = Q_i", "O[0] is in HBM: write to it with sram.store(O[0], …)"),
    "stored to an array": (
        "sram.store(Q_i, Q_i)",
        "sram.store writes to a block in HBM such as O[i]; got a 4×4 array",
    ),
    "part of a block": (
        "sram.load(K[0][:2])",
        "K[0] (5×4) is in HBM. To compute with it, bring a block on chip: sram.load(K[0]). To look",
    ),
    "rows for a block": (
        "sram.load(K[0:2])",
        "K[slice(0, 2, None)]: expected a block's number, as K[0], or two",
    ),
    "a half for a block": ("sram.load(K[0.5])", "K[0.5]: expected a block's number"),
    "half a block": (
        "Q.divide(2.5)",
        "Q.divide(rows=2.5, cols=None): expected whole numbers of at least 1",
    ),
    "nothing loaded": ("sram.load()", "sram.load takes blocks in HBM such as K[j]; got none"),
    "a loop over blocks": ("list(sram.loop(K))", f"{TURNS}; got <K"),
    "a loop of -1 turns": ("list(sram.loop(-1))", f"{TURNS}; got -1"),
    "a length for a shape": (
        "hbm.empty('l', 9, V.dtype)",
        "the shape of l is 9; expected (rows, columns)",
    ),
    "a length for registers": (
        "sram.full(4, 0.0)",
        "sram.full takes a shape such as (B_r, 1); got 4",
    ),
    "another type": (
        "on_chip(Q_i.astype('f2'))",
        "which computes in float64: expected numbers of sram.dtype",
    ),
    "one block too many": ("sram.load(Q[i + 3])", "Q[3]: Q has 3 × 1 blocks, counted from 0"),
}


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (
            "",
            (
                "'mine.py:mine' (mine) returned None; expected (O) or (O, L) or (O, l, m), "
                "matrices in HBM"
            ),
        ),
        ("    return Q_i\n", "returned an array; expected (O)"),
        ("    return K\n", "returned K; expected (O)"),
        (
            "    return O\n",
            "'mine.py:mine' returned an O with NaN in it: rows of it were never stored",
        ),
        (
            (
                "    L = hbm.empty('L', (Q.shape[0], 1), V.dtype)\n    return hbm.full('O2', "
                "O.shape, 0.0, V.dtype), L\n"
            ),
            "returned (O2, L); expected (O)",
        ),
        (
            (
                "        sram.store(O[i], sram.full(O[i].shape, 0.0))\n    return O, "
                "hbm.empty('L', (9, 1), V.dtype)\n"
            ),
            "returned an L with NaN in it: rows of it were never stored",
        ),
        (
            "    return O, hbm.full('L', (9, 2), 0.0, V.dtype)\n",
            "returned L of shape (9, 2); expected (9, 1)",
        ),
        (
            "    return type(hbm)().full('O', O.shape, 0.0, V.dtype)\n",
            (
                "returned an O of another HBM; expected one that was made in the hbm it was called "
                "with"
            ),
        ),
    ],
)
def test_what_comes_back_is_checked(end: str, text: str, tmp_path: Path) -> None:
    mine = module_of(HEAD + end, tmp_path / "mine.py").mine
    with pytest.raises(MemoryModelError, match=re.escape(text)):
        flashsim.forward(mine, Q, K, V, blocks=(4, 5), M=200)


WHERE_NAN_BEGINS = {
    "made of what was evicted": (
        "l_i = on_chip(1 * Q_i); sram.evict(l_i); l_i = on_chip(l_i + Q_i)",
        (
            "it begins in l_i, made of a tile that was evicted at the end of its turn (on_chip(…, "
            "over=tile) keeps that tile)"
        ),
    ),
    "loaded before it was stored": (
        "sram.load(O[i])",
        "it begins in O[0], which is loaded before it was stored",
    ),
    "too large": (
        "S = on_chip(exp(1e4 * abs(Q_i)) * 0)",
        "it begins in S, made of a tile that was evicted",
    ),
}
NOT_COUNTED = {
    "dot": (
        "np.dot(Q_i, K_0.T)",
        "np.dot cannot be counted on shapes alone: expected +, −, ×, /, @",
    ),
    "copy": ("Q_i.copy()", "an array's .copy cannot be counted on shapes alone"),
    "assigned to": ("Q_i[:] = 0", "an array's [...] = cannot be counted on shapes alone"),
    "as an array": ("np.asarray(Q_i)", "np.asarray(tile) cannot be counted on shapes alone"),
    "a row": ("Q_i[0]", "an array's [0] cannot be counted on shapes alone"),
}
DECIDING = {
    "1 if Q_i.max() > 0 else 2": "a branch, such as `if tile.max() > 0`,",
    "not Q_i": "a branch, such as `if tile.max() > 0`,",
    "Q_i.max() in [1, 2]": "a branch, such as `if tile.max() > 0`,",
    "float(Q_i.max())": "float(tile)",
    "int(Q_i.max())": "int(tile)",
    "round(Q_i.max())": "round(tile)",
    "np.float64(0) + float(abs(Q_i).max())": "float(tile)",
    "range(Q_i.max())": "a tile as a whole number, as an index or in range(…),",
    "[1, 2, 3][Q_i.max()]": "a tile as a whole number, as an index or in range(…),",
    "[row for row in Q_i]": "a loop over a tile's rows or numbers",
    "max(Q_i.max())": "a loop over a tile's rows or numbers",
    "0 in Q_i": "`in` a tile",
    "Q_i.any()": "an array's .any",
    "np.isnan(Q_i).all()": "an array's .all",
    "np.any(Q_i > 0)": "np.any",
    "np.allclose(Q_i, 0)": "np.allclose",
    "Q_i.max().item()": "an array's .item",
    "Q_i.argmax()": "an array's .argmax",
    "np.nonzero(Q_i)": "np.nonzero",
    "Q_i[Q_i > 0]": "an array's [tile]",
}
TOLD = {**MISTAKES, **WHERE_NAN_BEGINS, **NOT_COUNTED}


@pytest.mark.parametrize("mistake", TOLD)
def test_a_beginners_mistake_is_told_at_its_line(mistake: str, tmp_path: Path) -> None:
    """And where NaN begins, and what cannot be counted."""
    line, text = TOLD[mistake]
    mine = module_of(HEAD + f"        {line}\n    return O\n", tmp_path / "mine.py").mine
    call = (
        partial(flashsim.count, mine, N=9, d=4)
        if mistake in NOT_COUNTED
        else partial(flashsim.forward, mine, Q, K, V)
    )
    error = (
        MemoryModelError
        if mistake in WHERE_NAN_BEGINS
        else TypeError
        if mistake in NOT_COUNTED
        else Exception
    )
    with np.errstate(all="ignore"), pytest.raises(error, match=re.escape(text)) as caught:
        call(blocks=(4, 5), M=200)
    assert caught.value.__notes__ == [f"at line 10 of {tmp_path / 'mine.py'}: {line}"]


@pytest.mark.parametrize("how", ["sys.exit(0)", "raise Odd('\\x1b[31m')"])
@pytest.mark.parametrize("command", ["count --algorithm", "sweep", "step --text --algorithm"])
def test_a_function_that_would_end_the_program_ends_in_a_line(
    how: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rude.py"
    first = "import os, sys\nclass Odd(BaseException): pass\n"
    file.write_text(f"{first}{HEAD}        {how}\n    return O\n", encoding="utf-8")
    assert main([*command.split(), f"{file}:mine", "--N", "8", "--d", "4"]) == 2
    out, err = capsys.readouterr()
    kind = {"s": "SystemExit: 0", "r": r"Odd: \x1b[31m"}[how[0]]
    assert (out, err) == (
        "",
        f"flashsim {command.split()[0]}: error: {kind} (at line 12 of {file}: {how})\n",
    )


def test_a_file_that_would_end_the_program_when_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "leaves.py"
    file.write_text("import os\nraise GeneratorExit\n", encoding="utf-8")
    assert main(["count", "--algorithm", f"{file}:mine", "--N", "8", "--d", "4"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"{file}, line 2: " in err


@pytest.mark.parametrize(
    ("how", "command"),
    [
        ("ctypes.string_at(0)", "count --algorithm"),
        ("ctypes.CDLL(None).exit(0)", "sweep"),
        ("ctypes.CDLL(None)._exit(0)", "step --text --algorithm"),
    ],
)
def test_a_function_that_ends_the_process_in_c_is_told(
    how: str, command: str, tmp_path: Path
) -> None:
    file = tmp_path / "rude.py"
    file.write_text(f"import ctypes\n{HEAD}        {how}\n    return O\n", encoding="utf-8")
    arguments = [*command.split(), f"{file}:mine", "--N", "8", "--d", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "flashsim", *arguments], capture_output=True, text=True, check=False
    )
    ended = "SIGSEGV" if "string_at" in how else "exit status 0"
    text = f"flashsim {arguments[0]}: error: {file}:mine ended the process ({ended})\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "text", "status"), [(2, "interrupted", 130), (15, "terminated", 143)]
)
def test_signals_reach_a_function_of_one_s_own_once(
    number: int, text: str, status: int, tmp_path: Path
) -> None:
    """Whether they are sent to the program, or, as by a terminal, to all of its processes."""
    file = tmp_path / "mine.py"
    wait = "print('here', flush=True) or __import__('time').sleep(30)"
    file.write_text(f"{HEAD}        {wait}\n    return O\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "flashsim",
        "count",
        "--algorithm",
        f"{file}:mine",
        "--N",
        "8",
        "--d",
        "4",
        "--blocks",
        "4",
        "4",
    ]
    for send in (os.kill, os.killpg):
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as program:
            assert program.stdout is not None
            assert program.stderr is not None
            assert program.stdout.readline() == "here\n"
            send(program.pid, number)
            assert program.stderr.read().startswith(f"{text} (at line 10 of {file}: ")
        assert program.returncode == status


def test_ctrl_c_is_told_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + "        raise KeyboardInterrupt\n    return O\n", encoding="utf-8")
    assert main(["count", "--algorithm", f"{file}:mine", "--N", "8", "--d", "4"]) == 130
    assert (
        capsys.readouterr().err == f"interrupted (at line 10 of {file}: raise KeyboardInterrupt)\n"
    )


def test_numpy_s_sums_are_counted_as_an_array_s_own(tmp_path: Path) -> None:
    def tally(line: str) -> Any:
        first = "        O_i = sram.full(O[i].shape, 0.0)\n"
        assert first in TWO_SWEEPS
        text = TWO_SWEEPS.replace(first, f"        on_chip({line} * 1)\n{first}").replace(
            "two_sweeps", "mine"
        )
        return flashsim.count(
            module_of(text, tmp_path / "mine.py").mine, N=9, d=4, blocks=(4, 5), M=200
        )

    with pytest.raises(TypeError, match="a sum or a maximum with dtype= or out= cannot be counted"):
        tally("Q_i.sum(1, 'float64', keepdims=True)")
    for name in ("sum", "max"):
        theirs, own = (
            tally(line.format(name))
            for line in ("np.{}(Q_i, axis=1, keepdims=True)", "Q_i.{}(1, keepdims=True)")
        )
        assert (theirs.flops, theirs.sram) == (own.flops, own.sram)


READS = "reads=p.N_q * p.d"
FORM_S = "of Form 'two_sweeps' is None; expected"
FORMS = {
    "no whole number": (
        f"{READS})",
        f"{READS} / 2)",
        "Q has reads=16.0, writes=0, init=0; expected whole",
    ),
    "a name that there is not": (
        "p.N_q * p.d)",
        "p.Nq * p.d)",
        "'OneHead' object has no attribute 'Nq'",
    ),
    "too few parameters": (
        "traffic(p, blocks, tiles)",
        "traffic(p, blocks)",
        "takes 2 positional arguments but 3",
    ),
    "nothing": ("    return {", "    wanted = {", f"the traffic {FORM_S} a dict of p.array(…)"),
    "no peak": ("    return tiles.most", "    tiles.most", f"the peak {FORM_S} a whole number"),
    "no blocks": (
        "(min(rows, d), rows)",
        "rows",
        "line_1 of Form 'two_sweeps' returned 8; expected (B_r, B_c)",
    ),
    "another direction": (
        'direction="forward"',
        'direction="ahead"',
        "direction is 'ahead'; expected 'forward' or",
    ),
}


@pytest.mark.parametrize(("before", "after", "message"), FORMS.values(), ids=list(FORMS))
def test_a_form_of_ones_own_that_goes_wrong(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    assert before in FORM
    text = TWO_SWEEPS + FORM.replace(before, after)
    file = tmp_path / "formed.py"
    with pytest.raises((ValueError, TypeError, AttributeError), match=re.escape(message)) as caught:
        theory.exact(module_of(text, file).FORM, N=8, d=4, M=500, sizing="fit")
    if not isinstance(caught.value, ValueError):
        assert caught.value.__notes__[0].startswith("at line ")


def test_a_formula_with_a_symbol_that_there_is_not() -> None:
    with pytest.raises(
        ValueError, match=r"the formula 'N_q \* w': name 'w' is not defined; expected one in N_q, d"
    ):
        evaluated("N_q * w", {"N_q": 1, "d": 2})
    with pytest.raises(ValueError, match=r"T_c and T_r stand for a mean; expected T_c \* N_q"):
        evaluated("T_c * d", {"T_c": Mean(5, 4), "d": 3})
    with pytest.raises(
        ValueError, match=r"the formula 'N_q / 2': it is 2\.5, no whole number; expected one in N_q"
    ):
        evaluated("N_q / 2", {"N_q": 5})


def queries_outermost(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
    """One's own, with queries outermost: `q_outer`'s loads and stores, and no maximum."""
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q = Q.divide(blocks.B_r)
    K = K.divide(blocks.B_c)
    V = V.divide(blocks.B_c)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        O_i = sram.full((Q_i.shape[0], V.shape[1]), 0.0)
        l_i = sram.full((Q_i.shape[0], 1), 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            P_ij = sram.on_chip(np.exp(Q_i @ K_j.T))
            l_i = sram.on_chip(l_i + rowsum(P_ij), over=l_i)
            O_i = sram.on_chip(O_i + P_ij @ V_j, over=O_i)
        sram.store(O[i], sram.on_chip(O_i / l_i, over=O_i))
    return O


@pytest.mark.parametrize("sizing", ["fit", "paper"])
def test_ones_own_with_queries_outermost_has_line_1_of_queries(sizing: str) -> None:
    """As `tune` finds: not Algorithm 1's proportions, with which K and V would be loaded four
    times as often.
    """
    sizes: Arguments = {"N": 1024, "d": 64, "M": 25_600}
    result = flashsim.count(queries_outermost, **sizes, sizing=sizing)
    own, flashs = (
        flashsim.count(name, **sizes, sizing=sizing).blocks for name in ("q_outer", "flash")
    )
    assert result.blocks.B_r > result.blocks.B_c
    assert result.blocks.B_r >= own.B_r
    keys_first = flashsim.count(
        queries_outermost, **sizes, sizing=Fixed(flashs.B_r, flashs.B_c, enforced=False)
    )
    assert result.hbm.accesses < keys_first.hbm.accesses
    (row,) = flashsim.sweep(queries_outermost, **sizes, sizing=sizing).rows
    assert row["B_r"] == result.blocks.B_r
    assert row["B_c"] == result.blocks.B_c


def test_a_backward_pass_that_is_missing_is_described(tmp_path: Path) -> None:
    run = flashsim.forward(two_sweeps, Q, K, V, M=200)
    dO = np.ones_like(run.O)
    text = (
        r"'two_sweeps\.py:two_sweeps' has no backward pass: its file lacks one, a function g\(hbm, sram, Q, K, V, O, dO, …, "
        r"blocks, tau, …\) that returns dQ, dK, dV, in a record, Algorithm\(.*of='two_sweeps\.py:two_sweeps', run=g, line_1=…\)"
    )
    for call in (
        lambda: flashsim.backward(two_sweeps, run, dO),  # type: ignore[arg-type]
        lambda: flashsim.backward(algorithm_of(two_sweeps), run, dO),
        lambda: flashsim.count(two_sweeps, N=8, d=4, direction="backward"),
        lambda: flashsim.trace(two_sweeps, Q, K, V, head=0, dO=dO),
        lambda: tune(N=8, d=4, direction="backward", algorithms=[two_sweeps]),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    (row,) = flashsim.sweep(two_sweeps, N=8, d=4, direction="backward").rows
    assert re.search(text, str(row["reason"]))
    with pytest.raises(
        ValueError,
        match=r"unknown algorithm 'two_sweeps\.py:two_sweeps'.*; of your own, pass the function itself",
    ):
        flashsim.backward("two_sweeps.py:two_sweeps", run, dO)
    expected = r"expected the run of 'flash', or a backward pass, an Algorithm, of='two_sweeps\.py:two_sweeps'"
    with pytest.raises(ValueError, match=expected):
        flashsim.backward("flash", run, dO)


def test_a_function_stands_for_the_backward_pass_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        from dataclasses import replace
        from flashsim.algorithms import BACKWARD
        from flashsim.algorithms.with_sink import variants
        def attention(hbm, sram, Q, K, V, blocks, tau, MASK, dropout, sink):
            return variants()["flash"].run(hbm, sram, Q, K, V, blocks, tau, MASK, dropout, sink)
        def gradients(hbm, sram, *rest):
            return BACKWARD["flash"].run(hbm, sram, *rest)
        BACK = replace(BACKWARD["flash"], name="back", of="both.py:attention", run=gradients)
    """
    both = module_of(textwrap.dedent(text), tmp_path / "both.py")
    monkeypatch.setitem(sys.modules, "both", both)
    run = flashsim.forward(both.attention, Q, K, V, M=100)
    theirs = flashsim.forward("flash", Q, K, V, M=100)
    dO = np.ones_like(run.O)
    result = flashsim.backward(both.attention, run, dO)
    assert result.algorithm == "back"
    assert np.array_equal(result.dQ, flashsim.backward("flash", theirs, dO).dQ)


@pytest.mark.parametrize("line", DECIDING)
def test_numbers_that_decide_where_to_go_on_are_refused_where_there_are_none(
    line: str, tmp_path: Path
) -> None:
    """Else `float(tile)` was an error of Python's, and a loop over a number, np.full(tile.max(),
    0), did not end.
    """
    mine = module_of(HEAD + f"        {line}\n    return O\n", tmp_path / "mine.py").mine
    text = f"{DECIDING[line]} lets a tile's numbers decide where to go on"
    for call in (
        lambda: flashsim.count(mine, N=9, d=4, blocks=(4, 5), M=200),
        lambda: tune(N=9, d=4, M=200, algorithms=[mine]),
        lambda: flashsim.forward(mine, Q, K, V, sizing="fit", M=200),
    ):
        with pytest.raises(TypeError, match=re.escape(text)) as caught:
            call()
        assert str(caught.value).endswith("flashsim.forward(…, blocks=(B_r, B_c)) runs it as it is")
        assert "\n" not in str(caught.value)
        assert caught.value.__notes__[0] == f"at line 10 of {tmp_path / 'mine.py'}: {line}"


def test_a_tile_s_length_and_how_it_looks_are_no_numbers(tmp_path: Path) -> None:
    first = "        O_i = sram.full(O[i].shape, 0.0)\n"
    assert first in TWO_SWEEPS
    looks = f"        assert len(Q_i) == Q_i.shape[0] and f'{{Q_i.max():.2f}}'\n{first}"
    text = TWO_SWEEPS.replace(first, looks).replace("two_sweeps", "mine")
    assert flashsim.count(
        module_of(text, tmp_path / "looks.py").mine, N=9, d=4, blocks=(4, 5), M=200
    ).hbm.reads


def test_a_program_that_is_not_attention_is_told_from_an_algorithm() -> None:
    with pytest.raises(
        ValueError, match=r"'kernel_x_outer' is a MatrixProgram, not attention; .*run_program runs"
    ):
        flashsim.count(programs()["kernel_x_outer"], N=8, d=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'name'"):
        Algorithm(title="of no name", run=lambda *_: None, line_1=q_outer_blocks)  # type: ignore[arg-type, call-arg]
