"""`flashsim check`, as a person and as a pipe use it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashsim.cli import main
from flashsim.cli.check import SPEC_OPTIONS
from flashsim.cli.loading import load
from flashsim.testing import CHECKS, Spec

KERNELS = '''
"""A kernel, its declaration, and one that is wrong."""
import numpy as np
from flashsim.testing import Spec

SPEC = Spec(dtypes=("float32",), masks=True)

def attention(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = s if mask is None else np.where(mask, s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(m), m, 0))
    l = p.sum(-1, keepdims=True)
    dead = (p == 0).all(-2)[..., None]
    return p @ np.where(dead, 0, v) / np.where(l == 0, 1, l)

def unscaled(q, k, v, mask=None):
    return attention(q * np.float32(np.sqrt(q.shape[-1])), k, v, mask)
'''


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_kernels.py").write_text(KERNELS, encoding="utf-8")
    yield
    sys.modules.pop("my_kernels", None)


def test_a_right_kernel_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "my_kernels:attention", "--spec", "my_kernels:SPEC", "--examples", "15"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("attention, 15 cases, seed 0\n")
    assert "FAILS" not in out
    assert "log_sum_exp: not checked, the spec declares no lse" in out


@pytest.mark.parametrize("where", ["my_kernels:unscaled", "my_kernels.py:unscaled", "./my_kernels.py:unscaled"])
def test_a_wrong_kernel_fails_with_code_to_see_it_again(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", where, "--examples", "15", "--masks"]) == 1
    out, _ = capsys.readouterr()
    assert "unscaled fails 'oracle'" in out
    assert "The scale is missing" in out
    assert "from my_kernels import unscaled" in out


def test_a_kernel_may_carry_its_own_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "flashsim.testing.mutants:D_omitted", "--examples", "15"]) == 1
    out, _ = capsys.readouterr()
    assert "Spec(dtypes=('float32', 'float16', 'bfloat16'), block=(8, 4), causal='bottom_right'" in out
    assert "D_omitted fails 'gradients'" in out
    assert "backward=D_omitted.backward" in out


def test_options_change_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "check",
        "my_kernels:attention",
        "--spec",
        "my_kernels:SPEC",
        "--examples",
        "5",
        "--no-masks",
        "--C",
        "3",
    ]
    assert main([*command, "--block", "8", "4", "--dtypes", "float32", "float64", "--no-cross"]) == 0
    assert "Spec(dtypes=('float32', 'float64'), block=(8, 4), cross=False, C=3.0)" in capsys.readouterr().out


def test_every_field_of_a_spec_is_an_option() -> None:
    assert set(SPEC_OPTIONS) == set(Spec.__dataclass_fields__)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "my_kernels:unscaled", "--examples", "20", "--check", "oracle", "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["checks"]["oracle"]["failed"] > 0
    assert report["failures"][0]["likely"][0]["says"].startswith("The scale is missing")
    assert report["command"].startswith("flashsim check my_kernels:unscaled")
    assert main(["check", "my_kernels:attention", "--examples", "5", "--json", "report.json"]) == 0
    assert json.loads(Path("report.json").read_text(encoding="utf-8"))["ok"] is True


def test_what_is_expected_to_fail(capsys: pytest.CaptureFixture[str]) -> None:
    poison = ["masked_kv_poison", "backward_poison"]
    leaky = ["check", "flashsim.testing.mutants:nan_in_masked_values", "--examples", "20", "--check", *poison]
    assert main(leaky) == 1
    assert main([*leaky, "--expect", *poison]) == 0
    assert "fails, as expected" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CHECKS)
    assert all(len(line.split()) > 4 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "what is to be checked is missing"),
        (["my_kernels"], "'my_kernels' is not of the form MODULE:FUNCTION"),
        (["my_kernel:attention"], "cannot import my_kernel: ModuleNotFoundError"),
        (["no_file.py:attention"], "there is no file no_file.py"),
        (["my_kernels:attentoin"], "my_kernels has no 'attentoin'"),
        (["my_kernels:SPEC"], "my_kernels:SPEC is of type Spec; expected a function"),
        (["my_kernels:attention", "--spec", "my_kernels:attention"], "expected a flashsim.testing.Spec"),
        (["my_kernels:attention", "--check", "orakel"], "unknown check 'orakel'"),
        (["my_kernels:attention", "--examples", "0"], "--examples: got '0'; expected a whole number"),
        (["my_kernels:attention", "--convention", "sdpa"], "--convention and --device go with --wrap"),
        (["my_kernels:attention", "--expect", "gradients"], "does not apply: no backward="),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("flashsim check: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_package_that_is_missing_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert main(["check", "my_kernels:attention", "--wrap", "jax"]) == 2
    assert "error: argument --wrap: jax needs the package jax: pip install jax\n" in capsys.readouterr().err


def test_a_file_that_does_not_run_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("1 / 0\n", encoding="utf-8")
    assert main(["check", "broken.py:attention"]) == 2
    assert "broken.py, line 1: ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_names_inside_names_are_found() -> None:
    assert load("my_kernels:SPEC.block") == (16, 16)
