"""All forms, collected from this folder's files."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flashsim.checking import check_direction, checked, is_one_of, shown
from flashsim.records import Blocks
from flashsim.theory.form import Form
from flashsim.theory.formulas import common_symbols
from flashsim.theory.problem import NoClosedForm, OneHead


@cache
def forms() -> dict[str, dict[str, Form]]:
    """Return every `FORM` of this folder, by direction and then by name."""
    found: dict[str, dict[str, Form]] = {"forward": {}, "backward": {}}
    for file in pkgutil.iter_modules([str(Path(__file__).parent)]):
        form = getattr(import_module(f"flashsim.theory.{file.name}"), "FORM", None)
        if isinstance(form, Form):
            found[form.direction][form.name] = form
    return found


def form_of(what: Any, direction: str) -> Form:
    """Return the form of that name, or that form; or, of a user's own algorithm, the form that stands in its file.

    That is the `Form` among the names of the module that defines the function, if it has the function's name (or the
    record's) and direction. Raises NoClosedForm, a ValueError, where there is none, and ValueError for an unknown direction.
    """
    if isinstance(what, Form):
        return what
    known = forms()[check_direction(direction)]
    beside = None if isinstance(what, str) else _beside(what, direction)
    name = getattr(what, "name", what)
    if beside is None and not is_one_of(name, known):
        raise NoClosedForm(f"no closed form for {shown(name)}, {direction}; known: {', '.join(map(repr, known))}")
    return known[name] if beside is None else beside


def _beside(algorithm: Any, direction: str) -> Form | None:
    function = inspect.unwrap(getattr(algorithm, "run", algorithm))
    module = sys.modules.get(getattr(function, "__module__", ""))
    names = (getattr(algorithm, "name", ""), getattr(function, "__name__", ""))
    forms_there = [value for value in vars(module).values() if isinstance(value, Form)] if module else []
    return next((form for form in forms_there if form.name in names and form.direction == direction), None)


def formulas(name: Any, direction: str = "forward") -> Mapping[str, tuple[str, str]]:
    """Return (reads, writes) of each array as text, in `SYMBOLS`. `name`, and errors, as in `form_of`."""
    return form_of(name, direction).formulas


@checked
def symbols(
    N_q: int, N_k: int, d: int, d_v: int, M: int, blocks: Blocks, *, direction: str = "forward"
) -> dict[str, int]:
    """Return the value of each of `SYMBOLS`, to evaluate a formula with. Raises ValueError for what is no size."""
    values = common_symbols(N_q, N_k, d, d_v, M, blocks, direction)
    p = OneHead(N_q, N_k, d, d_v, M, stored=4, masked=False, dense=(), dropout=False)
    for form in forms()["forward"].values():
        values |= form.symbols(p, blocks) if form.symbols else {}
    return values
