"""Masks, as rules, bands, paddings, trees and biases; block patterns; dropout.

A mask that a file of this folder defines is an attribute of `flashsim.attention.masks`; nothing
else has to name it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any


def __dir__() -> list[str]:
    """Return the names of the files, and of the classes in them."""
    names = [name for name in globals() if not name[:1].isupper()]
    for file in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        names.append(file.name)
        for name, value in vars(module).items():
            if name[:1].isupper() and getattr(value, "__module__", "") == module.__name__:
                names.append(name)
    return sorted({*names})


def __getattr__(name: str) -> Any:
    """Find a mask by its class's name, which begins with a capital letter, as no file's does."""
    if name[:1].isupper():
        for file in pkgutil.iter_modules(__path__):
            value = vars(import_module(f"{__name__}.{file.name}")).get(name)
            if getattr(value, "__module__", "") == f"{__name__}.{file.name}":
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
