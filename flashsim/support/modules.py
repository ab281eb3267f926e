"""The modules of a package, and the records that they end in: the one way in which a room lists
what it holds.
"""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

Record = TypeVar("Record")


def modules_of(package: str) -> list[ModuleType]:
    """Return all modules in a package's folder, imported, in the order of their names."""
    return [
        import_module(f"{package}.{file.name}")
        for file in iter_modules(import_module(package).__path__)
    ]


def records_of(package: str, name: str, kind: type[Record]) -> list[Record]:
    """Return what the modules of a package call `name`, such as ALGORITHM, PROGRAM or FORM, if
    it is of this kind.
    """
    records = []
    for module in modules_of(package):
        record = getattr(module, name, None)
        if isinstance(record, kind):
            records.append(record)
    return records
