"""A learnable sink: what it means, what it moves, its gradient, what L includes; and who refuses
it.
"""

import ast
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import ALiBi, Causal, KeyPadding, Sink, SoftCap, theory
from flashsim.algorithms import (
    BACKWARD,
    FORWARD,
    Algorithm,
    for_sink,
    sink_gradient,
    with_sink,
)
from flashsim.algorithms.own import is_user_defined
from flashsim.algorithms.with_sink import softmax_rows, split_kv_merge, variants
from flashsim.attention.masks.dropout import NoDropout
from flashsim.reference import (
    attention,
    attention_with_statistics,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    of_bound,
    rounding,
    sink_gradient_bound,
)
from flashsim.reference import sink_gradient as oracle_sink_gradient
from flashsim.simulate import tile_masks
from flashsim.theory.form import forms
from flashsim.tracing.listing import label_of
from flashsim.tracing.planting import planted
from tests.helpers.cases import FEW, Arguments, Array, Case, cases, forward_of, room_for, swap

TAKE = [*variants()]
LEARN = [name for name, a in BACKWARD.items() if forward_of(name) in TAKE]
SOME = cases(
    20,
    masks=("none", "causal", "packed entry", "dense"),
    dropouts=(0.0, 0.3),
    regimes=("gaussian", "rising"),
)
LOGITS = (-np.inf, -800.0, -3.0, 0.0, 50.0, 800.0)
rng = np.random.default_rng(0)


