"""`flashsim check`, as a person and as a pipe use it."""

import ast
import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from flashsim.cli import main
from flashsim.cli.check import EXAMPLES, SPEC_OPTIONS
from flashsim.cli.loading import load
from flashsim.testing import CHECKS, AttentionCheckFailed, Spec
from flashsim.testing.first_tests import first_files
from flashsim.testing.spec_inference import infer
from tests.helpers.by_pytest import by_pytest

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

def with_lse(q, k, v, causal=False):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s
    m = s.max(-1, keepdims=True)
    p = np.exp(s - m)
    l = p.sum(-1, keepdims=True)
    return p @ v / l, (m + np.log(l))[..., 0]

def rows_first(q, k, v):
    return with_lse(*(a.swapaxes(1, 2) for a in (q, k, v)))[0].swapaxes(1, 2)

def deaf(q, k, v, causal=False, is_causal=False):
    return with_lse(q, k, v, is_causal)[0]

def windowed(q, k, v, causal=False, *, scale=None, is_causal=False, window=None, **more):
    return with_lse(q, k, v)[0]

def narrow(q, k, v):
    if q.dtype != np.float32 or q.shape[1] != k.shape[1]:
        raise TypeError("unsupported")
    return with_lse(q, k, v)[0]

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
    assert (
        main(["check", "my_kernels:attention", "--spec", "my_kernels:SPEC", "--examples", "15"])
        == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("attention, 15 cases, seed 0\n")
    assert "FAILS" not in out
    assert "Not checked, because the spec does not declare lse: log_sum_exp," in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    "where", ["my_kernels:unscaled", "my_kernels.py:unscaled", "./my_kernels.py:unscaled"]
)
def test_a_wrong_kernel_fails_with_code_to_see_it_again(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", where, "--examples", "15", "--masks", "--check", "oracle"]) == 1
    out, _ = capsys.readouterr()
    assert "unscaled fails 'oracle'" in out
    assert "The scale is missing" in out
    assert "from my_kernels import unscaled" in out


def test_a_kernel_may_carry_its_own_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = "flashsim.testing.mutants:D_omitted"
    assert main(["check", mutant, "--examples", "15", "--check", "gradients"]) == 1
    out, _ = capsys.readouterr()
    assert (
        "Spec(dtypes=('float32', 'float16', 'bfloat16'), block=(8, 4), causal='bottom_right'" in out
    )
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
    ]
    command += ["--unchecked", "mask"]
    assert (
        main(
            [
                *command,
                "--C",
                "3",
                "--blocks",
                "8",
                "4",
                "--dtypes",
                "float32",
                "float64",
                "--no-cross",
            ]
        )
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "Spec(dtypes=('float32', 'float64'), block=(8, 4), cross=False, unchecked=('mask',), C=3.0)"
        in out
    )
    assert set(SPEC_OPTIONS) == set(Spec.__dataclass_fields__)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["check", "my_kernels:unscaled", "--examples", "20", "--check", "oracle", "--json", "-"]
        )
        == 1
    )
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["checks"]["oracle"]["failed"] > 0
    assert report["failures"][0]["likely"][0]["says"].startswith("The scale is missing")
    assert report["command"].startswith("flashsim check my_kernels:unscaled")
    assert (
        main(
            ["check", "my_kernels:attention", "--masks", "--examples", "5", "--json", "report.json"]
        )
        == 0
    )
    assert json.loads(Path("report.json").read_text(encoding="utf-8"))["ok"] is True


