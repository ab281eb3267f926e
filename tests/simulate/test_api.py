"""What goes in and comes out of runs: layouts, limits of number types, what is returned. Bad
arguments: test_checking.py.
"""

import inspect
import pickle
import re
import sys
from dataclasses import FrozenInstanceError, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flashsim
from flashsim import KeyPadding, theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.shapes import Blocks
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.memory.traffic import Traffic
from tests.helpers.cases import Arguments

X = np.ones((6, 4))


def bad(message: str, *qkv: Any, name: str = "flash_basic", **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        flashsim.forward(name, *qkv, **options)


def test_lists_are_taken() -> None:
    run = flashsim.forward("flash_basic", [[1.0]], [[2.0]], [[3.0]])
    assert run.O.tolist() == [[3.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", range(3))
def test_non_finite_input_names_the_first_index(value: float, position: int) -> None:
    arrays = [np.ones((2, 6, 4)) for _ in range(3)]
    arrays[position][1, 3, 2] = arrays[position][1, 5, 0] = value
    bad(rf"{'QKV'[position]}\[1, 3, 2\] is {value}; expected finite numbers", *arrays)


def test_check_finite_can_be_turned_off() -> None:
    V = X.copy()
    V[3, 1] = np.nan
    O = flashsim.forward("flash_basic", X, X, V, check_finite=False).O
    assert np.isnan(O[:, 1]).all()
    assert np.isfinite(O[:, 0]).all()


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
def test_heads_may_come_last_but_one(gqa: str) -> None:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 4, 7, 3))
    K = rng.normal(size=(2, 2, 9, 3))
    V = rng.normal(size=(2, 2, 9, 5))
    dO = rng.normal(size=(2, 4, 7, 5))
    heads_last = [X.swapaxes(1, 2) for X in (Q, K, V)]
    options: Arguments = {"mask": KeyPadding([[4], [9]]), "causal": True, "gqa": gqa}
    want = flashsim.forward("flash", Q, K, V, **options)
    run = flashsim.forward("flash", *heads_last, layout="BNHD", **options)
    assert run.O.shape == (2, 7, 4, 5)
    assert np.array_equal(run.O.swapaxes(1, 2), want.O)
    assert run.lse is not None
    assert run.lse.shape == (2, 4, 7)
    assert run.hbm == want.hbm
    expected = flashsim.backward("flash", want, dO)
    result = flashsim.backward("flash", run, dO.swapaxes(1, 2))
    for name in ("dQ", "dK", "dV"):
        heads_first = getattr(result, name).swapaxes(1, 2)
        assert np.array_equal(heads_first, getattr(expected, name))
    one: Arguments = {"head": (1, 2), "causal": True}
    by_head = flashsim.trace("flash", Q, K, V, dO=dO, **one)
    transposed = flashsim.trace("flash", *heads_last, dO=dO.swapaxes(1, 2), layout="BNHD", **one)
    assert repr(by_head) == repr(transposed)
    for event, other in zip(by_head.events, transposed.events, strict=True):
        np.testing.assert_array_equal(event.value, other.value)


def test_errors_say_whose_order_of_axes_they_speak_of() -> None:
    """Notes say that shapes are heads first, where they are not as they were given."""
    heads = np.ones((6, 2, 4))
    last: Any = {"layout": "BNHD"}
    by_head = np.ones((6, 2, 6), bool)
    run = flashsim.forward("flash", heads, heads, heads, **last)
    calls: dict[str, Any] = {
        r"K has shape \(3, 6, 4\)": lambda: flashsim.forward(
            "flash", heads, np.ones((6, 3, 4)), heads, **last
        ),
        r"K has shape \(2, 0, 4\); every": lambda: flashsim.forward(
            "flash", heads, heads[:0], heads, **last
        ),
        r"mask has shape \(6, 2, 6\)": lambda: flashsim.forward(
            "flash", heads, heads, heads, mask=by_head, **last
        ),
        r"dO has shape \(6, 2, 4\); .* \(2, 6, 4\)": lambda: flashsim.backward(
            "flash", run, np.ones((2, 6, 4))
        ),
        r"dO has shape \(2, 5, 4\); .* \(2, 6, 4\)": lambda: flashsim.trace(
            "flash", heads, heads, heads, dO=heads[1:], **last
        ),
    }
    for text, call in calls.items():
        with pytest.raises(ValueError, match=text) as caught:
            call()
        assert caught.value.__notes__ == [
            "layout is 'BNHD': shapes here are said heads first, (..., H, N, d)"
        ]
    with pytest.raises(
        ValueError, match=r"Q has shape \(6, 4\); expected \(\.\.\., N, H, d\)"
    ) as caught:
        flashsim.forward("flash", X, X, X, **last)
    assert not hasattr(caught.value, "__notes__")


def test_what_does_not_fit_is_counted_where_m_is_not_enforced() -> None:
    options: Arguments = {"M": 30, "blocks": (4, 4)}
    with pytest.raises(flashsim.SramOverflow):
        flashsim.forward("flash", X, X, X, **options)
    run = flashsim.forward("flash", X, X, X, **options, enforce=False)
    assert run.sram.over == run.sram.peak - 30 > 0
    assert f"{run.sram.over} over M = 30" in repr(run)
    for counted in (flashsim.count, theory.exact):
        result = counted("flash", N=6, d=4, dtype="float64", **options, enforce=False)
        assert result.hbm == run.hbm
        assert result.sram == run.sram
        assert result.blocks == run.blocks
    assert flashsim.backward("flash", run, X).sram.over > 0
    with pytest.raises(flashsim.SramOverflow):
        flashsim.backward("flash", run, X, enforce=True)
    with pytest.raises(flashsim.SramOverflow):
        flashsim.count("flash", N=6, d=4, M=30, sizing="paper", enforce=True)
    sparse = flashsim.forward("block_sparse", X, X, X, **options, enforce=False)
    assert not flashsim.backward("block_sparse", sparse, X).sram.enforced
    assert flashsim.backward("block_sparse", sparse, X, M=200, enforce=True).sram.enforced
    no: Any = "no"
    for refused in (flashsim.count, theory.exact):
        with pytest.raises(ValueError, match="enforce is 'no'; expected True or False"):
            refused("flash", N=6, d=4, enforce=no)


def test_m_below_the_least_possible_says_the_least() -> None:
    text = (
        "M = 3 elements is too small.* at N_q = 6, N_k = 6, d = 4, d_v = 4 it needs at least M = 23"
    )
    bad(text, X, X, X, M=3, sizing="fit")
    run = flashsim.forward("flash_basic", X, X, X, M=23, sizing="fit")
    assert run.sram.peak == 23


def test_blocks_that_do_not_fit_overflow() -> None:
    with pytest.raises(flashsim.SramOverflow, match="too many"):
        flashsim.forward("flash_basic", X, X, X, M=24, blocks=(6, 6))
    run = flashsim.forward("flash", X, X, X)
    with pytest.raises(flashsim.SramOverflow, match="too many"):
        flashsim.backward("flash", run, X, M=40, blocks=(6, 6))


def refused(
    message: str, name: str = "flash", run: Any = None, dO: Any = X, **options: Any
) -> None:
    run = flashsim.forward(name, X, X, X) if run is None else run
    with pytest.raises(ValueError, match=message):
        flashsim.backward(name, run, dO, **options)


def test_backward_takes_the_run_of_its_own_forward_pass() -> None:
    refused("run is a ndarray; expected what flashsim.forward\\('flash', …\\) returned", run=X)
    flash = flashsim.forward("flash", X, X, X)
    refused(
        r"run was made by 'flash'; its backward pass is backward\('flash', …\)",
        name="standard",
        run=flash,
    )
    refused("run was made by 'flash_basic'", run=flashsim.forward("flash_basic", X, X, X))
    for name, text in (
        ("flash_basic", "has no backward pass here; these have:"),
        ("flsh", "known:"),
    ):
        refused(
            f"'{name}'.? {text} 'standard', 'flash', 'block_sparse', 'memory_efficient'",
            name=name,
            run=flash,
        )
    with pytest.raises(
        ValueError, match="'flash_basic' has no backward pass here; these have: 'standard', 'flash'"
    ):
        flashsim.count("flash_basic", N=6, d=4, direction="backward")
    with pytest.raises(
        ValueError, match="direction is 'sideways'; expected 'forward' or 'backward'"
    ):
        flashsim.count("flash", N=6, d=4, direction="sideways")


@pytest.mark.parametrize("scale", [1.0, -1e-20, 1e-300, 0.0])
@pytest.mark.parametrize("name", FORWARD)
def test_finite_input_never_gives_nan(name: str, scale: float) -> None:
    """Inputs near the end of the range are refused with a reason, or computed; none comes out as
    NaN.
    """
    refusals = []
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        top = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        kinds = (
            (top, top, 1),
            (1, 1, top),
            (top, 0, top),
            (top**0.5, top**0.49, 1),
            (0, 0, 0),
            (1e-4, 1e-4, 1),
        )
        for q, k, v in kinds:
            Q = np.full((5, 3), q).astype(dtype)
            K = np.full((5, 3), k).astype(dtype)
            V = np.full((5, 3), v).astype(dtype)
            K[::2] *= dtype(-1)
            try:
                run = flashsim.forward(name, Q, K, V, scale=scale)
                results = [run.O]
                if name in BACKWARD:
                    gradients = flashsim.backward(name, run, np.ones_like(V))
                    results += [gradients.dQ, gradients.dK, gradients.dV]
            except ValueError as error:
                refusals.append(str(error))
            else:
                for result in results:
                    assert np.isfinite(result.astype(np.float64)).all()
    assert len(refusals) >= 4
    assert all(re.search(r"too large.*ends at|overflows", refusal) for refusal in refusals)


def test_products_of_q_and_k_that_overflow_before_a_small_scale_are_refused() -> None:
    """τ(QKᵀ) computes QKᵀ first; where τ is folded into Q, as in Algorithms 0 and 1, nothing
    overflows.
    """
    Q = np.full((2, 1), 3e19, np.float32)
    V = np.ones((2, 1), np.float32)
    bad(
        "products of Q and K could reach 9e.38, and float32 ends at 3.4e.38",
        Q,
        Q,
        V,
        name="flash",
        scale=1e-38,
    )
    folded = flashsim.forward("flash_basic", Q, Q, V, scale=1e-38)
    assert np.array_equal(folded.O, V)
    run = flashsim.forward("flash", Q * 0, Q * 1e18, V, scale=1e-38)
    with pytest.raises(
        ValueError, match=r"dO is too large: dP could reach 2 and a sum .*float32 ends at"
    ):
        flashsim.backward("flash", run, V * 2)


def test_standard_attention_refuses_scores_that_overflow_what_s_is_kept_in() -> None:
    Q = np.full((4, 4), 200, np.float16)
    bad("scores could reach .*float16 ends at 6.55e.04", Q, Q, Q, name="standard", scale=1.0)
    tiled = flashsim.forward("flash_basic", Q, Q, Q, scale=1.0)
    assert np.isfinite(tiled.O).all()


def test_what_is_too_large_is_said_to_be_larger_than_what_the_type_holds() -> None:
    """Scores of 48,400 are in float16; of 2·10³⁸ in float32, too, but not the difference of two."""
    Q = np.full((4, 4), 110, np.float16)
    run = flashsim.forward("standard", Q, -Q, Q, scale=1.0)
    assert np.array_equal(run.O, Q)
    Q = np.full((4, 4), np.sqrt(0.5e38), np.float32)
    bad("two scores could be 4e.38 apart, and float32 ends at 3.4e.38", Q, Q, Q, scale=1.0)
    bad(
        "a row of scale · Q could be 1.41e.39 long, and float32 ends at 3.4e.38",
        Q,
        Q * 0,
        Q,
        scale=1e20,
    )


@pytest.mark.parametrize("name", ["flash", "flash_basic"])
def test_a_scale_that_the_chip_s_type_does_not_hold_is_refused(name: str) -> None:
    """It would be ∞ there, and ∞ · 0 NaN."""
    Q = np.zeros((2, 1), np.float32)
    bad(
        r"scale is -1e\+39; expected one that float32 holds, which ends at 3.4e.38",
        Q,
        Q,
        Q + 1,
        name=name,
        scale=-1e39,
    )
    run = flashsim.forward(name, Q, Q, Q + 1, scale=3e38)
    assert np.array_equal(run.O, Q + 1)
    wide = Q.astype(np.float64)
    run = flashsim.forward(name, wide, wide, wide + 1, scale=-1e39)
    assert np.array_equal(run.O, wide + 1)


def test_gradients_that_overflow_float16_are_refused() -> None:
    Q = np.ones((3, 1), np.float16)
    K = np.array([[5e4], [-5e4], [4e4]], np.float16)
    V = np.array([[9.0], [-9.0], [3.0]], np.float16)
    run = flashsim.forward("flash", Q, K, V, scale=1e-5)
    with pytest.raises(
        ValueError, match=r"dQ overflows float16, which ends at 6.55e\+04. Scale dO down"
    ):
        flashsim.backward("flash", run, np.full((3, 1), 6e4, np.float16))
    small_dO = np.full((3, 1), 1e-2, np.float16)
    assert np.isfinite(flashsim.backward("flash", run, small_dO).dQ).all()
    Q = np.zeros((9, 1), np.float16)
    K, V = np.ones((2, 3, 1), np.float16)
    run = flashsim.forward("flash", Q, K, V)
    with pytest.raises(ValueError, match=r"^dV overflows float16"):
        flashsim.backward("flash", run, np.full((9, 1), 6e4, np.float16))


# -------------------------------------------------------------------------------------------------
# what is returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "returned None; expected (O, l, m), matrices in HBM"),
        ("O, l", "returned (O, l); expected (O, l, m), matrices in HBM"),
        ("m, l, O", "returned (m, l, O); expected (O, l, m), matrices in HBM"),
        ("O[0], l, m", "returned (O[0], l, m); expected (O, l, m), matrices in HBM"),
        ("O_i_new, l, m", "returned (an array, l, m); expected (O, l, m), matrices in HBM"),
        (
            'hbm.empty("O2", (3, 3), V.dtype), l, m',
            "returned (O2, l, m); expected (O, l, m), matrices in HBM",
        ),
    ],
)
@pytest.mark.parametrize("arithmetic", [True, False])
def test_what_an_algorithm_returns_is_what_is_taken(
    returned: str, message: str, arithmetic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flash = FORWARD["flash"]
    text = inspect.getsource(sys.modules[flash.run.__module__])
    assert text.count("return O, l, m  # line 19") == 1
    scope: dict[str, Any] = {"__name__": "edited"}
    exec(
        compile(text.replace("return O, l, m  #", f"return {returned}  #"), "edited.py", "exec"),
        scope,
    )
    monkeypatch.setitem(FORWARD, "flash", replace(flash, run=scope["flash"]))
    call = partial(flashsim.count, "flash", N=6, d=4)
    if arithmetic:
        call = partial(flashsim.forward, "flash", X, X, X)
    with pytest.raises(
        MemoryModelError,
        match=re.escape(f"'flash' (Algorithm 2, FlashAttention, complete) {message}"),
    ):
        call()


def test_a_returned_matrix_has_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(
        hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks
    ) -> tuple[Matrix]:
        return (hbm.full("O", (4, 5), 0.0, V.dtype, "output"),)

    monkeypatch.setitem(
        FORWARD, "flash_basic", replace(FORWARD["flash_basic"], run=wide, returns=("O",))
    )
    narrow = np.ones((4, 2))
    with pytest.raises(MemoryModelError, match=r"returned O of shape \(4, 5\); expected \(4, 2\)"):
        flashsim.forward("flash_basic", narrow, narrow, narrow)


def test_a_run_from_a_file_has_its_gradients() -> None:
    """A run's algorithm is known by its name, which a pickle brings back as another string."""
    Q, K, V = np.random.default_rng(0).normal(size=(3, 6, 4))
    run = flashsim.forward("flash", Q, K, V, M=200)
    again = flashsim.backward("flash", pickle.loads(pickle.dumps(run)), V)
    assert np.array_equal(again.dQ, flashsim.backward("flash", run, V).dQ)


def test_policies_are_not_to_be_changed() -> None:
    for policy, name in (
        (flashsim.Fixed(2, 3), "B_r"),
        (flashsim.Paper(), "x"),
        (flashsim.Fit(), "x"),
    ):
        with pytest.raises(FrozenInstanceError):
            setattr(policy, name, 1)


def test_counts_that_differ_by_dtype_alone_say_so() -> None:
    Q, K, V = np.random.default_rng(0).normal(size=(3, 8, 4))
    sizes: Arguments = {"M": 200, "blocks": (4, 4)}
    run = flashsim.forward("flash", Q, K, V, **sizes)
    counted = flashsim.count("flash", N=8, d=4, **sizes).hbm
    with pytest.warns(
        UserWarning,
        match=r"dtypes differ: bytes of an element, Q 4 and 8, K 4 and 8, .*count\(…, dtype=…\)",
    ):
        assert counted != run.hbm
    # as a bug might
    narrow_O = replace(counted.by_array["O"], itemsize=2)
    stored = Traffic({**counted.by_array, "O": narrow_O})
    with pytest.warns(
        UserWarning, match=r"equal, but the dtypes differ: bytes of an element, O 4 and 2$"
    ):
        assert counted != stored
    # of other counts: not a word
    longer = flashsim.count("flash", N=9, d=4, **sizes, dtype=np.float64)
    assert counted != longer.hbm
    in_float64 = flashsim.count("flash", N=8, d=4, **sizes, dtype=np.float64)
    assert in_float64.hbm == run.hbm


@pytest.mark.parametrize(
    ("how", "who"),
    [
        ({}, "fit"),
        ({"sizing": "paper"}, "paper"),
        ({"sizing": "fit"}, "fit"),
        ({"blocks": (4, 4)}, "given"),
        ({"sizing": "fit", "enforce": False}, "fit"),
        ({"sizing": lambda problem: problem.blocks(3)}, "<lambda>"),
    ],
)
def test_results_say_who_chose_their_blocks(how: dict[str, Any], who: str) -> None:
    if callable(how.get("sizing")):
        how["sizing"].enforced = True
    Q = np.ones((16, 4), np.float32)
    run = flashsim.forward("flash", Q, Q, Q, M=200, **how)
    outcome: list[Any] = [
        run,
        flashsim.backward("flash", run, Q, M=400),
        flashsim.count("flash", N=16, d=4, M=200, **how),
    ]
    if who != "<lambda>":
        outcome.append(flashsim.theory.exact("flash", N=16, d=4, M=200, **how))
    for result in outcome:
        assert result.sizing == who
        assert f" ({who}), SRAM peak" in repr(result)
        assert f" ({who}), SRAM peak" in result._repr_html_().replace("&lt;", "<").replace(
            "&gt;", ">"
        )
    assert run.to_dict()["sizing"] == who


def test_what_dropout_divides_by_counts_toward_the_largest_sum() -> None:
    """Three quarters of the weights dropped, the others count fourfold: dV reaches 4N|dO|."""
    one = np.ones((40, 1), "float32")
    zeros = 0 * one
    run = flashsim.forward("flash", one, zeros, zeros, M=100, dropout_p=0.75, seed=1)
    with pytest.raises(ValueError, match=r"dO is too large: dP could reach 0 and a sum 1\.6e\+38"):
        flashsim.backward("flash", run, np.float32(1e36) * one)


def test_results_are_equal_if_they_have_counted_the_same() -> None:
    sizes: Arguments = {"N": 8, "d": 4, "M": 200}
    run = flashsim.count("flash", **sizes, blocks=(4, 4))
    assert run == flashsim.count("flash", **sizes, blocks=(4, 4))
    of_other_blocks = flashsim.count("flash", **sizes, blocks=(4, 2))
    of_another_algorithm = flashsim.count("q_outer", **sizes, blocks=(4, 4))
    changed = (
        {"sram": replace(run.sram, peak=run.sram.peak + 1)},
        {"hbm": run.hbm + run.hbm},
        {"operations": run.flops + run.flops},
        {"plan": of_other_blocks.plan},
        {"plan": of_another_algorithm.plan},
    )
    for fields in changed:
        other: Any = replace(run, **fields)
        assert run != other


def test_on_head_is_called_with_how_many_heads_are_done_and_how_many_there_are() -> None:
    X = np.ones((2, 3, 4, 2))
    calls: list[tuple[int, int]] = []

    def note(*numbers: int) -> None:
        calls.append((numbers[0], numbers[1]))

    run = flashsim.forward("flash", X, X, X, M=100, on_head=note)
    flashsim.backward("flash", run, X, M=100, on_head=note)
    assert calls == [(done, 6) for done in range(1, 7)] * 2


# --------------------------------------------------------------------------------------------------
# blocks that do not fit


def fits(name: str, B_r: int, B_c: int, M: int, direction: str = "forward") -> bool:
    try:
        blocks = (B_r, B_c)
        flashsim.count(name, N=300, d=16, M=M, blocks=blocks, direction=direction)
    except flashsim.SramOverflow:
        return False
    return True


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["flash", "flash_basic", "q_outer"])
def test_an_overflow_says_what_would_fit(name: str, direction: str) -> None:
    if name not in (FORWARD if direction == "forward" else BACKWARD):
        pytest.skip("it has no such pass")
    M = 9_000
    sizes: Arguments = {"N": 300, "d": 16, "M": M, "direction": direction}
    with pytest.raises(flashsim.SramOverflow) as caught:
        flashsim.count(name, blocks=(32, 256), **sizes)
    (note,) = caught.value.__notes__
    text = re.fullmatch(
        r"blocks \(32, 256\) need M = ([\d,]+) in all; with B_r = 32, the largest B_c that "
        r"fits M = 9,000 is (\d+); without blocks, the largest that fit are chosen; "
        r"flashsim tune finds those with the fewest accesses",
        note,
    )
    assert text is not None
    needed = int(text[1].replace(",", ""))
    most = int(text[2])
    assert fits(name, 32, 256, needed, direction)
    assert not fits(name, 32, 256, needed - 1, direction)
    assert fits(name, 32, most, M, direction)
    assert not fits(name, 32, most + 1, M, direction)


def test_an_overflow_of_a_run_and_of_a_single_row_says_what_would_fit() -> None:
    Q = np.random.default_rng(0).normal(size=(40, 16))
    for M, text in ((700, "largest B_c that fits M = 700 is "), (140, "no B_c fits M = 140")):
        with pytest.raises(flashsim.SramOverflow) as caught:
            flashsim.forward("flash", Q, Q, Q, M=M, blocks=(8, 40))
        assert text in caught.value.__notes__[0]
    room: Arguments = {"M": 3_000, "blocks": (8, 40)}
    run = flashsim.forward("flash", Q, Q, Q, **room)
    with pytest.raises(flashsim.SramOverflow) as caught:
        flashsim.backward("flash", run, Q, **room)
    assert "blocks (8, 40) need M = " in caught.value.__notes__[0]
