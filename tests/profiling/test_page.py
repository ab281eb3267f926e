"""docs/profiling.md: what it shows is what the commands print, and what the record says."""

import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import flashsim
from flashsim.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "profiling.md"
EXAMPLE = Path(flashsim.__file__).parent / "profiling" / "triton_example.py"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or find_spec("torch") is None,
    reason="PyTorch or Triton is not installed",
)


def printed(where: str, folder: Path, N: int = 256) -> str:
    """Return what `flashsim count` prints of a kernel, as the page calls it."""
    words = ["count", f"{where}:attention", "--N", str(N), "--d", "64", "--causal"]
    done = subprocess.run(
        [sys.executable, "-m", "flashsim", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


@needs_triton
def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    page = "\n".join(line.rstrip() for line in PAGE.read_text("utf-8").splitlines())
    assert printed("flashsim.profiling.triton_example", tmp_path) in page


@needs_triton
def test_the_page_shows_what_the_law_says(tmp_path: Path) -> None:
    page = "\n".join(line.rstrip() for line in PAGE.read_text("utf-8").splitlines())
    assert printed("flashsim.profiling.triton_example", tmp_path, 1_048_576) in page


@needs_triton
def test_the_page_shows_what_a_kernel_without_skips_gets(tmp_path: Path) -> None:
    source = EXAMPLE.read_text("utf-8")
    changed = source.replace("    if causal:  # no key after", "    if False:  # no key after")
    assert changed != source
    (tmp_path / "no_skip.py").write_text(changed, "utf-8")
    output = printed("no_skip.py", tmp_path)
    page = "\n".join(line.rstrip() for line in PAGE.read_text("utf-8").splitlines())
    assert output[output.index("Q, K, V and O:") :] in page


def test_the_table_is_the_record() -> None:
    record = json.loads((ROOT / "figures" / "validate_profiling.json").read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    assert len(record["rows"]) == 8
    for row in record["rows"]:
        reads = row["l2_reads"] / row["sector_bytes_read"]
        writes = row["l2_writes"] / row["sector_bytes_written"]
        blocks = f"{row['B_r']} × {row['B_c']}"
        if row["causal"]:
            blocks += ", causal"
        sizes = f"N = {row['N']:,}, d = {row['d']}, {row['heads']} heads, {blocks}"
        assert (
            f"| {row['kernel']} {row['direction']}, {sizes} | {reads:.4f} | {writes:.4f} |" in page
        )
        assert abs(reads - 1) < 0.01


def test_the_table_of_kernels_is_the_record() -> None:
    script = importlib.import_module("profile_kernels")
    record = json.loads((ROOT / "figures" / "profile_kernels.json").read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    assert script.BEGIN + script.table(record["rows"]) + script.END in page
    for row in record["rows"]:
        assert row["is_attention"]
        assert not {"read again", "written again", "masked off"} & row["findings"].keys()


FAILING = {
    "raises": ("raise RuntimeError('planned')", r"odd\.py:2 raised RuntimeError: planned"),
    "multiplies": ("return q @ k", r"odd\.py:2 raised RuntimeError: "),
}


@needs_triton
@pytest.mark.parametrize("name", FAILING)
def test_what_a_function_raises_is_one_line_with_its_place(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body, expected = FAILING[name]
    file = tmp_path / "odd.py"
    file.write_text(f"def attention(q, k, v):\n    {body}\n", "utf-8")
    assert main(["count", f"{file}:attention", "--N", "8", "--d", "4"]) == 2
    message = capsys.readouterr().err
    assert re.search(expected, message)
    assert len(message.splitlines()) == 1


@needs_triton
def test_a_result_that_is_nan_is_wrong_and_written_as_json(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text("def attention(q, k, v):\n    return q * float('nan')\n", "utf-8")
    target = tmp_path / "numbers.json"
    words = ["count", f"{file}:attention", "--N", "8", "--d", "4", "--json", str(target)]
    assert main(words) == 0
    record = json.loads(target.read_text("utf-8"))
    assert record["error"] is None
    assert record["findings"][0]["kind"] == "wrong result"
