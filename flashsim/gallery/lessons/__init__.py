"""The lessons, one a file: each file in this folder that ends in a `Page` is one, and nothing else has to name it."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from flashsim.gallery.page import Page


@cache
def pages() -> dict[str, Page]:
    """Return the lessons by name, in the order in which they are to be read."""
    modules = {file.name: import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)}
    found = {name: module.PAGE for name, module in modules.items() if isinstance(getattr(module, "PAGE", None), Page)}
    return dict(sorted(found.items(), key=lambda item: item[1].order))
