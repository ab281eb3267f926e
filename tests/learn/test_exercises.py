"""The exercises: solutions pass, each typical mistake gets its own hint, and a student is told
what and where.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from flashsim.cli import main
from flashsim.learn.exercises import exercises
from flashsim.learn.exercises.classes import grade_file
from flashsim.learn.exercises.grading import PROGRESS, grade, progress, start
from flashsim.learn.exercises.submission_process import Limits
from flashsim.tracing.planting import changed
from tests.helpers.exercise_solutions import MISTAKES, SOLUTIONS
from tests.helpers.pages import ROOT, blocks

EXERCISES = exercises()


def solved(name: str, *changes: tuple[str, str]) -> str:
    """The student's file with a solution in place of the holes, and changes to it."""
    explained, _, _ = EXERCISES[name].starting_text().partition('\n"""\n')
    return f'{explained}\n"""\n{changed(SOLUTIONS[name], changes, name)}'


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / EXERCISES[name].file
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("what", ["5", "05", "inner_loop"])
def test_who_names_an_exercise_is_told_its_file(what: str) -> None:
    with pytest.raises(
        ValueError, match=f"^{what} is not there; expected a file, perhaps 05_inner_loop.py$"
    ):
        grade(Path(what))


def test_a_file_of_no_exercise_says_how_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"as in Exercise 1: load a tile, or its name, as 01_load_a_tile\.py"
    ):
        grade(tmp_path / "mine.py")


def test_a_file_that_ends_the_process_in_c_is_not_solved(tmp_path: Path) -> None:
    path = tmp_path / "01_load_a_tile.py"
    path.write_text(
        "__import__('ctypes').CDLL(None).exit(0)\n" + SOLUTIONS["load_a_tile"], encoding="utf-8"
    )
    command = [sys.executable, "-m", "flashsim", "exercise", "check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    message = f"flashsim exercise: error: {path} ended the process (exit status 0)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_each_exercise_has_a_solution_and_mistakes() -> None:
    assert list(SOLUTIONS) == list(MISTAKES) == list(EXERCISES)
    assert [exercise.number for exercise in EXERCISES.values()] == list(
        range(1, len(EXERCISES) + 1)
    )
    assert min(map(len, MISTAKES.values())) >= 2


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_is_right_and_a_fresh_file_is_not(name: str, tmp_path: Path) -> None:
    result = grade(written(tmp_path, name, solved(name)))
    assert (result.solved, result.hint) == (True, ""), result.message
    fresh = start(name, tmp_path, overwrite=True)
    assert not grade(fresh).solved
    lines = fresh.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= (88 if name == "planted_bug" else 80)


def test_a_class_is_graded_by_the_command_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (output,) = (
        block
        for block in blocks(ROOT / "docs" / "exercises.md", "sh")
        if "grade handed_in --csv" in block
    )
    monkeypatch.chdir(tmp_path)
    for student, text in (
        ("ada", solved("inner_loop")),
        ("bob", EXERCISES["inner_loop"].starting_text()),
    ):
        (tmp_path / "handed_in" / student).mkdir(parents=True)
        written(tmp_path / "handed_in" / student, "inner_loop", text)
    assert main(output.splitlines()[0].split()[1:]) == 1
    assert "1 solved, 1 not yet" in capsys.readouterr().out
    assert "8 holes are left" in (tmp_path / "grades.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXERCISES)
def test_each_mistake_gets_its_own_hint(name: str, tmp_path: Path) -> None:
    hints = []
    for before, after, hint in MISTAKES[name]:
        result = grade(written(tmp_path, name, solved(name, (before, after))))
        assert not result.solved, after
        assert hint in result.hint, (after, result)
        assert result.hint, (after, result)
        hints.append(result.hint)
    assert len(set(hints)) >= len(hints) - 1, hints


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "        O_i = on_chip(O_i / l_i, over=O_i)\n",
            "            O_i = on_chip(O_i / l_i, over=O_i)\n",
        ),
        ("P_ij @ V_j, over=O_i)", "(P_ij @ V_j) / l_i, over=O_i)"),
        ("P_ij @ V_j, over=O_i)", "(P_ij @ V_j) / rowsum(P_ij), over=O_i)"),
        (
            "on_chip(exp(m_i - m_new) * O_i + P_ij @ V_j,",
            "on_chip((l_i * exp(m_i - m_new) * O_i + P_ij @ V_j) / l_i,",
        ),
    ],
    ids=["a line of its own", "the product", "by the block's sum", "as in Algorithm 1"],
)
def test_dividing_at_each_turn_is_told_however_it_is_written(
    before: str, after: str, tmp_path: Path
) -> None:
    result = grade(written(tmp_path, "divide_once", solved("divide_once", (before, after))))
    assert "O_i is divided by l_i within the inner loop" in result.hint


