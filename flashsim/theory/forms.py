"""All forms, collected from this folder's files."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

from flashsim.checking import check_direction, is_one_of, shown
from flashsim.theory.form import Form


@cache
def forms() -> dict[str, dict[str, Form]]:
    """Return every `FORM` of this folder, by direction and then by name."""
    found: dict[str, dict[str, Form]] = {"forward": {}, "backward": {}}
    for file in pkgutil.iter_modules([str(Path(__file__).parent)]):
        form = getattr(import_module(f"flashsim.theory.{file.name}"), "FORM", None)
        if isinstance(form, Form):
            found[form.direction][form.name] = form
    return found


def form_of(name: str, direction: str) -> Form:
    """Return the form of that name. Raises ValueError for an unknown name or direction."""
    known = forms()[check_direction(direction)]
    if not is_one_of(name, known):
        raise ValueError(f"no closed form for {shown(name)}, {direction}; known: {', '.join(map(repr, known))}")
    return known[name]
