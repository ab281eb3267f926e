"""The lessons, one a file, which nothing else has to name.

Its docstring says in a line what it is about; `Page` says what TITLE, ORDER, `teach`, and RUN or
`record` are.
"""

import pkgutil
from functools import cache, partial
from importlib import import_module

from flashsim.learn.gallery.page import Page, traces_of


@cache
def pages() -> dict[str, Page]:
    """Return the lessons by name, in the order in which they are to be read."""
    modules = {
        file.name: import_module(f"{__name__}.{file.name}")
        for file in pkgutil.iter_modules(__path__)
    }
    found = {}
    for name, m in sorted(modules.items(), key=lambda item: int(item[1].ORDER)):
        run = getattr(m, "RUN", {})
        record = partial(traces_of, **run) if run else m.record
        found[name] = Page(name, m.TITLE, m.ORDER, m.__doc__ or "", run, record, m.teach)
    return found