def test_what_is_expected_to_fail(capsys: pytest.CaptureFixture[str]) -> None:
    poison = ["masked_kv_poison"]
    leaky = [
        "check",
        "flashsim.testing.mutants:nan_in_masked_values",
        "--examples",
        "8",
        "--check",
        *poison,
    ]
    assert main([*leaky, "--fail-fast"]) == 1
    assert main([*leaky, "--expect", *poison]) == 0
    assert "fails, as expected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["with_lse"],
            (
                "It returns two arrays, (O, lse). Give --lse natural, or in Python "
                "Spec(lse='natural')."
            ),
        ),
        (["attention", "--lse", "base2"], "It returns O alone. Give no --lse"),
        (
            ["rows_first"],
            "Its arrays are (B, N, H, d). Called as its spec says, it raised ValueError",
        ),
        (
            ["deaf", "--causal", "bottom_right"],
            "It ignores causal=: its answer has the same bits with it and without.",
        ),
        (["attention", "--causal", "top_left"], "It does not take causal=: it raised TypeError"),
        (
            ["narrow", "--gqa"],
            "It does not take fewer KV heads (2) than query heads (4): it raised TypeError",
        ),
        (
            ["narrow", "--dtypes", "float16", "float32"],
            "It does not take float16: it raised TypeError: unsupported",
        ),
        (
            ["narrow", "--dtypes", "float16"],
            "It takes dtypes float32. Called as its spec says, it raised TypeError",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_a_spec_misses_is_said_once(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"my_kernels:{arguments[0]}", *arguments[1:], "--examples", "4"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count(said) == 1
    assert "fails '" not in out
    assert "FAILS" not in out


def test_what_was_declared_and_left_out_is_not_said_to_be_undeclared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "check",
                "my_kernels:narrow",
                "--gqa",
                "--backward",
                "my_kernels:narrow",
                "--examples",
                "4",
            ]
        )
        == 1
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "Not checked, because the first calls show that they fail: grouped_heads" in out
    assert "does not declare gqa" not in out
    assert "no backward was given" not in out
    assert "the spec does not declare causal: causal_no_leak" in out
    assert (
        main(
            [
                "check",
                "my_kernels:windowed",
                "--causal",
                "bottom_right",
                "--scale",
                "--examples",
                "2",
            ]
        )
        == 1
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "It ignores scale=" in out
    assert "INCOMPLETE: windowed takes window=, and the spec does not declare it." in out


def test_one_failure_is_shown_whole_and_the_others_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "my_kernels:unscaled", "--examples", "15", "--masks"]) == 1
    out = capsys.readouterr().out
    assert out.count("To see it again") == out.count("unscaled fails ") == 1
    brief = out.partition("Other checks that fail, in brief")[2].splitlines()[1:]
    assert len(brief) == out.count("FAILS") - 1 > 0
    assert all(len(line) <= 80 for line in brief)


