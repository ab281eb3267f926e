"""Arguments are checked once, by the same functions, wherever they are given."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.algorithms.own import resolve
from flashsim.analysis.tune import tune
from flashsim.attention import arguments as checking
from flashsim.attention.arguments import check_array, check_count, check_scale, short_repr
from flashsim.attention.masks import patterns
from flashsim.attention.masks.dropout import keep_mask
from flashsim.theory.problem import OneHead
from tests.helpers.cases import Arguments

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
HUGE = 10**400


def forward(name: str = "flash", Q: Any = X, K: Any = X, V: Any = X, **options: Any) -> Any:
    return flashsim.forward(name, Q, K, V, **options)


def backward(dO: Any = X, **options: Any) -> Any:
    return flashsim.backward("flash", flashsim.forward("flash", X, X, X), dO, **options)


def count(name: str = "flash", **options: Any) -> Any:
    return flashsim.count(name, **{"N": 6, "d": 4, **options})


def exact(name: str = "flash", **options: Any) -> Any:
    return theory.exact(name, **{"N": 6, "d": 4, **options})


def tuned(**options: Any) -> Any:
    return tune(**{"N": 6, "d": 4, "M": 100, **options})


def trace(name: str = "flash", **options: Any) -> Any:
    return flashsim.trace(name, X, X, X, **options)


RUNS = (forward, trace)
COUNTED = (count, exact)
SIZED = (*COUNTED, tuned)
MASKED = (forward, count)
SPARSE = (forward, count)
OF_TILES: Arguments = {"name": "block_sparse", "blocks": (4, 6)}
HEADS = np.ones((2, 3, 6, 4), np.float32)
OF_HEADS: Arguments = {"Q": HEADS, "K": HEADS, "V": HEADS}
EMPTY = [np.ones(shape, np.float32) for shape in ((0, 4), (6, 0), (0, 6, 4))]
# not on Windows, nor on Arm's macOS
WIDER = bool(np.finfo(np.longdouble).eps < np.finfo(np.float64).eps)
NO_FLOATS: list[Any] = [np.int64, np.complex128, bool, object, *[np.longdouble] * WIDER]
CASES: list[tuple[str, tuple[Callable[..., Any], ...], dict[str, Any]]] = [
    ("N is -5; expected at least 1", SIZED, {"N": -5}),
    ("N is -5; expected at least 1", SIZED, {"N": -5, "N_q": 3, "N_k": 3}),
    ("N is 64.5; expected a whole number", SIZED, {"N": 64.5}),
    ("N_k is True; expected a whole number", SIZED, {"N_k": True}),
    (r"d is 10{5,}\.\.\.0+; expected at most 9,223,372,036,854,775,807", SIZED, {"d": HUGE}),
    ("N_q is 7, and N is 6; expected N alone, or N_q and N_k", SIZED, {"N_q": 7}),
    ("N_k is 7, and N is 6; expected N alone, or N_q and N_k", SIZED, {"N_q": 6, "N_k": 7}),
    ("d_v is 0; expected at least 1", SIZED, {"d_v": 0}),
    ("a length is missing", SIZED, {"N": None, "N_q": 3}),
    ("M is 0; expected at least 1", (*SIZED, *RUNS, backward), {"M": 0}),
    (r"M is 1000.*; expected at most", (*SIZED, *RUNS, backward), {"M": HUGE}),
    ("heads is 3; expected a multiple of kv_heads = 2", COUNTED, {"heads": 3, "kv_heads": 2}),
    ("kv_heads is -1; expected at least 1", COUNTED, {"kv_heads": -1}),
    ("dtype None is not known", SIZED, {"dtype": None}),
    ("dtype void is not supported", SIZED, {"dtype": {}}),
    (r"dtype \['float', 'x'\] is not known", SIZED, {"dtype": ["float", "x"]}),
    (r"direction is \[\]; expected 'forward' or 'backward'", SIZED, {"direction": []}),
    ("causal is 1; expected True or False", (*SIZED, *RUNS), {"causal": 1}),
    (r"dropout_p is 7; expected a number in \[0, 1\)", (*SIZED, *RUNS), {"dropout_p": 7}),
    *[  # where it is more than a float64 holds
        (r"dropout_p is .*; expected a number in \[0, 1\)", (*SIZED, *RUNS), {"dropout_p": almost})
        for almost in (np.nextafter(np.longdouble(1), 0),)
        if float(almost) == 1
    ],
    (
        r"gqa is \['grouped'\]; expected 'separate' or 'grouped'",
        (*COUNTED, *RUNS),
        {"gqa": ["grouped"]},
    ),
    (
        "merge is 'zigzag'; expected 'sequence' or 'tree'",
        (*COUNTED, *RUNS),
        {"name": "split_kv", "merge": "zigzag"},
    ),
    (
        r"merge is \{\}; expected 'sequence' or 'tree'",
        (*COUNTED, *RUNS),
        {"name": "split_kv", "merge": {}},
    ),
    ("splits is -4; expected at least 1", (*COUNTED, *RUNS), {"name": "split_kv", "splits": -4}),
    (
        "splits is 9223372036854775808; expected at most 65,536",
        (*COUNTED, *RUNS),
        {"name": "split_kv", "splits": 2**63},
    ),
    ("blocks, B_r, is -1; expected at least 1", (*COUNTED, *RUNS, backward), {"blocks": (-1, 2)}),
    (r"blocks is 3; expected \(B_r, B_c\)", (*COUNTED, *RUNS, backward), {"blocks": 3}),
    ("sizing 3; known: 'paper', 'fit'", (*COUNTED, *RUNS, backward), {"sizing": 3}),
    (r"sizing \[\]; known: 'paper', 'fit'", (*COUNTED, *RUNS, backward), {"sizing": []}),
    (
        r"block_mask is slice\(None, 3, None\)",
        (*COUNTED, *RUNS),
        {"name": "block_sparse", "block_mask": slice(3)},
    ),
    (
        "block_mask is .*; expected an array: ",
        (*COUNTED, *RUNS),
        {"name": "block_sparse", "block_mask": [[1], [1, 0]]},
    ),
    (
        "block_mask is a masked array",
        (*COUNTED, *RUNS),
        {"name": "block_sparse", "block_mask": np.ma.ones((1, 1))},
    ),
    (
        "block_mask is .*; expected booleans",
        COUNTED,
        {"name": "block_sparse", "block_mask": lambda *T: np.full(T, 2)},
    ),
    (
        "block_mask returned None; expected an array",
        COUNTED,
        {"name": "block_sparse", "block_mask": lambda *T: None},
    ),
    (
        r"mask is a masked array \(numpy.ma\)",
        (*COUNTED, *RUNS),
        {"mask": np.ma.masked_array(np.ones((6, 6), bool))},
    ),
    (
        r"mask is a masked array \(numpy.ma\)",
        (*COUNTED, *RUNS),
        {"mask": [np.ma.masked_array([True] * 6)] * 6},
    ),
    (
        r"mask is \[\[True\], \[True, False\]\]; expected an array",
        (*COUNTED, *RUNS),
        {"mask": [[True], [True, False]]},
    ),
    ("Q is a masked array", (forward,), {"Q": np.ma.masked_array(X)}),
    ("K is a masked array", (forward,), {"K": np.ma.masked_array(X)}),
    ("V is a masked array", (forward,), {"V": np.ma.masked_array(X)}),
    ("dO is a masked array", (backward,), {"dO": np.ma.masked_array(X)}),
    (
        r"V is \[\[1.0\], \[2.0, 3.0\]\]; expected an array: ",
        (forward,),
        {"V": [[1.0], [2.0, 3.0]]},
    ),
    ("dO is .*; expected an array: ", (backward,), {"dO": [[1.0], [2.0, 3.0]]}),
    ("leading axes must be equal", (forward,), {"Q": X[None]}),
    (r"scale is 1000.*; expected a finite number", RUNS, {"scale": HUGE}),
    (
        r"seed is 18446744073709551616; expected a whole number from 0 to 2\*\*64 - 1",
        RUNS,
        {"seed": 2**64},
    ),
    (r"seed is 1000.*; expected a whole number", RUNS, {"seed": HUGE}),
    (
        "observers is 3; expected a sequence of functions",
        (*RUNS, backward, count),
        {"observers": 3},
    ),
    (
        r"observers is \[3\]; expected a sequence of functions",
        (*RUNS, backward, count),
        {"observers": [3]},
    ),
    (
        r"observers is array\(3\); expected a sequence of functions",
        (*RUNS, backward, count),
        {"observers": np.array(3)},
    ),
    (
        "on_head is 3; expected a function that takes 2 arguments, or None",
        (*RUNS, backward),
        {"on_head": 3},
    ),
    (
        "on_head is .*Causal.*; expected a function that takes 2",
        (*RUNS, backward),
        {"on_head": flashsim.Causal},
    ),
    (
        "observers is .*; expected a sequence of functions of an event",
        RUNS,
        {"observers": [lambda: None]},
    ),
    (
        "on_tried is 3; expected a function that takes 2 arguments, or None",
        (tuned,),
        {"on_tried": 3},
    ),
    ("check_finite is 'no'; expected True or False", (forward, backward), {"check_finite": "no"}),
    (r"\[\]", (*COUNTED, *RUNS), {"name": []}),
    ("'flash'.* takes no option splits; 'split_kv' does", (*COUNTED, *RUNS), {"splits": 3}),
    (
        "'flash'.* takes no option block_mask; 'block_sparse' does",
        COUNTED,
        {"block_mask": np.ones((2, 1))},
    ),
    (r"'flsh'.*'standard', 'flash_basic'", (*COUNTED, *RUNS), {"name": "flsh"}),
    # operands
    (r"Q has shape \(6,\); expected \(\.\.\., N, d\)", (forward,), {"Q": X[:, 0]}),
    (r"Q has shape \(6, 4\) and K has shape \(6, 3\).*last axis, d", (forward,), {"K": X[:, :3]}),
    (r"K has shape \(6, 4\) and V has shape \(5, 4\).*N_k", (forward,), {"V": X[:5]}),
    (
        r"K has shape \(1, 6, 4\) and V has shape \(6, 4\); leading axes",
        (forward,),
        {"Q": X[None], "K": X[None]},
    ),
    (
        "must be equal, except the last",
        (forward,),
        {"Q": HEADS[:, :1], "K": HEADS[:1, :1], "V": HEADS[:1, :1]},
    ),
    (
        r"must be equal, except the last: query heads, KV heads",
        (forward,),
        {"Q": HEADS, "K": HEADS[0], "V": HEADS[0]},
    ),
    (
        r"Q has shape \(3, 6, 4\) and K has shape \(2, 6, 4\); expected H_q = 3, .* multiple of H_kv = 2",
        (forward,),
        {"Q": HEADS[0], "K": HEADS[0, :2], "V": HEADS[0, :2]},
    ),
    (
        r"expected H_q = 1, the query heads, to be a multiple of H_kv = 3",
        (forward,),
        {"Q": HEADS[0, :1], "K": HEADS[0], "V": HEADS[0]},
    ),
    ("gqa is None; expected 'separate' or 'grouped'", (*COUNTED, *RUNS), {"gqa": None}),
    ("heads is 6; expected a multiple of kv_heads = 4", COUNTED, {"heads": 6, "kv_heads": 4}),
    ("kv_heads is 0; expected at least 1", COUNTED, {"heads": 6, "kv_heads": 0}),
    *[
        (
            f"Q has shape {re.escape(str(a.shape))}; every axis must be at least 1",
            (forward,),
            {"Q": a},
        )
        for a in EMPTY
    ],
    *[("K has shape", (forward,), {"K": a}) for a in EMPTY],
    *[
        ("V has dtype .*; expected one of float16, bfloat16", (forward,), {"V": X.astype(of)})
        for of in NO_FLOATS
    ],
    ("Q has dtype float32 and K has dtype float64", (forward,), {"K": X.astype(np.float64)}),
    ("layout is 'BSHD'; expected 'BHND' or 'BNHD'", (forward,), {"layout": "BSHD"}),
    (
        r"Q has shape \(6, 4\); expected \(..., N, H, d\), as layout is 'BNHD'",
        (forward,),
        {"layout": "BNHD"},
    ),
    (r"dO has shape \(5, 4\); expected that of O, \(6, 4\)", (backward,), {"dO": X[:5]}),
    (r"dO has shape \(\)", (backward,), {"dO": 1.0}),
    (
        "dO has dtype float64; expected that of O, float32",
        (backward,),
        {"dO": X.astype(np.float64)},
    ),
    ("dO has dtype int64", (backward,), {"dO": X.astype(int)}),
    *[
        (
            rf"dO\[0, 0\] is {bad}; expected finite numbers",
            (backward,),
            {"dO": np.full_like(X, bad)},
        )
        for bad in (np.nan, np.inf)
    ],
    (
        "dO is too large: dP could reach .*float32 ends at .*Scale dO down",
        (backward,),
        {"dO": X * np.float32(1e38)},
    ),
    # sizes and numbers
    *[
        (rf"M is {re.escape(repr(M))}; expected (a whole number|at least 1)", RUNS, {"M": M})
        for M in (-5, 2.5, True, [100])
    ],
    ("M = 3 elements is too small.*at least M = 23", RUNS, {"M": 3}),
    ("M = 3 elements is too small.*at least 4", RUNS, {"M": 3, "sizing": "paper"}),
    (
        "M = 10 elements is too small for 'flash'.*at least M = 37",
        (backward,),
        {"M": 10, "sizing": "fit"},
    ),
    ("B_c.* is -1", RUNS, {"blocks": (4, -1)}),
    (r"expected \(B_r, B_c\)", RUNS, {"blocks": (4,)}),
    ("whole number", RUNS, {"blocks": (1.5, 2)}),
    ("unknown sizing 'best'; known: 'paper', 'fit'", (*RUNS, backward), {"sizing": "best"}),
    *[
        ("scale is .*; expected a finite number", RUNS, {"scale": tau})
        for tau in (np.nan, np.inf, "1", 1j, True)
    ],
    ("heads is 0", COUNTED, {"heads": 0}),
    ("dtype int8 is not supported", SIZED, {"dtype": "int8"}),
    ("dtype 'float7' is not known", SIZED, {"dtype": "float7"}),
    # masks and dropout
    (
        r"mask has shape \(5, 6\); expected one that broadcasts to .* \(6, 6\)",
        MASKED,
        {"mask": np.ones((5, 6), bool)},
    ),
    (r"mask has shape \(2, 6, 6\)", MASKED, {"mask": np.ones((2, 6, 6), bool)}),
    (r"mask has shape \(0, 6\)", MASKED, {"mask": np.ones((0, 6), bool)}),
    ("mask has dtype float64; expected booleans, True = attend", MASKED, {"mask": np.ones((6, 6))}),
    ("mask has dtype int64", MASKED, {"mask": np.zeros((6, 6), int)}),
    (
        "mask is 'causal'; expected booleans, True = attend, or a flashsim.Mask such as",
        MASKED,
        {"mask": "causal"},
    ),
    (
        r"mask is the class Causal; expected an object; call it: Causal\(\)",
        MASKED,
        {"mask": flashsim.Causal},
    ),
    (
        "KeyPadding's lengths run from 7 to 7; expected 0 to N_k = 6",
        MASKED,
        {"mask": flashsim.KeyPadding(7)},
    ),
    ("KeyPadding's lengths run from -1 to -1", MASKED, {"mask": flashsim.KeyPadding(-1)}),
    (
        r"KeyPadding's lengths .* shape \(2,\); expected .* leading axes",
        MASKED,
        {"mask": flashsim.KeyPadding([3, 4])},
    ),
    (
        "KeyPadding's lengths run from 9 to 9",
        MASKED,
        {"mask": flashsim.Causal() & flashsim.KeyPadding(9)},
    ),
    (
        r"mask has shape \(2, 6, 6\); expected .* \(2, 3, 6, 6\)",
        (forward,),
        {**OF_HEADS, "mask": np.ones((2, 6, 6), bool)},
    ),
    (r"lengths .* shape \(2,\)", (forward,), {**OF_HEADS, "mask": flashsim.KeyPadding([1, 2])}),
    *[
        (f"causal is {causal!r}; expected True or False", RUNS, {"causal": causal})
        for causal in ("yes", None, 0.0)
    ],
    *[
        (rf"dropout_p is {p!r}; expected a number in \[0, 1\)", RUNS, {"dropout_p": p})
        for p in (1, 1.0, -0.1, "0.5", True, np.nan, None)
    ],
    *[
        (f"seed is {seed!r}; expected a whole number from 0 to", RUNS, {"seed": seed})
        for seed in (-1, 1.5, True, None)
    ],
    (
        r"shape \(2, 2\); expected \(T_r, T_c\) = \(2, 1\), as B_r = 4 and B_c = 6 divide N_q = 6",
        SPARSE,
        {**OF_TILES, "block_mask": np.ones((2, 2))},
    ),
    (
        r"shape \(3, 3\); expected \(T_r, T_c\) = \(2, 1\)",
        SPARSE,
        {**OF_TILES, "block_mask": lambda *T: np.ones((3, 3))},
    ),
    (
        "expected booleans, or zeros and ones",
        SPARSE,
        {**OF_TILES, "block_mask": np.full((2, 1), 2)},
    ),
    (
        "expected booleans, or zeros and ones",
        SPARSE,
        {**OF_TILES, "block_mask": np.full((2, 1), 0.5)},
    ),
    (
        "block_mask is 'dead'; expected an array, a function",
        SPARSE,
        {**OF_TILES, "block_mask": "dead"},
    ),
    *[
        (
            rf"'{name}'.* takes no option block_mask; 'block_sparse' does",
            RUNS,
            {"name": name, "block_mask": "live"},
        )
        for name, algorithm in FORWARD.items()
        if "block_mask" not in algorithm.parts
    ],
    *[
        (rf"has no {what}; 'flash' \(Algorithm 2\) has", (forward,), {"name": name, **asked})
        for name, algorithm in FORWARD.items()
        if "MASK" not in algorithm.parts
        for what, asked in (
            ("mask", {"causal": True}),
            ("mask", {"mask": flashsim.Causal()}),
            ("dropout", {"dropout_p": 0.1}),
        )
    ],
]


@pytest.mark.parametrize(
    ("message", "call", "options"),
    [
        pytest.param(message, call, options, id=call.__name__)
        for message, calls, options in CASES
        for call in calls
    ],
)
def test_refused(message: str, call: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        call(**options)


def test_observers_and_on_head_are_refused_before_anything_runs() -> None:
    events: list[Any] = []
    for options in (
        {"observers": [events.append], "on_head": 3},
        {"observers": [events.append, 3]},
    ):
        for call in (forward, backward):
            with pytest.raises(ValueError, match=r"observers|on_head"):
                call(**options)
    assert not events


def test_any_byte_order_is_taken() -> None:
    big = X.astype(">f4")
    run = flashsim.forward("standard", big, X, big)
    assert run.O.dtype == np.float32
    np.testing.assert_array_equal(run.O, flashsim.forward("standard", X, X, X).O)
    gradients = flashsim.backward("standard", run, big)
    np.testing.assert_array_equal(gradients.dQ, flashsim.backward("standard", run, X).dQ)
    assert count(dtype=">f4") == count(dtype="float32")
    lengths = np.array(3, ">i8")
    padding = flashsim.KeyPadding(lengths)
    np.testing.assert_array_equal(forward(mask=padding).O, forward(mask=flashsim.KeyPadding(3)).O)


@pytest.mark.parametrize("size", [np.uint8, np.int8, np.int64])
def test_sizes_of_any_integer_type_are_exact(size: Any) -> None:
    inputs: Arguments = {"N": size(100), "d": size(20), "M": size(100), "heads": size(100)}
    options: Arguments = {name: int(n) for name, n in inputs.items()}
    assert exact(**inputs) == exact(**options) == exact("flash", **inputs)
    assert count(**inputs) == count(**options)
    assert theory.matmul_flops(*[size(100)] * 4) == 4 * 100**3
    assert theory.theorem_2_flash(size(100), size(100), size(100)) == 100**3
    assert (
        theory.symbols(
            size(9),
            size(10),
            size(9),
            size(100),
            size(9),
            flashsim.Blocks(1, 10, N_q=size(9), N_k=size(10)),
        )["T_v"]
        == 10
    )
    window = flashsim.SlidingWindow(size(3), size(2))
    causal = flashsim.SlidingWindow(3, 2)
    assert (window.left, window.right) == (3, 2)
    np.testing.assert_array_equal(forward(mask=window).O, forward(mask=causal).O)


@pytest.mark.parametrize("call", [*RUNS, *COUNTED])
def test_an_argument_that_there_is_not_is_told_with_the_nearest_that_there_is(
    call: Callable[..., Any],
) -> None:
    name = "forward" if call in RUNS else call.__name__
    for inputs, expected in (
        ("caual", "; did you mean 'causal'?"),
        ("split", "; did you mean 'splits'?"),
        ("zzz", "$"),
    ):
        with pytest.raises(
            TypeError,
            match=f"{name} takes no argument '{inputs}'{re.escape(expected) if expected != '$' else '$'}",
        ):
            call(**{inputs: True})


def test_names_of_other_packages_and_of_the_commands_are_understood() -> None:
    with pytest.raises(
        TypeError, match=r"forward takes no argument 'attn_mask'; did you mean 'mask'\?$"
    ):
        forward(attn_mask=None)
    with pytest.raises(
        TypeError, match=r"forward takes no argument 'softmax_scale'; did you mean 'scale'\?$"
    ):
        forward(softmax_scale=1.0)
    for call in (count, exact):
        with pytest.raises(
            TypeError, match=r"takes no argument 'backward'; did you mean direction='backward'\?$"
        ):
            call(backward=True)


@pytest.mark.parametrize("call", [forward, backward])
def test_where_tracing_went_is_said(call: Any) -> None:
    text = (
        rf"^{call.__name__} takes no argument 'trace'; flashsim\.trace\(…\) returns a run's trace$"
    )
    with pytest.raises(TypeError, match=text):
        call(trace=True)


@pytest.mark.parametrize("call", [flashsim.count, theory.exact, flashsim.Problem.of])
def test_a_width_that_is_not_given_is_missing(call: Callable[..., Any]) -> None:
    name = () if call == flashsim.Problem.of else ("flash",)
    with pytest.raises(ValueError, match=r"^d is missing: give the head dimension$"):
        call(*name, N=8)


def test_an_option_of_another_algorithm_may_be_left_at_its_default() -> None:
    options: Arguments = {"splits": None, "merge": "sequence", "block_mask": None}
    assert count(**options) == count()
    assert exact(**options) == exact()
    assert np.array_equal(forward(**options).O, forward().O)


def test_a_record_and_its_form_have_the_same_options() -> None:
    by_direction = theory.form.forms().values()
    for form in (form for forms in by_direction for form in forms.values()):
        record = FORWARD[resolve(form.name, form.direction).forward_pass]
        assert [(o.name, o.default, o.check) for o in form.options] == [
            (o.name, o.default, o.check) for o in record.options
        ]


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("N_q is -1", lambda: theory.matmul_flops(-1, 2, 3, 4)),
        ("d is 2.5", lambda: theory.compulsory(1, 2, 2.5, 4)),  # type: ignore[arg-type]
        ("direction is 'up'", lambda: theory.proof_accounting(4, 2, "up")),
        ("no closed form for 'flsh'", lambda: theory.extra_memory("flsh", 1, 2, 3, 4, 5)),
        ("area is 5; expected at most 4", lambda: theory.matmul_flops(2, 2, 3, 4, area=5)),
        ("M is 0", lambda: theory.theorem_2_flash(4, 4, 0)),
        ("M is 0", lambda: theory.theorem_saha_ye(4, 4, 0)),
        (
            "s is nan; expected a fraction from 0 to 1",
            lambda: theory.proposition_4(4, 4, 4, float("nan")),
        ),
        ("s is 1.5", lambda: theory.proposition_4(4, 4, 4, 1.5)),
        ("d is 0", lambda: theory.flash_constants(0)),
        ("c is 0; expected 0 < c ≤ 1", lambda: theory.flash_over_compulsory_constant(4, c=0)),
        ("least.* is 4; expected at least 5", lambda: theory.small_cache_constants(4, 4)),
        (
            r"blocks is \(2, 2\); expected flashsim.Blocks",
            lambda: theory.symbols(4, 4, 4, 4, 4, (2, 2)),  # type: ignore[arg-type]
        ),
        ("SlidingWindow's left is -2; expected at least -1", lambda: flashsim.SlidingWindow(-2, 0)),
        ("SlidingWindow's right is -5", lambda: flashsim.SlidingWindow(0, -5)),
        ("SlidingWindow's left is 1.5", lambda: flashsim.SlidingWindow(1.5, 0)),  # type: ignore[arg-type]
        ("SlidingWindow's left is True", lambda: flashsim.SlidingWindow(True, 0)),
        (
            "KeyPadding's lengths: dtype float64; expected whole numbers",
            lambda: flashsim.KeyPadding(2.5),
        ),
        ("KeyPadding's lengths: dtype bool", lambda: flashsim.KeyPadding(True)),
        ("QueryPadding's lengths: dtype bool", lambda: flashsim.QueryPadding(True)),
        ("Causal's offset: dtype float64; expected whole numbers", lambda: flashsim.Causal(0.5)),
        ("Causal's offset runs from 2305.* to", lambda: flashsim.Causal(2**61 + 1)),
        (
            "SlidingWindow's offset is .*; expected an array",
            lambda: flashsim.SlidingWindow(1, 1, [[1], [1, 2]]),
        ),
        (
            "QueryPadding's lengths run from 7 to 7; expected 0 to N_q = 6",
            lambda: forward(mask=flashsim.QueryPadding(7)),
        ),
        (
            r"Causal's offset has shape \(2,\); expected .* leading axes \(\)",
            lambda: forward(mask=flashsim.Causal([0, 1])),
        ),
        (r"Causal's offset has shape \(2,\)", lambda: count(mask=flashsim.Causal([0, 1]))),
        (
            "KeyPadding's lengths is a masked array",
            lambda: flashsim.KeyPadding(np.ma.masked_array([1, 2])),
        ),
        (
            "KeyPadding's lengths is .*; expected an array",
            lambda: flashsim.KeyPadding([[1], [1, 2]]),
        ),
        ("mask is a masked array", lambda: flashsim.Dense(np.ma.masked_array([True]))),
        ("Tree's parents is a masked array", lambda: flashsim.Tree(np.ma.masked_array([-1, 0]))),
        ("Fixed's B_r is 0", lambda: flashsim.Fixed(0, 1)),
        ("T_r is 0; expected at least 1", lambda: patterns.butterfly(0, 3)),
        ("width is -1; expected at least 0", lambda: patterns.local(4, 4, -1)),
        ("stride is 0; expected at least 1", lambda: patterns.strided(4, 4, 0)),
        ("T_c is 4.0; expected a whole number", lambda: patterns.strided(4, 4.0, 2)),  # type: ignore[arg-type]
        (r"dropout_p is 1.0; expected a number in \[0, 1\)", lambda: keep_mask(0, 1.0, 3, 3)),
        (r"dropout_p is -0.1; expected a number in \[0, 1\)", lambda: keep_mask(0, -0.1, 3, 3)),
        ("dropout_p is nan", lambda: keep_mask(0, float("nan"), 3, 3)),
        ("dropout_p is '0.5'", lambda: keep_mask(0, "0.5", 3, 3)),  # type: ignore[arg-type]
        (
            r"seed is -1; expected a whole number from 0 to 2\*\*64 - 1",
            lambda: keep_mask(-1, 0.5, 3, 3),
        ),
        ("seed is 18446744073709551616", lambda: keep_mask(2**64, 0.5, 3, 3)),
        ("seed is 1.5", lambda: keep_mask(1.5, 0.5, 3, 3)),  # type: ignore[arg-type]
        ("N_q is -4", lambda: OneHead(-4, 3, 3, 3, 9, 4, False, (), False)),
    ],
)
def test_what_is_no_run_is_checked_too(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_policy_of_ones_own_returns_blocks() -> None:
    class Mine(flashsim.Paper):
        returned: Any = False

        def __call__(self, problem: Any) -> Any:
            return self.returned

    with pytest.raises(ValueError, match=r"sizing returned False; expected flashsim\.Blocks"):
        count(sizing=Mine())
    of_others = flashsim.Blocks(2, 99, N_q=9, N_k=99)
    Mine.returned = of_others
    with pytest.raises(
        ValueError,
        match=r"sizing returned .*N_q=9, N_k=99.*; expected blocks of N_q = .*, problem.shape's",
    ):
        count(sizing=Mine())
    N = count().blocks.N_q
    Mine.returned = flashsim.Blocks(2, 99, N_q=N, N_k=N)
    assert count(sizing=Mine()).blocks == count(blocks=(2, 99)).blocks
    with pytest.raises(ValueError, match=r"sizing\.enforced is 3; expected True or False"):
        count(sizing=flashsim.Paper(enforced=3))  # type: ignore[arg-type]


def test_values_are_shown_short_and_never_fail() -> None:
    class Angry:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (
        10**5000,
        Angry(),
        np.zeros((100, 100)),
        "x" * 10_000,
        [[0] * 100] * 100,
        [[-2 / 3] * 9] * 9,
    ):
        assert len(short_repr(value)) <= 160
        assert "\n" not in short_repr(value)
        with pytest.raises(ValueError, match=r"n is .*; expected"):
            check_count("n", value)
    assert len(short_repr([["x" * 50] * 6] * 6)) == 160  # no more is cut than has to be


def test_bounds_of_numbers_are_met() -> None:
    assert check_count("n", checking.LARGEST) == checking.LARGEST
    assert check_scale(-0.0, 4) == 0
    assert check_scale(None, 4) == 0.5
    array = np.arange(3)
    assert check_array("a", array) is array


def test_checks_know_neither_simulator_nor_theory() -> None:
    for module in (checking, flashsim.attention.inputs):
        with open(str(module.__file__)) as file:
            imported = set(re.findall(r"from (flashsim\S*) import", file.read()))
        own = {f"flashsim.attention.{name}" for name in ("arguments", "dlpack", "shapes")}
        assert imported <= own | {"flashsim.support.install", "flashsim.support.sizes"}