def asked(case: Case, s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a run is asked, and what the oracle is told."""
    mask, _ = case.masked()
    sunk = Sink(s) if mask is None else mask & Sink(s)
    options = {"mask": sunk, "dropout_p": case.dropout_p}
    options |= {
        "blocks": (case.B_r, case.B_c),
        "M": 2 * room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k),
    }
    return options, {**case.oracle, "sink": s}


def test_who_takes_a_sink() -> None:
    assert TAKE == ["standard", "flash", "block_sparse", "q_outer", "sliding_window", "split_kv"]
    forward = forms()["forward"].values()
    assert {form.name for form in forward if form.sink is not None} == {*TAKE}
    backward = forms()["backward"].values()
    assert {form.name for form in backward if form.sink_of} == {*LEARN}
    X = rng.normal(size=(6, 4))
    for name in FORWARD.keys() - {*TAKE}:
        text = (
            "has no mask"
            if name == "flash_basic"
            else "takes no sink; expected one of these: 'standard', 'flash'"
        )
        with pytest.raises(ValueError, match=text):
            flashsim.forward(name, X, X, X, mask=Sink(1))
        with pytest.raises(ValueError, match=r"has neither mask|takes no sink"):
            theory.exact(name, N=6, d=4, mask=Sink(1))
    with pytest.raises(
        ValueError, match="merge is 'tree', whose last part is not merged with a sink"
    ):
        flashsim.forward("split_kv", X, X, X, mask=Sink(1), merge="tree")
    with pytest.raises(ValueError, match="merged as a tree, takes no sink"):
        theory.exact("split_kv", N=6, d=4, mask=Sink(1), merge="tree")
    sunk: dict[str, Any] = {"M": 400, "mask": Sink(1)}
    with pytest.raises(ValueError, match="expected a mask that depends on positions alone"):
        flashsim.devices.forward("ring", X, X, X, P=2, **sunk)
    with pytest.raises(ValueError, match="expected a mask that depends on positions alone"):
        flashsim.tune.tune(N=6, d=4, mask=Sink(1))


@pytest.mark.parametrize("name", TAKE)
def test_a_variant_runs_where_there_is_a_sink_and_only_there(name: str) -> None:
    variant = variants()[name]
    assert variant.name == name
    assert not is_user_defined(variant)
    assert for_sink(FORWARD[name]) is for_sink(variant) is variant
    assert "sink" not in FORWARD[name].parts
    X = rng.normal(size=(6, 4))
    for mask, program in ((Causal(), FORWARD[name]), (Causal() & Sink(1), variant)):
        run = flashsim.forward(name, X, X, X, mask=mask, M=200)
        assert run.algorithm == name
        assert run.plan.program is program
        assert not run.plan.is_user_defined
        assert pickle.loads(pickle.dumps(run)).plan.program is program
        tally = flashsim.count(name, N=6, d=4, mask=mask, M=200)
        assert tally.plan.program is program


FIRST_LINES = {
    "standard": "line 2",
    "flash": "line 3",
    "block_sparse": "line 2",
    "q_outer": "line 6",
    "sliding_window": "line 6",
    "split_kv": "line 22",
}
"""The line of each listing in which a softmax begins."""


@pytest.mark.parametrize("name", TAKE)
def test_a_variant_s_listing_is_its_algorithm_s_but_for_the_line_that_begins(name: str) -> None:
    X = rng.normal(size=(6, 4))
    plain = flashsim.trace(name, X, X, X, mask=Causal(), M=200)
    mask = Causal() & Sink(1)
    sunk = flashsim.trace(name, X, X, X, mask=mask, M=200)
    assert sunk.about.title == f"{plain.about.title}, with a sink"
    labels_of_lines = {label_of(line) for line in sunk.about.listing}
    assert {step.label for step in sunk.steps} <= labels_of_lines
    differ = {*plain.about.listing} ^ {*sunk.about.listing}
    labels = [label_of(line) for line in differ if not line.startswith("Require")]
    assert labels == [FIRST_LINES[name]] * 2


class WithoutSink(ast.NodeTransformer):
    """Takes the sink out of a variant's text: ℓ begins at 0, m at −∞, and no weight is kept."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name = node.name.removesuffix("_with_sink")
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        node.args = [each for each in node.args if each.arg not in ("sink", "room")]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_docstring = isinstance(node.value, ast.Constant)
        if is_docstring or ast.unparse(node).startswith("sink.keep("):
            return None
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = node.id.removesuffix("_with_sink")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        return node.left if ast.unparse(node.right) in ("sink.room", "room") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Constant(0.0) if ast.unparse(node) == "sink.l" else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        if name == "sink.m":
            return ast.parse("float('-inf')", mode="eval").body
        self.generic_visit(node)
        if name in ("sink.above", "sink.total"):
            return node.args[0]
        of_sink = ("sink", "sink.room")
        node.args = [each for each in node.args if ast.unparse(each) not in of_sink]
        return node


def texts_of(path: Path) -> dict[str, str]:
    """Return the functions of a file, by name: without docstring and sink, then the labels of
    their lines.
    """
    texts = {}
    whole = path.read_text(encoding="utf-8")
    for node in ast.parse(whole).body:
        if isinstance(node, ast.FunctionDef):
            labels = re.findall(r"# (line \d+)", ast.get_source_segment(whole, node) or "")
            plain = WithoutSink().visit(node)
            texts[plain.name] = f"{ast.unparse(plain)}\n{[label for label, _ in groupby(labels)]}"
    return texts


VARIANTS = sorted(path.name for path in Path(with_sink.__path__[0]).glob("[a-z]*.py"))


@pytest.mark.parametrize("file", VARIANTS)
def test_a_variant_without_its_sink_is_its_algorithm_to_the_letter(file: str) -> None:
    """So what is tested of an algorithm need not be tested of its variant again."""
    folder = Path(with_sink.__path__[0])
    texts = texts_of(folder / file)
    originals = texts_of(folder.parent / file)
    assert bool(texts) == (file != "sliding_window.py")
    for name, text in texts.items():
        original = originals[name]
        if name == "split_kv":  # a variant merges in one way
            original = original.replace("MERGES[merge](", "merge_in_sequence(")
            original = original.replace(", merge: str", "")
        assert text == original


@pytest.mark.parametrize("name", TAKE)
@given(case=SOME, s=st.sampled_from(LOGITS))
@FEW
def test_a_sink_is_a_key_of_value_0_within_rounding_and_counted_as_theory_says(
    name: str, case: Case, s: float
) -> None:
    Q, K, V = case.inputs()
    options, oracle = asked(case, s)
    run = flashsim.forward(name, Q, K, V, **options, seed=case.seed)
    want = attention(Q, K, V, **oracle)
    bound = error_bound(Q, K, V, **rounding(name, run.blocks), **oracle)
    assert of_bound(run.O, want, bound) <= 1
    exact = theory.exact(name, **case.shape, dtype=case.dtype, **options)
    assert (run.hbm, run.sram) == (exact.hbm, exact.sram)


@pytest.mark.parametrize("name", LEARN)
@given(case=SOME, s=st.sampled_from(LOGITS))
@FEW
def test_gradients_are_right_within_rounding_and_counted_as_theory_says(
    name: str, case: Case, s: float
) -> None:
    inputs = (*case.inputs(), case.dO())
    Q, K, V, dO = inputs
    options, oracle = asked(case, s)
    forward_name = forward_of(name)
    run = flashsim.forward(forward_name, Q, K, V, **options, seed=case.seed)
    result = flashsim.backward(name, run, dO)
    rounded = backward_rounding(name, run.blocks, result.blocks)
    bounds = gradient_bounds(*inputs, **rounded, **oracle)
    expected = gradients(*inputs, **oracle)
    for gradient, want, bound in zip(
        (result.dQ, result.dK, result.dV), expected, bounds, strict=True
    ):
        assert of_bound(gradient, want, bound) <= 1
    bound = sink_gradient_bound(*inputs, **rounded, **oracle)
    assert of_bound(result.dsink, oracle_sink_gradient(*inputs, **oracle), bound) <= 1
    arguments = {**case.shape, "dtype": case.dtype, **options}
    exact = theory.exact(name, direction="backward", **arguments)
    tally = flashsim.count(name, direction="backward", **arguments)
    assert result.hbm == tally.hbm == exact.hbm
    assert result.sram == tally.sram == exact.sram


@pytest.mark.parametrize("name", TAKE)
def test_the_difference_from_a_high_sink_is_rounded_and_within_the_bound(name: str) -> None:
    """80 is a multiple of 2⁻¹⁷, its unit in the last place in float32; a score of nearly half of
    one is lost beside it.
    """
    Q = np.array([[1.0]], np.float32)
    K = np.array([[0.49 * 2.0**-17]], np.float32)
    V = np.array([[1.0]], np.float32)
    run = flashsim.forward(name, Q, K, V, mask=Sink(80.0), M=100)
    bound = error_bound(Q, K, V, sink=80.0, **rounding(name, run.blocks))
    part = of_bound(run.O, np.exp(K.astype(float) - 80), bound)
    assert 0.05 < part <= 1, part


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
@pytest.mark.parametrize("name", LEARN)
def test_gradients_are_differences_of_each_head_s_own_logit(name: str, gqa: str) -> None:
    """Of a run itself, in ragged tiles, causal, with a cap; query heads that share a KV head
    have logits of their own.
    """
    Q = rng.normal(size=(4, 5, 3))
    dO = rng.normal(size=(4, 5, 2))
    K = rng.normal(size=(2, 7, 3))
    V = rng.normal(size=(2, 7, 2))
    s = np.array([0.5, -1.0, 2.0, 0.0])
    h = 1e-5
    scores = SoftCap(3.0) if name != "standard" else ALiBi(0.1)

    tiles: Arguments = {"gqa": gqa, "blocks": (3, 2), "M": 300}
    operands = {"Q": Q, "K": K, "V": V, "s": s}

    def run(**changed: Array) -> flashsim.Result:
        inputs = operands | changed
        # whose first query has no key
        mask = Sink(inputs["s"]) & scores & Causal(offset=-1)
        QKV = (inputs["Q"], inputs["K"], inputs["V"])
        return flashsim.forward(forward_of(name), *QKV, mask=mask, **tiles)

    def loss(**changed: Array) -> float:
        return float((run(**changed).O * dO).sum())

    result = flashsim.backward(name, run(), dO)
    assert result.dsink is not None
    assert result.dsink.shape == (4,)
    some_elements = [(0, 0, 0), (1, 4, 1)]
    each_head = [(head,) for head in range(4)]
    gradients_of: list[tuple[str, Array, Any, Any]] = [
        ("Q", Q, result.dQ, some_elements),
        ("K", K, result.dK, some_elements),
        ("V", V, result.dV, some_elements),
        ("s", s, result.dsink, each_head),
    ]
    for operand, X, gradient, indices in gradients_of:
        for index in indices:
            step = np.zeros_like(X)
            step[index] = h
            above = loss(**{operand: X + step})
            below = loss(**{operand: X - step})
            slope = (above - below) / (2 * h)
            assert gradient[index] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", TAKE)
def test_L_includes_the_sink(name: str) -> None:
    """A row without a key has O = 0 and L = s; merged with a state (0, s), what was made without
    a sink is this.
    """
    Q, K, V = rng.normal(size=(3, 2, 6, 3))
    causal = Causal(offset=-2)
    how: Arguments = {"M": 200, "blocks": (4, 3)}
    for s in (0.5, -800.0, 800.0):
        run = flashsim.forward(name, Q, K, V, mask=Sink(s) & causal, **how)
        plain = flashsim.forward(name, Q, K, V, mask=causal, **how)
        allowed = np.tri(6, 6, -2) > 0
        want = attention_with_statistics(Q, K, V, mask=allowed, sink=s)
        assert run.lse is not None
        assert plain.lse is not None
        log_sums = want.m + np.log(want.l)
        assert np.allclose(run.lse, log_sums, rtol=0, atol=1e-12)
        assert (run.lse[:, :2] == s).all()
        assert not run.O[:, :2].any()
        merged = np.logaddexp(plain.lse, s)
        assert np.allclose(run.lse, merged, rtol=0, atol=1e-12)
        rescaled = plain.O * np.exp(plain.lse - run.lse)[..., None]
        assert np.allclose(run.O, rescaled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", TAKE)
def test_a_sink_of_minus_infinity_is_none_bit_for_bit(name: str) -> None:
    X = rng.normal(size=(7, 3))
    for mask in (Causal(), Causal(offset=-3)):
        tiles: Arguments = {"M": 100, "blocks": (3, 2)}
        plain = flashsim.forward(name, X, X, X, mask=mask, **tiles)
        run = flashsim.forward(name, X, X, X, mask=mask & Sink(-np.inf), **tiles)
        assert np.array_equal(run.O, plain.O)
        assert run.lse is not None
        assert plain.lse is not None
        assert np.array_equal(run.lse, plain.lse)


@pytest.mark.parametrize("splits", [1, 2, 3, 5])
def test_a_sink_joins_once_however_many_splits_there_are(splits: int) -> None:
    X = rng.normal(size=(8, 3))
    tiles: Arguments = {"M": 100, "blocks": (3, 2)}
    run = flashsim.forward("split_kv", X, X, X, mask=Sink(1.0), splits=splits, **tiles)
    want = attention(X, X, X, sink=1.0)
    assert np.allclose(run.O, want, rtol=0, atol=1e-12)


def test_what_a_sink_moves() -> None:
    """A word for each row block where statistics begin on chip, one where they begin in HBM; 3
    heads of a group have 3.
    """
    index: dict[str, Any] = {"N": 10, "d": 4, "blocks": (4, 3), "M": 400}
    words_moved = {"q_outer": 3, "split_kv": 3, "flash": 1, "standard": 2}
    for name, words in words_moved.items():
        plain = flashsim.count(name, **index)
        sunk = flashsim.count(name, **index, mask=Sink(1))
        before = plain.hbm.by_array
        more = {}
        for array_name, array in sunk.hbm.by_array.items():
            if before.get(array_name) != array:
                more[array_name] = (array.reads, array.writes)
        want = {"sink": (words, 0)}
        if name == "standard":
            want["P_sink"] = (0, 10)
        assert more == want
        assert plain.flops.matmul == sunk.flops.matmul
    heads: Arguments = {"heads": 6, "kv_heads": 2, "gqa": "grouped"}
    grouped = flashsim.count("q_outer", **index, **heads, mask=Sink(1))
    assert grouped.hbm.by_array["sink"].reads == 2 * 3 * 8  # T_r = ⌈30 / 4⌉
    plain = flashsim.count("q_outer", **index, direction="backward")
    sunk = flashsim.count("q_outer", **index, direction="backward", mask=Sink(1))
    before = plain.hbm.by_array
    added = {}
    for array_name, array in sunk.hbm.by_array.items():
        if array_name in before and array.accesses != before[array_name].accesses:
            added[array_name] = array.accesses - before[array_name].accesses
    assert added == {"O": 40, "dO": 40, "L": 10}
    assert sunk.hbm.by_array["sink"].reads == 1
    assert sunk.hbm.by_array["dsink"].writes == 1
    problem = flashsim.Problem.of(N=10, d=4, M=400, mask=Sink(1))
    of_problem = flashsim.count("q_outer", problem, blocks=(4, 3))
    assert of_problem.hbm.by_array["sink"].reads == 3
    assert problem.in_hbm


def test_what_is_no_sink_is_refused_by_name() -> None:
    X = rng.normal(size=(6, 4))
    refused: list[tuple[str, Callable[[], Any]]] = [
        (
            "Sink's logits are nan; expected −∞, or numbers up to 1e[+]30",
            lambda: Sink(float("nan")),
        ),
        ("Sink's logits are inf; expected", lambda: Sink(np.inf)),
        ("Sink's logits has dtype", lambda: Sink("1")),
        (
            r"Sink's logits array has shape \(2,\); expected",
            lambda: flashsim.forward("flash", X, X, X, mask=Sink([1, 2])),
        ),
        (
            "expected one Sink at most",
            lambda: flashsim.forward("flash", X, X, X, mask=Sink(1) & Sink(2)),
        ),
        (
            "which may differ between heads",
            lambda: flashsim.count(
                "flash",
                flashsim.Problem.of_shape(
                    flashsim.Problem.of(N=4, d=2).shape,
                    (2,),
                    1,
                    np.dtype("float32"),
                    M=100,
                    scale=None,
                    causal=False,
                    mask=Sink([1, 2]),
                    dropout_p=0.0,
                    seed=0,
                    gqa="separate",
                ),
            ),
        ),
    ]
    for text, call in refused:
        with pytest.raises(ValueError, match=text):
            call()
    both = Sink([1, 2]) & Causal() & KeyPadding(3)
    assert repr(both) == "Sink([1.0, 2.0]) & Causal() & KeyPadding(3)"
    assert repr(both.without_sink()) == "Causal() & KeyPadding(3)"
    assert Sink([1, 2]) == Sink([1.0, 2.0]) != Sink(1)
    assert hash(Sink([1, 2])) == hash(Sink([1.0, 2.0]))


@pytest.mark.parametrize("off", ["its sum", "the logit"])
def test_a_gradient_that_is_off_by_a_thousandth_exceeds_its_bound(
    off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = rng.normal(size=(7, 3)).astype(np.float32)
    tiles: Arguments = {"blocks": (5, 4), "M": 200}
    run = flashsim.forward("q_outer", X, X, X, mask=Sink(1.0), **tiles)

    def part() -> float:
        result = flashsim.backward("q_outer", run, X)
        rounded = backward_rounding("q_outer", run.blocks, result.blocks)
        most = sink_gradient_bound(X, X, X, X, sink=1.0, **rounded)
        want = oracle_sink_gradient(X, X, X, X, sink=1.0)
        return of_bound(result.dsink, want, most)

    assert part() < 0.1
    if off == "its sum":
        swap(sink_gradient.sink_gradient, "ds - rowsum", "ds - 1.001 * rowsum", monkeypatch)
    else:
        made = sink_gradient.WEIGHTS["L",]
        monkeypatch.setitem(sink_gradient.WEIGHTS, ("L",), lambda s, L: made(0.999 * s, L))
    assert part() > 1


BEGINNINGS: list[tuple[str, Any, int, str, str]] = [
    (
        "standard",
        softmax_rows.whole_rows,
        200,
        "sink.total(rowsum(P_tilde_i), m_i)",
        "rowsum(P_tilde_i)",
    ),
    ("standard", softmax_rows.long_rows, 8, "sink.l", "0.0"),
    ("standard", softmax_rows.long_rows, 8, "sink.m(S[i, 0])", "0.0"),
    ("flash", None, 200, "sink.l", "0.0"),
    ("flash", None, 200, "sink.m(Q)", "0.0"),
    ("block_sparse", None, 200, "sink.l", "0.0"),
    ("block_sparse", None, 200, "sink.m(Q)", "0.0"),
    ("q_outer", None, 200, "sink.l", "0.0"),
    ("q_outer", None, 200, "sink.m(L[i])", "0.0"),
    ("sliding_window", None, 200, "sink.l", "0.0"),
    ("split_kv", split_kv_merge.merge_in_sequence_with_sink, 200, "sink.l", "0.0"),
    ("split_kv", split_kv_merge.merge_in_sequence_with_sink, 200, "sink.m(m_parts[i, 0])", "0.0"),
]
"""Name, function, M, the text in which a variant begins, and what comes in its place."""


@pytest.mark.parametrize(("name", "within", "M", "before", "after"), BEGINNINGS)
def test_a_variant_that_begins_otherwise_is_noticed(
    name: str, within: Any, M: int, before: str, after: str
) -> None:
    X = rng.normal(size=(6, 2))
    want = attention(X, X, X, sink=0.5)

    def error(variant: Algorithm) -> float:
        tiles: Arguments = {"blocks": (1, 1), "M": M}
        run = flashsim.forward(variant, X, X, X, mask=Sink(0.5), **tiles)
        return float(np.abs(run.O - want).max())

    assert error(variants()[name]) < 1e-12
    assert error(planted(variants()[name], (before, after), within=within)) > 1e-3


def test_a_function_of_one_s_own_has_the_sink_that_it_asks_for() -> None:
    """With none, ℓ begins at 0 and m at −∞; a record that does not ask for it is refused."""

    def mine(
        hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any, tau: Any, MASK: Any, sink: Any
    ) -> Any:
        events.append(sink.l)
        parts = (tau, MASK, NoDropout(), sink)
        return variants()["flash"].run(hbm, sram, Q, K, V, blocks, *parts)

    X = rng.normal(size=(6, 4))
    for mask, l in ((Causal(), 0.0), (Causal() & Sink(0.5), 1.0)):
        events: list[float] = []
        tiles: Arguments = {"M": 200, "blocks": (2, 3)}
        run = flashsim.forward(mine, X, X, X, mask=mask, **tiles)
        assert events[0] == l
        assert run.plan.is_user_defined
        want = flashsim.forward("flash", X, X, X, mask=mask, **tiles)
        assert np.array_equal(run.O, want.O)
        assert run.hbm == want.hbm
    other = replace(FORWARD["flash"], name="other")
    with pytest.raises(ValueError, match=r"'other' .* takes no sink; expected one of these"):
        flashsim.forward(other, X, X, X, mask=Sink(1))


PLANTED: list[tuple[str, Any, str, str]] = [
    (
        "its weight is not in ℓ",
        tile_masks.HeadSink.m,
        "return column",
        "self.l = 0.0; return column",
    ),
    ("heads of a group have the first one's", tile_masks.HeadSink._column, "% self._group", "* 0"),
    (
        "rows are counted from their block",
        tile_masks.HeadSink._column,
        "np.arange(first, end)",
        "np.arange(end - first)",
    ),
    ("the gradient's sign", sink_gradient.sink_gradient, "ds - rowsum", "ds + rowsum"),
    ("the gradient of every row alike", sink_gradient.sink_gradient, "P_sink_i() * ", ""),
]


@pytest.mark.parametrize(
    ("what", "function", "before", "after"), PLANTED, ids=[bug[0] for bug in PLANTED]
)
def test_a_sink_that_is_wrong_is_noticed(
    what: str, function: Any, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Q = rng.normal(size=(2, 7, 3))
    dO = rng.normal(size=(2, 7, 3))
    K = rng.normal(size=(1, 6, 3))
    s = np.array([1.0, -0.5])

    def wrong() -> float:
        tiles: Arguments = {"blocks": (5, 4), "M": 200}
        run = flashsim.forward("q_outer", Q, K, K, mask=Sink(s), gqa="grouped", **tiles)
        result = flashsim.backward("q_outer", run, dO)
        O = attention(Q, K, K, sink=s)
        dsink = oracle_sink_gradient(Q, K, K, dO, sink=s)
        error_of_O = float(np.abs(run.O - O).max())
        error_of_dsink = float(np.abs(result.dsink - dsink).max())
        return max(error_of_O, error_of_dsink)

    assert wrong() < 1e-12
    swap(function, before, after, monkeypatch)
    assert wrong() > 1e-3


@pytest.mark.parametrize(("name", "statistics"), [("flash", 2), ("q_outer", 1), ("standard", 1)])
def test_an_m_too_small_for_the_gradient_of_a_sink_is_refused_before_the_run(
    name: str, statistics: int
) -> None:
    least = 2 + 2 * 7 + statistics
    how: Arguments = {
        "N": 3,
        "d": 1,
        "d_v": 7,
        "mask": Sink(0.5),
        "direction": "backward",
        "blocks": (1, 1),
    }
    with pytest.raises(
        ValueError,
        match=f"too small for the gradient of a sink: with d_v = 7 it needs at least M = {least}",
    ):
        flashsim.count(name, M=least - 1, **how)
    tally = flashsim.count(name, M=least - 1, enforce=False, **how)
    assert tally.sram.peak >= least


def test_the_pass_for_the_gradient_is_counted_for_each_head() -> None:
    X = np.random.default_rng(0).normal(size=(4, 6, 2))
    how: Arguments = {"M": 100, "blocks": (3, 3)}
    run = flashsim.forward("flash", X, X, X, mask=Sink(0.5), **how)
    back = flashsim.backward("flash", run, X, **how)
    sizes: Arguments = {"N": 6, "d": 2, "heads": 4, "dtype": "float64"}
    counted = flashsim.count("flash", mask=Sink(0.5), direction="backward", **sizes, **how)
    assert counted.hbm == back.hbm
