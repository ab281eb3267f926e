"""`Exercise`: an exercise's text, hints and grading.

To add an exercise:

1. A file in `flashsim/learn/exercises/` with NUMBER and TITLE, the student's text with holes `...`
   (at most a screen of 80 columns), hints, `grade`, which raises `Mistake`, and typical mistakes,
   each with the numbers that it leads to.
2. A solution in `scripts/exercise_solutions.py`, and at least two mistakes with their hints in
   `tests/helpers/exercise_solutions.py`.
3. Its line in `docs/exercises.md`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashsim.learn.exercises.submission import Submission

CHECK = '''"""{heading}.

{explanation}

Check it:         flashsim exercise check {file}
Ask for a hint:   add --hint; each time you get the next
"""
{code}
'''


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    number        its place in the order
    name          of its module and of the student's file
    title         its subject
    text          the student's file: a docstring that explains, then code with holes, each `...`
    hints         for everyone, from the first nudge to nearly the answer
    grade         grades a submission: returns in a sentence what was verified, or raises `Mistake`
    algorithm     the algorithm of which the file is a part, and with which the player compares it;
                  "": none
    as_algorithm  (the student's function) -> a forward pass, `f(hbm, sram, Q, K, V, blocks)`; None
                  without an `algorithm`
    """

    number: int
    name: str
    title: str
    text: str
    hints: tuple[str, ...]
    grade: Callable[[Submission], str]
    algorithm: str = ""
    as_algorithm: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    @property
    def file(self) -> str:
        """The name of the student's file."""
        return f"{self.number:02}_{self.name}.py"

    @property
    def notebook(self) -> str:
        """The name of the student's notebook."""
        return f"{self.number:02}_{self.name}.ipynb"

    @property
    def heading(self) -> str:
        """The first line of the student's file. By it the grader knows the file's exercise."""
        return f"Exercise {self.number}: {self.title}"

    def starting_text(self) -> str:
        """Return the student's file with all its holes."""
        explanation, code = self.explanation_and_code()
        return CHECK.format(
            heading=self.heading, explanation=explanation, file=self.file, code=code
        )

    def explanation_and_code(self) -> tuple[str, str]:
        """Return the two parts of the text: what it explains, and code with holes."""
        explanation, _, code = self.text.strip("\n").partition('\n"""\n')
        return explanation, code

    def as_notebook(self) -> str:
        """Return the exercise as a Jupyter notebook, JSON of nbformat 4.5. It has the explanation,
        and cells with the holes, to check, and for hints.

        The cell with the holes writes them to a file, which `flashsim exercise check` grades as any
        other.
        """
        explanation, code = self.explanation_and_code()
        paragraphs = "\n\n".join(map(_fenced, explanation.split("\n\n")))
        # not the file of `start`, which may have the student's work
        file = f"{self.number:02}_{self.name}_notebook.py"
        # in the notebook's own Python, whatever is on PATH
        check = f'from flashsim.cli import main\n\nmain(["exercise", "check", "{file}"'
        introduction = (
            f"# {self.heading}\n\n{paragraphs}\n\nFill the holes, each written `...`, and run the "
            "cell."
        )
        cells = [
            ("markdown", introduction),
            ("code", f"%%writefile {file}\n{code.strip()}\n"),
            ("code", f"{check}]);"),
            ("markdown", "A hint? Run this cell; each time you get the next."),
            ("code", f'{check}, "--hint"]);'),
        ]
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {
            "cells": [_cell(number, *cell) for number, cell in enumerate(cells, 1)],
            "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _fenced(paragraph: str) -> str:
    """Return a paragraph of Markdown. Numbered lines are a listing, which keeps its lines."""
    return f"```text\n{paragraph}\n```" if re.match(r" ?\d+  ", paragraph) else paragraph


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    if kind == "code":
        cell["execution_count"] = None
        cell["outputs"] = []
    return cell
