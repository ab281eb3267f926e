"""The exercises as notebooks: what the file has is in the cells, and cells run and grade."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from flashsim.cli import main
from flashsim.learn.exercises import exercises
from tests.helpers.exercise_solutions import SOLUTIONS

EXERCISES = exercises()
FIRST = list(EXERCISES)[:3]


def made(number: int, folder: Path) -> dict[str, Any]:
    """The notebook that the command writes."""
    assert main(["exercise", "notebook", str(number), str(folder)]) == 0
    result: dict[str, Any] = json.loads(
        (folder / EXERCISES[list(EXERCISES)[number - 1]].notebook).read_text("utf-8")
    )
    return result


@pytest.mark.parametrize("name", EXERCISES)
def test_a_notebook_says_what_the_file_says(name: str, tmp_path: Path) -> None:
    exercise = EXERCISES[name]
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is not installed: pip install nbclient"
    )
    notebook = made(exercise.number, tmp_path)
    nbformat.validate(notebook)
    text, holes, *_ = ("".join(cell["source"]) for cell in notebook["cells"])
    explained, _, code = exercise.starting_text().partition('\n"""\n')
    explained = explained.removeprefix('"""').partition("\n\nCheck it:")[0]
    unfenced = re.sub(r"^```(?:text)?\n|\n```$", "", text, flags=re.MULTILINE)
    assert unfenced.removeprefix("# ").startswith(explained.replace(".", "", 1))
    assert holes.partition("\n")[2] == code.strip("\n") + "\n"


@pytest.mark.parametrize("name", EXERCISES)
def test_a_notebook_keeps_the_lines_of_listings(name: str, tmp_path: Path) -> None:
    """Each numbered line lies within a fence; outside of one, Markdown would make a paragraph of
    them.
    """
    text = "".join(made(EXERCISES[name].number, tmp_path)["cells"][0]["source"])
    outside = re.sub(r"^```text\n.*?\n```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^ ?\d+  .*", outside, re.MULTILINE) == []
    assert ("```text\n" in text) == (
        name in {"inner_loop", "backward_tile", "count_by_hand", "planted_bug"}
    )


def test_a_notebook_keeps_its_work_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells write no file that `start` wrote, and it is not written over itself unless told."""
    first = EXERCISES[FIRST[0]]
    notebook = made(1, tmp_path)
    assert f"Wrote {tmp_path / first.notebook}" in capsys.readouterr().out
    assert all(first.file not in "".join(cell["source"]) for cell in notebook["cells"])
    assert main(["exercise", "notebook", "1", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["exercise", "notebook", "1", str(tmp_path), "--overwrite"]) == 0
    assert main(["exercise", "check", str(tmp_path / first.notebook)]) == 2
    assert "is a notebook: run its cells" in capsys.readouterr().err


@pytest.mark.slow
def test_the_first_notebooks_run_with_holes_and_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells of all of them, one after the other in one kernel; a cell that raised would stop
    it.
    """
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is not installed: pip install nbclient"
    )
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is not installed: pip install nbclient ipykernel"
    )
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install ipykernel")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = []
    for number, name in enumerate(FIRST, 1):
        text, holes, check, *hints = nbformat.reads(
            json.dumps(made(number, tmp_path)), as_version=4
        ).cells
        solved = {**holes, "source": holes.source.partition("\n")[0] + SOLUTIONS[name]}
        cells += [text, holes, check, *hints, solved, check]
    whole = nbformat.v4.new_notebook(
        cells=[
            nbformat.from_dict({**cell, "id": f"cell-{index}"}) for index, cell in enumerate(cells)
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        nbclient.NotebookClient(
            whole, timeout=30, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    for index, name in enumerate(FIRST):
        _, _, with_holes, _, hint, _, solved = whole.cells[7 * index : 7 * index + 7]
        heading = EXERCISES[name].heading
        assert output_of(with_holes).startswith(f"{heading}: not yet.")
        assert "left, at line" in output_of(with_holes)
        assert f"Hint 1 of {len(EXERCISES[name].hints)}: " in output_of(hint)
        assert output_of(solved).startswith(f"{heading}: solved.")


def output_of(cell: Any) -> str:
    """All that a cell printed, in as many pieces as the kernel flushed; nothing else may come of
    it.
    """
    kinds = [(output["output_type"], output.get("name")) for output in cell.outputs]
    assert set(kinds) == {("stream", "stdout")}, cell.outputs
    return "".join(output["text"] for output in cell.outputs)
