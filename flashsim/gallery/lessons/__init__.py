"""The lessons, one a file, which nothing else has to name.

Its docstring says in a line what it is about; `Page` says what TITLE, ORDER, `record`, `teach` and, if there is one, COMMAND are.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from flashsim.gallery.page import Page


@cache
def pages() -> dict[str, Page]:
    """Return the lessons by name, in the order in which they are to be read."""
    modules = {file.name: import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)}
    return {
        name: Page(m.TITLE, m.ORDER, m.__doc__ or "", m.record, m.teach, getattr(m, "COMMAND", ""))
        for name, m in sorted(modules.items(), key=lambda item: int(item[1].ORDER))
    }
