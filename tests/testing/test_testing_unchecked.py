"""What a kernel takes and nothing tries: the verdict is INCOMPLETE, on top, and no check passes
unasked.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import main
from flashsim.testing import Spec, check_attention
from flashsim.testing.kernel import Kernel
from flashsim.testing.problem import Problem
from flashsim.testing.unchecked import NOT_IN_SPECS, undeclared
from tests.helpers.by_pytest import by_pytest

KERNELS = """
import numpy as np

def scores(q, k):
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)

def softmax(s, v):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v

def causal_by_hand(q, k, v, causal=False, block_m=64):
    s = scores(q, k)
    return softmax(np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s, v)

def leaks(q, k, v, causal=False):
    return softmax(scores(q, k), v)

def packed(q, k, v, cu_seqlens_q=None, attn_mask=None):
    return softmax(scores(q, k), v)

def wrong(q, k, v, causal=False):
    return softmax(scores(q, k), v) * q.dtype.type(1.5)

def rows_of_nan(q, k, v, mask=None):
    s = scores(q, k) if mask is None else np.where(mask, scores(q, k), -np.inf)
    with np.errstate(all="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        alive = True if mask is None else np.broadcast_to(mask, s.shape).any(-2)[..., None]
        return p / p.sum(-1, keepdims=True) @ np.where(alive, v, 0)
"""


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KERNELS, encoding="utf-8")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_keyword_that_nothing_tried_is_said_on_top_and_exits_with_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "mine.py:leaks", "--examples", "3"]) == 3
    out = printed(capsys)
    assert out.startswith("INCOMPLETE: leaks takes causal=, and the spec does not declare it.")
    assert (
        "gives a wrong answer, or fails. Give --causal bottom_right or top_left, or in Python "
        "Spec(causal="
    ) in out


def test_the_value_that_a_call_fits_is_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py:causal_by_hand", "--examples", "3"]) == 3
    out = printed(capsys)
    assert "Give --causal top_left, or in Python Spec(causal='top_left')" in out
    assert "bottom_right" not in out
    assert "Only the default of block_m is tried." in out
    assert (
        "on purpose, give --unchecked causal block_m, or in Python Spec(unchecked=('causal', "
        "'block_m'))."
    ) in out


def test_what_is_left_at_its_default_on_purpose_is_not_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["check", "mine.py:causal_by_hand", "--causal", "top_left", "--examples", "3"]
    assert main([*command, "--unchecked", "block_m"]) == 0
    assert "INCOMPLETE" not in printed(capsys)
    assert main(["check", "mine.py:leaks", "--unchecked", "causal", "--examples", "3"]) == 0


def test_what_has_another_name_or_no_word_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py:packed", "--examples", "3"]) == 3
    out = printed(capsys)
    assert "attn_mask (the kit's name is mask)" in out
    assert "cu_seqlens_q (no spec can declare it, see flashsim check --list)" in out


def test_a_failure_counts_for_more_than_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py:wrong", "--examples", "3", "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["complete"], report["undeclared"]) == (False, False, ["causal"])


def test_python_is_warned() -> None:
    def leaks(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ v

    with pytest.warns(UserWarning, match="^INCOMPLETE: .*leaks takes causal="):
        check_attention(leaks, Spec(), max_examples=3)
    check_attention(leaks, Spec(unchecked=("causal",)), max_examples=3)
    check_attention(partial(leaks, causal=False), Spec(), max_examples=3)
    report = check_attention(leaks, Spec(), max_examples=3, on_fail="return")
    assert report.ok
    assert not report.complete
    assert list(undeclared(Kernel(leaks, Spec()))) == ["causal"]


def test_list_says_what_there_is_no_word_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    out = printed(capsys)
    for names, what in NOT_IN_SPECS.items():
        assert names[0] in out
        assert what in out


def test_unchecked_names_parameters() -> None:
    for wrong in ("causal", (3,), [""], np.array(2)):
        with pytest.raises(
            ValueError, match=r"^Spec: unchecked is .*; expected names of parameters"
        ):
            Spec(unchecked=wrong)  # type: ignore[arg-type]
    assert Spec(unchecked=["a", "b"]).unchecked == ("a", "b")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------
# doubtful until confirmed


def pytest_on(file: str) -> tuple[int, str]:
    ran = by_pytest(file, "confirmed or unmodified")
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_doubtful_finding_is_a_failing_test_until_it_is_confirmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--init", "mine.py:rows_of_nan"]) == 0
    assert "Doubtful: empty_rows: a fully masked row gave NaN" in printed(capsys)
    status, out = pytest_on("test_rows_of_nan.py")
    assert (status, "1 failed, 1 passed" in out) == (1, True), out
    assert "empty_rows: a fully masked row gave NaN" in out
    spec = Path("rows_of_nan_spec.py")
    text = spec.read_text(encoding="utf-8")
    spec.write_text(
        text.replace("    'empty_rows': 'a fully masked row gave NaN',\n", ""), encoding="utf-8"
    )
    status, out = pytest_on("test_rows_of_nan.py")
    assert (status, "2 passed" in out) == (0, True), out


@pytest.mark.slow
def test_what_nothing_tries_is_doubtful_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--init", "mine.py:packed"]) == 0
    assert (
        "Doubtful: unchecked: only the default of cu_seqlens_q (no spec can declare it"
        in printed(capsys)
    )
    text = Path("packed_spec.py").read_text(encoding="utf-8")
    assert "unchecked=('cu_seqlens_q', 'attn_mask')" in text
    # so that a test fails, as above
    assert "    'unchecked': \"only the default of cu_seqlens_q" in text


def test_what_is_declared_and_no_call_takes_is_left_out_and_doubtful(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A convention declares what its own function takes, and another function with its names may
    take less.
    """
    assert (
        main(
            [
                "check",
                "--init",
                "mine.py:causal_by_hand",
                "--masks",
                "--gqa",
                "--causal",
                "top_left",
            ]
        )
        == 0
    )
    out = printed(capsys)
    assert "Doubtful: masks: It does not take mask=: it raised TypeError" in out
    assert (
        "Doubtful: gqa: It does not take fewer KV heads (2) than query heads (4): it raised "
        "ValueError"
    ) in out
    text = Path("causal_by_hand_spec.py").read_text(encoding="utf-8")
    assert all(line in text for line in ("causal='top_left'", "masks=False", "gqa=False"))


def test_a_spec_without_doubt_has_no_such_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test's
    Path("plain.py").write_text(
        "from mine import scores, softmax\ndef plain(q, k, v):\n    return softmax(scores(q, k), "
        "v)\n"
    )
    assert main(["check", "--init", "plain.py:plain"]) == 0
    assert "confirmed" not in Path("test_plain.py").read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------------
# no keys, per pass


def no_keys_forward_only(doubled: bool) -> tuple[Any, Any]:
    def forward(q: Any, k: Any, v: Any) -> Any:
        return Problem(q, k, v, Spec()).solution.O.astype(q.dtype)

    def backward(q: Any, k: Any, v: Any, do: Any) -> Any:
        if k.shape[2] == 0:
            raise ValueError("zero-size array")
        problem = Problem(q, k, v, Spec())
        problem.__dict__["dO"] = do
        dq, dk, dv = problem.gradients().exact
        return tuple(a.astype(q.dtype) for a in (dq * problem.tau if doubled else dq, dk, dv))

    return forward, backward


def test_a_backward_pass_that_takes_no_empty_keys_is_told_so_and_checked_without() -> None:
    forward, backward = no_keys_forward_only(doubled=True)
    report = check_attention(
        forward,
        Spec(zero_keys=True),
        checks=["gradients"],
        backward=backward,
        max_examples=60,
        on_fail="return",
    )
    (missed,) = map(str, report.mismatches)
    assert missed.startswith(
        "Its backward function does not take N_k = 0: it raised ValueError: zero-size array"
    )
    assert missed.endswith("Give --zero-keys forward, or in Python Spec(zero_keys='forward').")
    (failure,) = (f for f in report.failures if f.check == "gradients")
    assert "dq is multiplied by the scale twice" in failure.suspicions[0].says


def test_no_keys_may_be_declared_for_the_forward_pass_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    forward, backward = no_keys_forward_only(doubled=False)
    report = check_attention(forward, Spec(zero_keys="forward"), backward=backward, max_examples=40)
    assert report.ok
    Path("half.py").write_text(
        "import numpy as np\nfrom flashsim.testing import Spec\nfrom flashsim.testing.problem "
        "import Problem\n"
        "def half(q, k, v):\n    return Problem(q, k, v, Spec()).solution.O.astype(q.dtype)\n"
        "def half_backward(q, k, v, do):\n"
        "    if not k.shape[2]:\n        raise ValueError('zero-size array')\n"
        "    p = Problem(q, k, v, Spec())\n    p.__dict__['dO'] = do\n"
        "    return tuple(a.astype(q.dtype) for a in p.gradients().exact)\n"
    )
    assert main(["check", "--init", "half.py:half", "--backward", "half.py:half_backward"]) == 0
    assert "zero_keys='forward'" in printed(capsys)
    command = ["check", "half.py:half", "--backward", "half.py:half_backward", "--examples", "15"]
    assert main([*command, "--zero-keys", "forward"]) == 0
    assert main([*command, "--zero-keys"]) == 1
    assert main([*command, "--zero-keys", "--no-zero-keys"]) == 0