def test_fail_fast_stops_at_the_first_failure_that_is_not_expected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fast = ["check", "my_kernels:unscaled", "--examples", "60", "--fail-fast", "--json", "-"]
    assert main(fast) == 1
    report = json.loads(capsys.readouterr().out)
    first = min(check["first"] for check in report["checks"].values() if check["failed"])
    assert report["examples"] == first < 20
    leaky = [
        "check",
        "flashsim.testing.mutants:nan_in_masked_values",
        "--check",
        "masked_kv_poison",
        "--fail-fast",
    ]
    assert main([*leaky, "--examples", "20", "--expect", "masked_kv_poison", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 20


def test_a_diagnosis_says_which_failing_cases_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """One is drawn, and a simpler one made from it: two are looked at."""
    mutant = "flashsim.testing.mutants:causal_top_left"
    assert main(["check", mutant, "--fail-fast", "--check", "causal_no_leak"]) == 1
    said = capsys.readouterr().out
    assert max(map(len, said.partition("To see it again")[0].splitlines())) <= 80
    out = " ".join(said.split())
    assert "(simplest found; 1 of 1 cases drawn fails)" in out
    assert "in 2 of 2 examined failing cases.)" in out


def test_what_is_printed_to_see_it_again_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far_kernels.py").write_text(KERNELS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert (
        main(["check", "elsewhere/far_kernels.py:unscaled", "--examples", "5", "--check", "oracle"])
        == 1
    )
    said = capsys.readouterr().out.partition("To see it again:\n\n")[2].splitlines(keepends=True)
    code = textwrap.dedent(
        "".join(line for line in said if line.startswith("    ") or line == "\n")
    )
    numbers = code.partition("import numpy as np")
    fetch = "".join(line for line in numbers[0].splitlines(keepends=True) if "replay(" not in line)
    for text in (code, fetch + "".join(numbers[1:])):
        sys.modules.pop("far_kernels", None)
        sys.path[:] = [place for place in sys.path if place != str(elsewhere)]
        with (
            pytest.raises(AttentionCheckFailed, match="unscaled fails 'oracle'")
            if text == code
            else nullcontext()
        ):
            exec(text, {})
    assert capsys.readouterr().out.startswith("[[[[")
    sys.modules.pop("far_kernels")


# --------------------------------------------------------------------------------------------------
# the start


def test_init_writes_a_spec_and_tests_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--init", "my_kernels.py:with_lse"]) == 0
    assert "pytest test_with_lse.py" in capsys.readouterr().out
    spec = load("with_lse_spec.py:SPEC")
    assert (spec.lse, spec.causal, spec.masks, spec.layout) == (
        "natural",
        "top_left",
        False,
        "BHND",
    )
    assert "float32" in spec.dtypes
    text = Path("test_with_lse.py").read_text(encoding="utf-8")
    assert text.count("SPEC)") == 1
    Path("test_with_lse.py").write_text(
        text.replace("SPEC)", "SPEC, max_examples=20)"), encoding="utf-8"
    )
    ran = by_pytest("test_with_lse.py", "oracle or log_sum")
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_init_writes_python_whatever_the_kernel_s_path_is() -> None:
    """Backslashes, as in Windows's paths, and quotes stand in a docstring."""
    command = r'flashsim check --init "C:\Users\me\new kernels.py:with_lse" """'
    inferred = infer(load("my_kernels.py:with_lse"), Spec())
    spec, _ = first_files("kernels", "with_lse", inferred, Path(), command).values()
    assert str(ast.get_docstring(ast.parse(spec))).endswith(f"Written by\n{command}")


def test_init_wants_files_that_its_tests_can_import(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my-kernels.py").write_bytes(Path("my_kernels.py").read_bytes())
    said = "my-kernels.py cannot be imported; expected a file such as my_kernels.py"
    for option, command in (
        ("--init", ["--init", "my-kernels.py:attention"]),
        (
            "--backward",
            ["--init", "my_kernels.py:attention", "--backward", "my-kernels.py:attention"],
        ),
    ):
        assert main(["check", *command]) == 2
        assert f"argument {option}: {said}\n" in capsys.readouterr().err
    assert not [*Path().glob("*attention*")]


def test_pytest_shows_what_failed_and_not_the_kit_s_own_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("test_wrong.py").write_text(
        "from flashsim.testing import Case, Spec, check_attention, parametrize_with_checks, "
        "replay\n"
        "from my_kernels import unscaled\n"
        "def test_at_once():\n    check_attention(unscaled, Spec(), max_examples=5)\n"
        "def test_again():\n    replay(unscaled, Spec(), 'oracle', Case(N_k=3, d=4))\n"
        "def test_nonsense():\n    check_attention(unscaled, 3)\n"
        "@parametrize_with_checks(unscaled, Spec(), max_examples=5)\ndef test_each(check):\n    "
        "check()\n",
        "utf-8",
    )
    # with one of the first two, pytest shows each message twice
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    ran = by_pytest("test_wrong.py", "at_once or again or oracle or nonsense")
    assert "4 failed" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("The scale is missing") == 2
    assert "raise AttentionCheckFailed" not in ran.stdout
    assert len(ran.stdout.splitlines()) < 170
    assert "spec is 3; expected a flashsim.testing.Spec" in ran.stdout
    # an error, but not a failure, is shown with its way
    assert ran.stdout.count(": in check_attention") == 1


def test_ctrl_c_says_where_a_kernel_was_and_on_which_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (
        "def stuck(q, k, v):\n    if k.shape[2] > 5:\n        raise KeyboardInterrupt\n    return "
        "q\n"
    )
    Path("stuck.py").write_text(text, encoding="utf-8")
    assert main(["check", "stuck.py:stuck", "--quiet"]) == 130
    (said,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"interrupted \(at .*stuck\.py:3\) \(in the check oracle on Case\(.*N_k=\d.*\)\)", said
    )


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("sys.exit(0)", "raised SystemExit: 0 (at"),
        ("raise Odd('\\x1b[31m\\x07red')", r"raised Odd: \x1b[31m\x07red (at"),
    ],
)
def test_a_kernel_that_would_end_the_process_fails_with_its_simplest_case(
    way: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "import os, sys\nfrom flashsim.reference import attention\nclass Odd(BaseException): pass\n"
        f"def rude(q, k, v):\n    if k.shape[2] > 7:\n        {way}\n    return attention(q, k, "
        "v)\n"
    )
    Path("rude.py").write_text(text, encoding="utf-8")
    sys.modules.pop("rude", None)
    assert main(["check", "rude.py:rude", "--examples", "60", "--check", "oracle"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert "simplest found" in out


RUDE = (
    "import ctypes, os\ndef rude(q, k, v):\n    if k.shape[2] > 5{more}:\n        {way}\n    "
    "return q\n"
)


def checked(*more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashsim", "check", "rude.py:rude", "--quiet", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os._exit(7)", "exit status 7"),
        ("ctypes.CDLL(None).exit(0)", "exit status 0"),
    ],
)
def test_a_kernel_that_ends_the_process_is_named_with_its_smallest_case(way: str, how: str) -> None:
    """In a way that no handler in Python sees."""
    Path("rude.py").write_text(RUDE.format(way=way, more=""), encoding="utf-8")
    done = checked()
    said = f"rude ended the process ({how}), in the check oracle on Case(N_k=6): the simplest found"
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"flashsim check: error: {said}\n",
    )


