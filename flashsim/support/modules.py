"""The modules of a package, for records that files end in."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def modules_of(package: str) -> list[ModuleType]:
    """Return all modules in a package's folder, imported, in the order of their names."""
    return [import_module(f"{package}.{file.name}") for file in iter_modules(import_module(package).__path__)]