# -------------------------------------------------------------------------- as a student meets them


def test_an_error_is_said_at_the_student_s_line(tmp_path: Path) -> None:
    text = solved("online_softmax", ("rowmax(s)", "rowmx(s)"))
    line = text[: text.index("rowmx")].count("\n") + 1
    result = grade(written(tmp_path, "online_softmax", text))
    assert result.message.startswith(f"Line {line}: NameError: name 'rowmx' is not defined")
    assert "m_new = maximum(m, rowmx(s))" in result.message
    assert "Is it spelt" in result.hint
    broken = grade(written(tmp_path, "online_softmax", text.replace("    return", "    return (")))
    assert broken.message.startswith("Line ")
    assert "Python cannot read this" in broken.message
    gone = grade(written(tmp_path, "online_softmax", text.replace("def step", "def stop")))
    assert "defines no function step" in gone.message


def test_ctrl_c_shows_where_an_endless_loop_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = (
        "import signal\n\n\ndef softmax(S):\n    while True:\n        "
        "signal.raise_signal(signal.SIGINT)\n"
    )
    file = written(tmp_path, "softmax", endless)
    assert main(["exercise", "check", str(file)]) == 130
    assert capsys.readouterr() == (
        "",
        f"interrupted (at line 6 of {file}: signal.raise_signal(signal.SIGINT))\n",
    )


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("returned", ["None", "'x'", "(1, 2, 3)", "1.5"])
def test_whatever_is_returned_is_judged(name: str, returned: str, tmp_path: Path) -> None:
    head, _, _ = SOLUTIONS[name].partition(":\n")
    result = grade(
        written(
            tmp_path, name, f'"""{EXERCISES[name].heading}"""\n{head}:\n    return {returned}\n'
        )
    )
    assert not result.solved
    assert result.message


RAGGED = "([[1, 2], [3]],) * 3"
ARRAYS = "(np.ones((2, 3)), np.ones((2, 3)))"


@pytest.mark.parametrize(
    ("name", "returned", "message"),
    [
        ("causal_skip", "np.ones((2, 3))", "expected True or False"),
        ("choose_blocks", ARRAYS, "expected two whole numbers"),
        ("backward_tile", RAGGED, "expected an array of real numbers, of shape (4, 4)"),
        ("softmax", "1j * S", "expected an array of real numbers"),
        ("softmax", "np.full((3, 4), '0.1')", "expected an array of real numbers"),
        (
            "backward_tile",
            "[['1'] * 4] * 2, [['1'] * 4] * 4, [['1'] * 4] * 4",
            "expected an array of real numbers",
        ),
        ("backward_tile", "Q_i, K_j", "tile returned 2 values; expected 3: dQ, dK, dV"),
        ("choose_blocks", "(d, 10**5000)", "expected two whole numbers, from 1 to 10¹⁸"),
        ("count_by_hand", "(10**5000, 1)", "more digits than a count has; expected "),
        ("merge", "(O_a, " + "-" * 10**5 + "1)", "Python cannot read this"),
    ],
)
def test_arrays_that_make_no_sense_are_no_traceback(
    name: str, returned: str, message: str, tmp_path: Path
) -> None:
    head, _, _ = SOLUTIONS[name].partition(":\n")
    text = f'"""{EXERCISES[name].heading}"""\nimport numpy as np\n{head}:\n    return {returned}\n'
    assert message in grade(written(tmp_path, name, text)).message