@pytest.mark.slow
def test_a_case_that_ends_the_process_only_after_others_is_said_so() -> None:
    """As one whose memory another case has spoilt."""
    text = RUDE.format(way="os.abort()", more=" and CALLS.append(0) is None and len(CALLS) > 3")
    Path("rude.py").write_text(f"CALLS = []\n{text}", encoding="utf-8")
    done = checked()
    assert done.returncode == 1
    assert re.fullmatch(
        r".*\(SIGABRT\), in the check \w+ on Case\(.*\): tried alone, it did not\n", done.stderr
    )


def test_a_file_that_ends_the_process_when_it_is_read_is_refused() -> None:
    Path("rude.py").write_text("import os\nos.abort()\n", encoding="utf-8")
    done = checked()
    assert (done.returncode, done.stderr) == (
        2,
        "flashsim check: error: rude.py:rude ended the process (SIGABRT)\n",
    )


def test_init_overwrites_only_when_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_narrow.py").write_text("mine\n", encoding="utf-8")
    assert main(["check", "--init", "my_kernels.py:narrow"]) == 2
    assert "test_narrow.py is there already; --overwrite writes anew" in capsys.readouterr().err
    assert Path("test_narrow.py").read_text(encoding="utf-8") == "mine\n"
    assert not Path("narrow_spec.py").exists()
    assert main(["check", "--init", "my_kernels.py:narrow", "--overwrite"]) == 0
    assert load("narrow_spec.py:SPEC") == Spec(d_v=True)
    assert main(["check", "--init", "my_kernels.py:rows_first"]) == 0
    assert load("rows_first_spec.py:SPEC").layout == "BNHD"


