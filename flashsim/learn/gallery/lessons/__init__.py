"""The lessons: one in each module of this folder.

A module's docstring says in a line what the lesson is about; `Page` says what TITLE, ORDER,
`teach`, and RUN or `record` are.
"""

import pkgutil
from functools import cache, partial
from importlib import import_module

from flashsim.learn.gallery.page import Page, traces_of


@cache
def pages() -> dict[str, Page]:
    """Return the lessons by name, in the order in which students read them."""
    lessons = []
    for file in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        run = getattr(module, "RUN", {})
        record = partial(traces_of, **run) if run else module.record
        about = module.__doc__ or ""
        lessons.append(
            Page(file.name, module.TITLE, int(module.ORDER), about, run, record, module.teach)
        )
    lessons.sort(key=lambda page: page.order)
    return {page.name: page for page in lessons}