@pytest.mark.parametrize("name", ["inner_loop", "planted_bug", "divide_once"])
def test_turns_that_no_loop_of_the_memory_made_are_not_called_right(
    name: str, tmp_path: Path
) -> None:
    """Wrong numbers behind `range` would be seen by nobody: what is judged are the turns of
    sram.loop.
    """
    result = grade(
        written(
            tmp_path,
            name,
            solved(name).replace("sram.loop(", "range(").replace("exp(m_i", "exp(0 * m_i"),
        )
    )
    assert not result.solved
    assert "0 turns of the inner loop" in result.message
    assert "sram.loop" in result.hint


def test_dots_within_brackets_are_no_hole_and_a_byte_order_mark_no_mistake(tmp_path: Path) -> None:
    columns = solved("softmax", ("rowmax(S)", "S.max(-1)[..., None]"))
    assert grade(written(tmp_path, "softmax", columns)).solved
    assert grade(written(tmp_path, "softmax", f"\ufeff{columns}")).solved
    fewer = grade(written(tmp_path, "softmax", columns.replace("exp(S - m)", "...")))
    assert fewer.message.startswith("One hole is left")


def test_a_small_error_is_an_error_and_can_be_seen(tmp_path: Path) -> None:
    result = grade(written(tmp_path, "merge", solved("merge", ("L = m +", "L = 1e-7 + m +"))))
    assert not result.solved
    value, want = result.message.split(" is ")[1].rstrip(".").split("; expected ")
    assert abs(float(value) - float(want) - 1e-7) < 1e-9


def test_numpy_s_whole_numbers_are_whole_numbers(tmp_path: Path) -> None:
    assert grade(
        written(
            tmp_path,
            "choose_blocks",
            solved("choose_blocks")
            .replace("B_c = 1", "B_c = np.int64(1)")
            .replace("def blocks", "import numpy as np\ndef blocks"),
        )
    ).solved


def test_the_docs_show_what_a_check_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (output,) = blocks(ROOT / "docs" / "exercises.md", "text")
    monkeypatch.chdir(tmp_path)
    written(
        tmp_path,
        "inner_loop",
        solved("inner_loop", ("(l_i * exp(m_i - m_new) * O_i", "(l_i * O_i")),
    )
    assert main(["exercise", "check", "05_inner_loop.py"]) == 1
    assert capsys.readouterr().out.strip() == output.strip()


def test_the_list_shows_progress_and_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["exercise"]) == 0
    out = capsys.readouterr().out
    assert f"0 of {len(EXERCISES)} solved" in out
    assert "Next: flashsim exercise start 1\n" in out
    Path("my work").mkdir()
    assert main(["exercise", "list", "my work"]) == 0
    assert "Next: flashsim exercise start 1 'my work'\n" in capsys.readouterr().out
    path = written(tmp_path / "my work", "load_a_tile", solved("load_a_tile"))
    assert main(["exercise", "check", str(path.relative_to(tmp_path))]) == 0
    assert capsys.readouterr().out.endswith("Next: flashsim exercise start 2 'my work'\n")
    assert main(["exercise", "start", "1"]) == 0
    assert "flashsim exercise check 01_load_a_tile.py" in capsys.readouterr().out
    assert main(["exercise", "check", "01_load_a_tile.py"]) == 1
    assert "3 holes are left, at lines" in capsys.readouterr().out
    written(tmp_path, "load_a_tile", solved("load_a_tile"))
    assert main(["exercise", "check", "01_load_a_tile.py"]) == 0
    assert "solved" in capsys.readouterr().out
    assert main(["exercise", "start", "scores"]) == 0
    assert main(["exercise", "list"]) == 0
    first, second, *_, state, following = (
        capsys.readouterr().out.partition("check 02_scores.py\n")[2].splitlines()
    )
    assert first.endswith("solved")
    assert second.endswith("begun")
    assert state.startswith("1 of")
    assert following == "Next: flashsim exercise check 02_scores.py"
    (tmp_path / PROGRESS).write_text('{"softmax": {"hints": 99}}', encoding="utf-8")
    assert progress(tmp_path)["softmax"]["hints"] == len(EXERCISES["softmax"].hints)
    for text_of_file in ("not JSON", '{"softmax": {"hints": "x", "solved": 1}, "merge": 3}'):
        (tmp_path / PROGRESS).write_text(text_of_file, encoding="utf-8")
        assert main(["exercise"]) == 0
    assert f"0 of {len(EXERCISES)} solved" in capsys.readouterr().out


