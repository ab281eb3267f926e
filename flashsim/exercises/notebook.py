"""An exercise as a Jupyter notebook: its text, a cell with its holes, a cell that checks, a cell for hints.

The cell with the holes writes them to a file, which `flashsim exercise check` grades as it does any other.
"""

from __future__ import annotations

import json
from typing import Any

from flashsim.exercises.record import Exercise


def notebook(exercise: Exercise) -> str:
    """Return the notebook's file, JSON of nbformat 4.5."""
    explained, code = exercise.parts()
    file = f"{exercise.number:02}_{exercise.name}_notebook.py"  # not the file of `start`, which has work of its own
    check = (
        f'from flashsim.cli import main\n\nmain(["exercise", "check", "{file}"'  # in this kernel, whatever is on PATH
    )
    cells = [
        ("markdown", f"# {exercise.heading}\n\n{explained}\n\nFill the holes, each written `...`, and run the cell."),
        ("code", f"%%writefile {file}\n{code.strip()}\n"),
        ("code", f"{check}]);"),
        ("markdown", "A hint? Run this cell; each time you get the next."),
        ("code", f'{check}, "--hint"]);'),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found = {
        "cells": [_cell(number, kind, source) for number, (kind, source) in enumerate(cells, 1)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
