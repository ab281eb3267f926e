"""Windows and biases in a spec: a right kernel passes, wrong ones are caught and told."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from flashsim.attention.inputs import Array
from flashsim.testing import Case, Report, Spec, check_attention
from flashsim.testing.conventions import _flash_attn
from flashsim.testing.kernel import Kernel
from flashsim.testing.problem import Problem
from flashsim.testing.regimes import BIASES
from flashsim.testing.survey import survey

SPEC = Spec(
    window="bottom_right", bias=True, causal="bottom_right", masks=True, lse="natural", gqa=True
)


def within(window: tuple[int, int], N_q: int, N_k: int, shift: int) -> Array:
    left, right = window
    apart = np.arange(N_k) - np.arange(N_q)[:, None] - shift
    allowed = np.ones((N_q, N_k), bool)
    if left >= 0:
        allowed &= apart >= -left
    if right >= 0:
        allowed &= apart <= right
    return allowed


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: Any = None,
    mask: Any = None,
    bias: Any = None,
    shift: Callable[[int, int], int] = lambda N_q, N_k: N_k - N_q,
) -> tuple[Array, Array, Array]:
    """Textbook attention, with a window and a bias: O, log-sum-exp and the weights, in float64."""
    group = q.shape[1] // k.shape[1]
    k = np.repeat(k.astype(float), group, axis=1)
    v = np.repeat(v.astype(float), group, axis=1)
    N_q = q.shape[2]
    N_k = k.shape[2]
    ok = np.ones((*q.shape[:3], N_k), bool)
    if causal:
        ok &= np.tri(N_q, N_k, N_k - N_q, dtype=bool)
    if window is not None:
        ok &= within(window, N_q, N_k, shift(N_q, N_k))
    if mask is not None:
        ok &= mask
    S = q.astype(float) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if bias is not None:
        S = S + bias.astype(float)
    S = np.where(ok, S, -np.inf)
    m = S.max(-1, keepdims=True)
    P = np.exp(S - np.where(m == -np.inf, 0, m))
    l = P.sum(-1, keepdims=True)
    P = P / np.where(l == 0, 1, l)
    anyone_sees = np.any(ok, axis=-2)[..., None]
    O = P @ np.where(anyone_sees, v, 0)
    with np.errstate(divide="ignore"):
        lse = (m + np.log(l))[..., 0]
    return O, lse, P


Change = Callable[[dict[str, Any]], dict[str, Any]]


def kernel(change: Change = lambda options: options) -> Any:
    """Return a kernel that takes what SPEC says, and first makes something else of its options."""

    def my_attention(q: Array, k: Array, v: Array, **options: Any) -> Any:
        with np.errstate(invalid="ignore"):
            O, lse, _ = attend(q, k, v, **change(options))
        return O.astype(q.dtype), lse

    return my_attention


def backward(q: Array, k: Array, v: Array, do: Array, **options: Any) -> Any:
    O, _, P = attend(q, k, v, **options)
    group = q.shape[1] // k.shape[1]
    dO = do.astype(float)
    K, V = (np.repeat(a.astype(float), group, axis=1) for a in (k, v))
    alive = np.any(P > 0, axis=-2)[..., None]
    dP = dO @ np.where(alive, V, 0).swapaxes(-1, -2)
    D = (dO * O).sum(-1, keepdims=True)
    dS = P * (dP - D) / np.sqrt(q.shape[-1])
    dq = dS @ np.where(alive, K, 0)
    dk = dS.swapaxes(-1, -2) @ q.astype(float)
    dv = P.swapaxes(-1, -2) @ dO
    by_group = (*k.shape[:2], group)
    dk = dk.reshape(*by_group, *dk.shape[2:]).sum(2)
    dv = dv.reshape(*by_group, *dv.shape[2:]).sum(2)
    return tuple(gradient.astype(q.dtype) for gradient in (dq, dk, dv))


def test_a_right_kernel_with_windows_and_biases_passes() -> None:
    report = check_attention(kernel(), SPEC, backward=backward, max_examples=60)
    assert report.ok
    assert all(tally.tried for tally in report.tallies.values())


def test_they_are_drawn_and_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Case] = []
    monkeypatch.setattr(
        "flashsim.testing.survey.try_check", lambda check, kernel, case, trial: events.append(case)
    )
    survey(Kernel(kernel(), SPEC), 300, 0, ["oracle"])
    assert {case.bias for case in events} == {None, *BIASES}
    windows = {case.window for case in events}
    for window in (None, (0, 0), (3, -1), (-1, 2), (15, 0)):
        assert window in windows
    assert any(case.window and case.bias and case.causal and case.mask for case in events)
    only = Spec(window="bottom_right")
    problem = Case(N_q=7, N_k=3, window=(1, 0)).problem(only)
    assert problem.empty[0, 0].tolist() == [True] * 4 + [False] * 3


@pytest.mark.parametrize("corner", ["bottom_right", "top_left"])
def test_a_window_means_what_the_spec_says(corner: str) -> None:
    spec = Spec(window=corner)
    problem = Case(N_q=2, N_k=5, window=(1, 0)).problem(spec)
    want = {
        "bottom_right": [[2, 3], [3, 4]],
        "top_left": [[0], [0, 1]],
    }[corner]
    keys_of_rows = [np.flatnonzero(row).tolist() for row in problem.allowed[0, 0]]
    assert keys_of_rows == want
    assert problem.options == {"window": (1, 0)}


def changing(name: str, change: Callable[[Any], Any]) -> Change:
    def changed(options: dict[str, Any]) -> dict[str, Any]:
        if options.get(name) is None:
            return options
        return options | {name: change(options[name])}

    return changed


def a_key_more_on_the_left(window: tuple[int, int]) -> tuple[int, int]:
    left, right = window
    return (left + 1 if left >= 0 else left, right)


def a_key_less_on_the_left(window: tuple[int, int]) -> tuple[int, int]:
    left, right = window
    return (max(left - 1, 0) if left >= 0 else -1, right)


BUGS = {
    "`window` is ignored": changing("window", lambda window: None),
    "a key too many on the left": changing("window", a_key_more_on_the_left),
    "a key too few on the left": changing("window", a_key_less_on_the_left),
    "left and right are exchanged": changing("window", lambda w: w[::-1]),
    "left side is used for both": changing("window", lambda w: (w[0], w[0])),
    "aligned at the top left": lambda options: options | {"shift": lambda N_q, N_k: 0},
    "`bias` is ignored": changing("bias", lambda b: None),
    "The bias is subtracted": changing("bias", lambda b: -b),
    "bias of the first head": changing("bias", lambda b: b[:, :1]),
}


@cache
def reported(bug: str) -> Report:
    return check_attention(
        kernel(BUGS[bug]), SPEC, checks=["oracle"], max_examples=60, on_fail="return"
    )


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_wrong_window_or_bias_is_caught_and_told(bug: str) -> None:
    report = reported(bug)
    if report.mismatches:  # one that is ignored is told before
        assert bug.strip("`").partition("`")[0] in str(report.mismatches[0])
        return
    (failure,) = report.failures
    assert [suspicion.says for suspicion in failure.suspicions if bug in suspicion.says], (
        failure.suspicions
    )
    assert bug in failure.suspicions[0].says


def test_a_bias_that_is_scaled_too_is_told() -> None:
    def wrong(q: Array, k: Array, v: Array, bias: Any = None) -> Array:
        if bias is not None:
            bias = bias.astype(float) / np.sqrt(q.shape[-1])
        return attend(q, k, v, bias=bias)[0].astype(q.dtype)

    (failure,) = check_attention(
        wrong, Spec(bias=True), checks=["oracle"], max_examples=80, on_fail="return"
    ).failures
    assert failure.suspicions[0].says.startswith("The bias is added before the scores are scaled")
    assert "bias=bias" in failure.message or failure.finding.case.d > 8


def test_a_failing_window_shrinks_to_a_small_case() -> None:
    case = reported("a key too many on the left").failures[0].finding.case
    assert case.window is not None
    assert (case.bias, case.mask, case.causal) == (None, None, False)
    assert (case.B, case.N_q, case.N_k) <= (1, 2, 3)


def test_empty_rows_are_asked_for_by_what_the_spec_declares() -> None:
    """A kernel without causal attention is not called with it to make an empty row."""
    calls: list[dict[str, Any]] = []

    def my_attention(q: Array, k: Array, v: Array, **options: Any) -> Array:
        calls.append(options)
        return Problem(q, k, v, Spec()).solution.O.astype(q.dtype)

    check_attention(my_attention, Spec(zero_keys=True), checks=["empty_rows"], max_examples=40)
    assert {name for options in calls for name in options} == set()
    only = replace(
        SPEC,
        causal=None,
        masks=False,
        bias=False,
        lse=None,
        gqa=False,
    )

    def windowed(q: Array, k: Array, v: Array, **options: Any) -> Array:
        return attend(q, k, v, **options)[0].astype(q.dtype)

    report = check_attention(windowed, only, checks=["empty_rows"], max_examples=40)
    assert report.tallies["empty_rows"].tried > 5


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: Spec(window=True),  # type: ignore[arg-type]
            "Spec: window is True; expected one of None, 'bottom_right', 'top_left'",
        ),
        (lambda: Spec(bias="yes"), "Spec: bias is 'yes'; expected True or False"),  # type: ignore[arg-type]
        (lambda: Case(window=3), r"Case: window is 3; expected a pair \(left, right\), or None"),  # type: ignore[arg-type]
        (lambda: Case(window=(-2, 0)), "Case: window is -2; expected at least -1"),
        (lambda: Case(bias="slope"), "Case: bias is 'slope'; expected"),
    ],
)
def test_words_that_make_no_sense_are_refused(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_flash_attn_s_word_for_a_window() -> None:
    assert _flash_attn(None, None, window=(3, 0), causal=True) == {
        "window_size": (3, 0),
        "causal": True,
    }
