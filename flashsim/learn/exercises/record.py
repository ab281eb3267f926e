"""What an exercise is.

To add an exercise:

1. A file in `flashsim/learn/exercises/` with NUMBER and TITLE, the student's text with holes `...`
   (at most a screen of 80 columns), hints, `grade`, which raises `Wrong`, and typical mistakes,
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

from flashsim.learn.exercises.work import Work

CHECK = '''"""{heading}.

{explained}

Check it:         flashsim exercise check {file}
Ask for a hint:   add --hint; each time you get the next
"""
{code}
'''


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    number, name, title  where it comes, what it is called, and what it is about
    text   the student's file: a docstring that explains, then code with holes, each written `...`
    hints  for everyone, from the first nudge to nearly the answer
    grade  judges a student's work: returns in a sentence what was verified, or raises `Wrong`
    right  the algorithm that its file is a part of, beside which it can be played; "": none
    whole  (the student's function) -> a forward pass, `f(hbm, sram, Q, K, V, blocks)`; None where
           there is no `right`
    """

    number: int
    name: str
    title: str
    text: str
    hints: tuple[str, ...]
    grade: Callable[[Work], str]
    right: str = ""
    whole: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

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
        """The first line of the student's file. It says later which exercise the file is of."""
        return f"Exercise {self.number}: {self.title}"

    def fresh(self) -> str:
        """Return the student's file as it begins."""
        explained, code = self.parts()
        return CHECK.format(heading=self.heading, explained=explained, file=self.file, code=code)

    def parts(self) -> tuple[str, str]:
        """Return what the file explains, and its code with holes."""
        explained, _, code = self.text.strip("\n").partition('\n"""\n')
        return explained, code

    def as_notebook(self) -> str:
        """Return it as a Jupyter notebook, JSON of nbformat 4.5: its text, and cells with its
        holes, to check, and for hints.

        The cell with the holes writes them to a file, which `flashsim exercise check` grades as it
        does any other.
        """
        explained, code = self.parts()
        explained = "\n\n".join(map(_fenced, explained.split("\n\n")))
        # not the file of `start`, which has work of its own
        file = f"{self.number:02}_{self.name}_notebook.py"
        # in this kernel, whatever is on PATH
        check = f'from flashsim.cli import main\n\nmain(["exercise", "check", "{file}"'
        cells = [
            (
                "markdown",
                (
                    f"# {self.heading}\n\n{explained}\n\nFill the holes, each written `...`, and "
                    "run the cell."
                ),
            ),
            ("code", f"%%writefile {file}\n{code.strip()}\n"),
            ("code", f"{check}]);"),
            ("markdown", "A hint? Run this cell; each time you get the next."),
            ("code", f'{check}, "--hint"]);'),
        ]
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        found = {
            "cells": [
                _cell(number, kind, source) for number, (kind, source) in enumerate(cells, 1)
            ],
            "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _fenced(paragraph: str) -> str:
    """Return a paragraph of Markdown; one of numbered lines is a listing, which keeps its lines."""
    return f"```text\n{paragraph}\n```" if re.match(r" ?\d+  ", paragraph) else paragraph


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