def test_init_says_what_it_could_not_find(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--init", "my_kernels.py:deaf"]) == 0
    text = Path("deaf_spec.py").read_text(encoding="utf-8")
    assert (
        "# it has the parameter causal, but a call with it is wrong\n    causal='bottom_right',"
        in text
    )
    Path("two.py").write_text("def two(q, k):\n    return q\n", encoding="utf-8")
    assert main(["check", "--init", "two.py:two"]) == 2
    assert "two: No call succeeds. With NumPy arrays q (2, 2, 5, 8)" in capsys.readouterr().err
    assert not Path("two_spec.py").exists()


def test_init_says_at_once_what_is_doubtful(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel whose every answer is wrong, or wrong in some types, or whose keyword has another
    name, is no clean slate.
    """
    assert main(["check", "--init", "my_kernels.py:unscaled"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Doubtful: dtypes: no plain call gave the right numbers" in out
    Path("half.py").write_text(
        "import my_kernels, numpy as np\n"
        "def half(q, k, v, is_causal=False):\n    return my_kernels.attention(q, k, "
        "v).astype(np.float16)\n",
        "utf-8",
    )
    assert main(["check", "--init", "half.py:half"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "dtypes: each was tried; float32, float64 gave no right answer" in out
    assert "causal: not checked: the kit's name for is_causal is causal" in out
    Path("finite.py").write_text(
        "import my_kernels, numpy as np\n"
        "def finite(q, k, v, mask=True):\n"
        "    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)\n"
        "    s = np.where(mask, s, s.dtype.type(-1e4))\n"
        "    p = np.exp(s - s.max(-1, keepdims=True))\n"
        "    return p / p.sum(-1, keepdims=True) @ v\n",
        "utf-8",
    )
    assert main(["check", "--init", "finite.py:finite"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "Doubtful: empty_rows: a fully masked row gave the values' mean, as where masked "
        "scores are finite"
    ) in out
    assert main(["check", "--init", "my_kernels.py:attention"]) == 0
    assert "empty_rows" not in capsys.readouterr().out


def test_init_says_which_lengths_a_kernel_takes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiles.py").write_text(
        "import my_kernels\n"
        "def tiles(q, k, v):\n"
        "    if q.shape[2] % 16 or k.shape[2] % 16:\n        raise ValueError('N must be a "
        "multiple of 16')\n"
        "    return my_kernels.attention(q, k, v)\n",
        "utf-8",
    )
    assert main(["check", "--init", "tiles.py:tiles"]) == 0
    assert "multiples=(16, 16)" in capsys.readouterr().out
    assert main(["check", "tiles.py:tiles", "--examples", "5"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "It takes only lengths that are multiples of 16" in said
    assert "raised ValueError: N must be a multiple of 16" in said
    assert "Give --multiples 16 16" in said
    assert main(["check", "tiles.py:tiles", "--examples", "5", "--multiples", "16", "16"]) == 0


@pytest.mark.slow
def test_the_help_s_example_for_torch_runs_and_so_does_what_it_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    said = EXAMPLES[EXAMPLES.index("flashsim check torch.nn") :]
    command = shlex.split(said.partition("\n  PyTorch")[0].replace("\\\n", " "))[1:]
    assert main([*command, "--examples", "12"]) == 0
    without = command[: command.index("--expect")]
    assert main([*without, "--examples", "4", "--check", "masked_kv_poison"]) == 1
    code = textwrap.dedent(capsys.readouterr().out.rpartition("To see it again:\n\n")[2])
    again = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (
        "AttentionCheckFailed: scaled_dot_product_attention fails 'masked_kv_poison'"
        in again.stderr
    )


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == list(CHECKS)
    assert all(len(line.split()) > 4 for line in lines)
    # where Python drops docstrings
    command = [sys.executable, "-OO", "-m", "flashsim", "check", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split() for line in done.stdout.partition("\n\n")[0].splitlines()] == [
        [name, name] for name in CHECKS
    ]


def test_a_package_that_is_missing_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert main(["check", "my_kernels:attention", "--wrap", "jax"]) == 2
    assert (
        "error: argument --wrap: jax needs the package jax: pip install jax\n"
        in capsys.readouterr().err
    )


def test_a_kernel_without_a_spec_beside_it_is_told_of_init(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [
        "check",
        "my_kernels.py:attention",
        "--check",
        "determinism",
        "--examples",
        "1",
        "--quiet",
    ]
    hint = "To write a spec and tests: flashsim check my_kernels.py:attention --init"
    assert load("my_kernels:SPEC.block") == (16, 16)  # a name inside a name
    main(command)
    assert hint in capsys.readouterr().out
    main([*command, "--spec", "my_kernels:SPEC"])
    assert hint not in capsys.readouterr().out
    Path("test_attention.py").write_text("", encoding="utf-8")
    main(command)
    assert hint not in capsys.readouterr().out
    (folder := Path("my code")).mkdir()
    Path("my_kernels.py").rename(folder / "their_kernels.py")
    main(["check", "my code/their_kernels.py:attention", *command[2:]])
    assert (
        "tests: flashsim check 'my code/their_kernels.py:attention' --init"
        in capsys.readouterr().out
    )
    main(["check", "my code/their_kernels.py:attention", "--init"])
    assert capsys.readouterr().out.endswith("\npytest 'my code/test_attention.py'\n")