def test_a_notebook_counts_as_a_file_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exercise", "notebook", "1", str(tmp_path)]) == 0
    assert main(["exercise", "list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "load a tile" in out.partition("begun")[0]
    assert out.endswith(f"Next: {tmp_path / '01_load_a_tile.ipynb'}, in Jupyter\n")


def test_hints_come_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(start("4", tmp_path))
    hints = EXERCISES["online_softmax"].hints
    for number in (1, 2, 3, 4, 4):
        assert main(["exercise", "check", path, "--hint"]) == 1
        out = " ".join(capsys.readouterr().out.split())
        assert f"Hint {number} of {len(hints)}: {' '.join(hints[number - 1].split())}" in out
    assert main(["exercise", "check", path, "--hint", "2"]) == 1
    assert "Hint 2 of 4" in capsys.readouterr().out
    assert main(["exercise", "check", "--hint", path]) == 1
    assert "Hint 4 of 4" in capsys.readouterr().out
    assert main(["exercise", "check", path, "--hint", "x"]) == 2
    assert "argument --hint: got 'x'; expected a whole number" in capsys.readouterr().err
    assert main(["exercise", "check", path, "--hint", "9"]) == 2
    assert "--hint: got 9; expected a number from 1 to 4" in capsys.readouterr().err


def test_a_file_that_is_there_is_overwritten_only_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "merge", "mine\n")
    assert main(["exercise", "start", "9", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine\n"
    assert main(["exercise", "start", "9", str(tmp_path), "--overwrite"]) == 0
    assert path.read_text(encoding="utf-8") == EXERCISES["merge"].starting_text()


def test_a_command_to_type_is_quoted_as_the_system_s_shell_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("my files") / "01_load_a_tile.py"
    path.parent.mkdir()
    for platform, quote in (("linux", "'"), ("win32", '"')):
        monkeypatch.setattr(sys, "platform", platform)
        message = f"flashsim exercise check {quote}{path}{quote}"
        assert main(["exercise", "start", "1", "my files", "--overwrite"]) == 0
        assert capsys.readouterr().out.endswith(f"{message}\n")
        assert main(["exercise", "check", str(path)]) == 1
        assert capsys.readouterr().out.endswith(f"{message} --hint\n")
        assert main(["exercise", "list", "my files"]) == 0
        assert capsys.readouterr().out.endswith(f"{message}\n")


def test_an_edited_file_is_read_anew(tmp_path: Path) -> None:
    """Names of what comes on chip are looked up by line, in the file as it is now."""
    assert not grade(
        written(tmp_path, "divide_once", solved("divide_once", ("O_i / l_i", "O_i")))
    ).solved
    text = solved("divide_once").replace("def attention", "\n\n\ndef attention")
    assert grade(written(tmp_path, "divide_once", text)).solved


@pytest.mark.parametrize(
    ("name", "returned"), [("inner_loop", "m[i], m_new)"), ("divide_once", "sram.store(O[i], O_i)")]
)
def test_a_return_within_the_loop_is_told(name: str, returned: str, tmp_path: Path) -> None:
    *before, last = SOLUTIONS[name].rstrip().splitlines()
    assert returned in last
    indent = last[: len(last) - len(last.lstrip())]
    file = tmp_path / EXERCISES[name].file
    for text, returns_early in (
        ([*before, last, f"{indent}return O"], True),
        ([*before, last, "    return O"], False),
    ):
        file.write_text("\n".join(text) + "\n", encoding="utf-8")
        row = grade_file(file, file.name, None, Limits())
        result = grade(file)
        assert result.solved != returns_early
        assert (
            (f"Line {len(text)} returns within the loop" in result.hint)
            == returns_early
            == ("returns within" in row.hint)
        )


def test_a_file_that_is_no_utf_8_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "05_inner_loop.py"
    file.write_bytes(b"# one\n# caf\xe9\n")
    row = grade_file(file, file.name, None, Limits())
    assert (row.seen, row.hint) == ("Line 2: the file is not text in UTF-8.", "Save it as UTF-8.")
