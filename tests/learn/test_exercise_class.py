"""A class graded: each file in a process of its own, and no verdict that is not the grader's."""

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.attention.shapes import Blocks
from flashsim.cli import main
from flashsim.learn.exercises import exercise, exercises
from flashsim.learn.exercises.checks import ExerciseMemory
from flashsim.learn.exercises.classes import Row, exercise_named, grade_file, mistakes
from flashsim.learn.exercises.grading import Grade, exercise_of, grade
from flashsim.learn.exercises.messages import pack, unpack
from flashsim.learn.exercises.submission import Mistake
from flashsim.learn.exercises.submission_process import Limits, SubmissionProcess, replay
from tests.helpers.exercise_solutions import MISTAKES, SOLUTIONS

INNER = SOLUTIONS["inner_loop"]
SOFTMAX = SOLUTIONS["softmax"]
OS = '__import__("os")'
FORGOTTEN = INNER.replace("l_i * exp(m_i - m_new) * O_i", "l_i * O_i")


def handed_in(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name / "05_inner_loop.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
    return folder


def apart(path: Path, name: str, limits: Limits | None = None) -> Grade:
    task = exercise(name)
    try:
        with SubmissionProcess(path, task, limits or Limits()) as work:
            return Grade(task, True, task.grade(work))
    except Mistake as wrong:
        return Grade(task, False, wrong.message, wrong.hint)


WRONG = [
    (name, SOLUTIONS[name].replace(before, after))
    for name, kinds in MISTAKES.items()
    for before, after, _ in kinds
]
ANSWERS = [(*of, index % 3) for index, of in enumerate(SOLUTIONS.items())] + [
    (*of, index % 9) for index, of in enumerate(WRONG[::3])
]


@pytest.mark.parametrize(
    ("name", "text"),
    [pytest.param(*of, marks=[pytest.mark.slow] * bool(later)) for *of, later in ANSWERS],
)
def test_an_answer_is_judged_apart_as_it_is_here(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / exercise(name).file
    path.write_text(text, encoding="utf-8")
    result = apart(path, name)
    assert result == grade(path)
    assert result.solved == (text == SOLUTIONS[name])


CHEATS = {
    "another exercise's heading and solution": f'"""Exercise 1: load a tile."""\n{SOLUTIONS["load_a_tile"]}',
    "exit at import": "raise SystemExit(0)\n",
    "leaves at import": f"{OS}._exit(0)\n",
    "leaves when called": f"def flash(*a):\n    {OS}._exit(0)\n",
    "patches numpy": f"import numpy as np\nnp.allclose = np.isclose = lambda *a, **k: True\n{FORGOTTEN}",
    "patches the judge": (
        "from flashsim.learn.exercises import checks\njudging.expect = lambda *a: None\ndef "
        "flash(*a): pass\n"
    ),
    "patches the judge, imported by name": (
        '__import__("sys").modules["flashsim.learn.exercises.submission"].Submission.function = lambda *a: '
        "print\n"
    ),
    "says that it is verified": "print('Verified: m, l and O were right')\nraise SystemExit(0)\n",
    "the reference": "from flashsim.reference import attention\ndef flash(*a): attention()\n",
    "the reference by name": "def flash(*a): __import__('flashsim.reference')\n",
    "the solutions by name": "def flash(*a): __import__('tests.helpers.exercise_solutions')\n",
    "writes answers": (
        f"import json\nos = {OS}\ntext = json.dumps({{'to': 'x', 'log': [], 'value': ['plain', "
        f"None]}}).encode()\n"
        "for fd in range(3, 30):\n    try: os.write(fd, len(text).to_bytes(8, 'big') + text)\n    "
        "except OSError: pass\n"
    ).replace("import json\n", "json = __import__('json')\n"),
    "writes rubbish": (
        f"os = {OS}\nfor fd in range(3, 30):\n    try: os.write(fd, b'x' * 99)\n    except "
        "OSError: pass\n"
    ),
    "counts by another way": INNER.replace(
        "sram.load(K[j], V[j])", "(K._storage.values[:4], V._storage.values[:4])"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", CHEATS.values(), ids=CHEATS)
def test_nothing_but_the_grader_says_solved(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "05_inner_loop.py").write_text(text, encoding="utf-8")
    row = grade_file(path, "05_inner_loop.py", None, Limits(seconds=20))
    assert (row.exercise, row.verdict) == ("inner_loop", "not yet"), row


def test_an_answer_that_nobody_asked_for_is_none(tmp_path: Path) -> None:
    (path := tmp_path / "05_inner_loop.py").write_text(
        f"{CHEATS['writes answers']}{INNER}", encoding="utf-8"
    )
    assert "something wrote where the grader reads" in grade_file(path, "", None, Limits()).seen


def test_a_patched_simulator_over_there_changes_no_count(tmp_path: Path) -> None:
    patch = (
        '__import__("sys").modules["flashsim.memory.sram"].SRAM.load = lambda self, *b: '
        "[x._values.copy() for x in b]"
        " if len(b) > 1 else b[0]._values.copy()\n"
    )
    (path := tmp_path / "05_inner_loop.py").write_text(f"{patch}{INNER}", encoding="utf-8")
    row = grade_file(path, "", None, Limits())
    assert (row.verdict, row.seen) == ("not yet", "Elements of Q read: 0; expected 72.")


def test_what_takes_too_much_is_stopped(tmp_path: Path) -> None:
    (path := tmp_path / "03_softmax.py").write_text(
        "def softmax(S):\n    while True: pass\n", encoding="utf-8"
    )
    assert "stopped after 1 s" in grade_file(path, "", None, Limits(seconds=1)).seen
    path.write_text("def softmax(S):\n    return S.repeat(10**9)\n", encoding="utf-8")
    if sys.platform == "linux":
        assert "MemoryError" in grade_file(path, "", None, Limits(memory=2**31)).seen
    path.write_text(
        "def softmax(S):\n    open('big', 'wb').write(bytes(2 * 10**7))\n", encoding="utf-8"
    )
    if sys.platform == "linux":
        assert grade_file(path, "", None, Limits()).verdict == "not yet"
    path.write_text(
        "def softmax(S):\n    print('x' * 10**7)\n    return S.repeat(10**6)\n", encoding="utf-8"
    )
    assert "expected at most 67,108,864" in grade_file(path, "", None, Limits()).seen


def test_a_class_is_graded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder := tmp_path / "in").mkdir()
    handed_in(folder, **{"ada": INNER, "=bob": FORGOTTEN, "cy": FORGOTTEN})
    grades = tmp_path / "grades.csv"
    results = tmp_path / "results.json"
    assert (
        main(["exercise", "grade", str(folder), "--csv", str(grades), "--gradescope", str(results)])
        == 1
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "1 solved, 2 not yet, 0 not graded" in out
    assert "Most common mistakes: 2 × inner_loop: The old O_i is not rescaled" in out
    with grades.open(newline="", encoding="utf-8") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert [row["verdict"] for row in rows.values()] == ["not yet", "solved", "not yet"]
    assert next(iter(rows)).startswith("'=bob")
    tests = json.loads(results.read_text(encoding="utf-8"))["tests"]
    assert [(test["score"], test["max_score"], test["status"]) for test in tests] == [
        (0.0, 1.0, "failed"),
        (1.0, 1.0, "passed"),
        (0.0, 1.0, "failed"),
    ]
    assert "The old O_i is not rescaled" in tests[0]["output"]


def test_each_outcome_has_a_status_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handed_in(tmp_path, ada=INNER)
    assert main(["exercise", "grade", str(tmp_path)]) == 0
    (tmp_path / "ada" / "notes.py").write_text("", encoding="utf-8")
    assert main(["exercise", "grade", str(tmp_path)]) == 3
    assert "notes.py" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    results = tmp_path / "results.json"
    assert main(["exercise", "grade", str(tmp_path / "empty")]) == 2
    assert (
        main(
            [
                "exercise",
                "grade",
                str(tmp_path / "empty"),
                "--exercise",
                "5",
                "--gradescope",
                str(results),
            ]
        )
        == 1
    )
    assert "No .py file was handed in." in results.read_text(encoding="utf-8")


def test_a_link_and_a_notebook_are_said_and_not_left_out(tmp_path: Path) -> None:
    handed_in(tmp_path, ada=INNER)
    (tmp_path / "bob_05_inner_loop.py").symlink_to(tmp_path / "ada" / "05_inner_loop.py")
    (tmp_path / "cy_05_inner_loop.ipynb").write_text("{}", encoding="utf-8")
    grades = tmp_path / "grades.csv"
    assert main(["exercise", "grade", str(tmp_path), "--csv", str(grades)]) == 3
    with grades.open(newline="", encoding="utf-8") as file:
        message = [(row["verdict"], row["seen"]) for row in csv.DictReader(file)]
    assert [verdict for verdict, _ in message] == ["solved", "not graded", "not graded"]
    assert "a link" in message[1][1]
    assert "a notebook" in message[2][1]


def test_a_name_says_which_exercise_a_file_is_of_and_the_option_before_it(tmp_path: Path) -> None:
    for name in (
        "05_inner_loop",
        "ada_05_inner_loop",
        "05_ada",
        "05_inner_loop (1)",
        "05_inner_loop_notebook",
    ):
        assert exercise_named(Path(f"{name}.py")) == exercise("5")
    assert exercise_named(Path("notes.py")) is None
    (path := tmp_path / "03_mine.py").write_text(
        f'"""Exercise 5: …"""\n{SOFTMAX}', encoding="utf-8"
    )
    assert exercise_of(path) == exercise("3")
    assert exercise_of(path, "5") == exercise("5")
    assert main(["exercise", "check", str(path)]) == 0
    assert main(["exercise", "check", str(path), "--exercise", "5"]) == 1
    assert grade_file(path, "", exercise("5"), Limits()).verdict == "not yet"


OWN = (
    '''
import numpy as np
from flashsim.learn.exercises.checks import expect
NUMBER, TITLE, HINTS = 21, "twice", ("2 * x",)
TEXT = """
Return twice x.
"""
import numpy as np


def twice(x):
    return ...
"""'''.replace('"""\nimport numpy as np\n\n\ndef', '\\"\\"\\"\nimport numpy as np\n\n\ndef')
    + """

def grade(work):
    expect("twice(x)", work.function("twice")(np.arange(3.0)), 2 * np.arange(3.0), {})
    return "three numbers"
"""
)


def test_an_exercise_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own := tmp_path / "doubling.py").write_text(OWN, encoding="utf-8")
    (folder := tmp_path / "in").mkdir()
    assert main(["exercise", "start", str(own), str(folder)]) == 0
    path = folder / "21_doubling.py"
    text = path.read_text(encoding="utf-8")
    assert "Return twice x." in text
    assert main(["exercise", "check", str(path), "--exercise", str(own), "--hint"]) == 1
    assert "Hint 1 of 1: 2 * x" in capsys.readouterr().out
    path.write_text(text.replace("...", "2 * x"), encoding="utf-8")
    assert main(["exercise", "check", str(path), "--exercise", str(own)]) == 0
    assert main(["exercise", "grade", str(folder), "--exercise", str(own)]) == 0
    for text, message in (
        ("NUMBER = 1\n", "is not an exercise"),
        ("1 / 0\n", r"doubling\.py, line 1: ZeroDivisionError"),
    ):
        own.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            exercise(str(own))
    with pytest.raises(ValueError, match="there is no file"):
        exercise("none.py")


def test_what_is_packed_is_unpacked() -> None:
    values = [
        None,
        True,
        3,
        2.5,
        "x",
        np.arange(6).reshape(2, 3),
        np.float32(2),
        np.bool_(True),
        np.zeros((0, 2)),
        (1, (np.ones(2), "a")),
        Blocks(1, 2, N_q=3, N_k=4),
    ]
    for value in values:
        result = unpack(json.loads(json.dumps(pack(value))))
        assert type(result) is type(value)
        assert str(result) == str(value)
    # of what is not a number the name alone is kept
    for thing in ({1: 2}, 10**5000, np.array([None]), lambda: 0):
        result = unpack(json.loads(json.dumps(pack(thing))))
        assert type(result).__name__ == type(thing).__name__
        assert result != thing


def test_what_is_no_value_or_cannot_have_been_done_to_a_memory_is_refused() -> None:
    messages: list[Any] = [
        [],
        ["array", "|O", [1], ""],
        ["array", "<f8", [10**9, 10**9], ""],
        ["scalar", "<f8", [2], "AAAA"],
        ["matrix", "K", 1, 1, None],
        {},
        ["plain", []],
    ]
    for message in messages:
        with pytest.raises((ValueError, TypeError)):
            unpack(message)
    entries: list[Any] = [
        ["load", "X", [0, 9, 0, 2], None],
        ["load", "X", [-1, 1, 0, 2], None],
        ["load", "Z", [0, 1, 0, 2], None],
        ["load", "X", [1, 1, 0, 2], None],
        ["store", "X", [0, 1, 0, 2], pack(np.ones((2, 2)))],
        ["store", "X", [0, 1, 0, 2], pack(3)],
        ["compute", "S", pack(1)],
        ["turn end", []],
        ["evict"],
        7,
    ]
    for entry in entries:
        memory = ExerciseMemory({"X": np.ones((3, 2))})
        replay(memory.hbm, memory.sram, ["load", "X", [0, 2, 0, 2], None])
        assert memory.accesses("X") == (4, 0)
        with pytest.raises((ValueError, KeyError, IndexError)):
            replay(memory.hbm, memory.sram, entry)


def test_the_most_common_mistake_comes_first() -> None:
    rows = [
        Row("", "a", "not yet", "1", "h"),
        Row("", "a", "not yet", "2"),
        Row("", "a", "not yet", "3", "h"),
        Row("", "a", "solved", "4", "h"),
    ]
    assert mistakes(rows) == [(2, "a", "h"), (1, "a", "2")]
    assert len(exercises()) == 14


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a folder nor a process, though the file starts one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    text = (
        f"{OS}.system('sleep 300 & echo $! > {tmp_path}/pid')\nopen('kept', 'w').write('x')\n"
        f"{SOFTMAX}"
    )
    (path := tmp_path / "03_softmax.py").write_text(text, encoding="utf-8")
    grade_file(path, "", None, Limits())
    assert [*(tmp_path / "temporary").iterdir()] == []
    if sys.platform == "linux":
        pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
        ended = time.monotonic() + 20
        while is_running(pid) and time.monotonic() < ended:
            time.sleep(0.05)
        assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] not in "ZX"
    except OSError:
        return False
