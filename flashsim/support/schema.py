"""Data of a JSON or TOML file as typed records. msgspec checks each value against its type."""

import re
from dataclasses import fields, is_dataclass
from reprlib import repr as short_repr
from typing import Any, TypeVar

Record = TypeVar("Record")


def convert(data: Any, kind: type[Record]) -> Record:
    """Return what JSON or TOML holds as a record, a dataclass.

    Raises ValueError with the place, the value there, and what was expected; and for a name that a
    record lacks, which msgspec leaves out.
    """
    import msgspec  # 6 ms, for those who read a file

    try:
        record = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        reason = reason[:1].lower() + reason[1:]
        place = path.strip(".`")
        if not place:
            raise ValueError(reason) from None
        raise ValueError(f"{place} is {short_repr(_value_at(data, place))}; {reason}") from None
    _check_names(data, record, "")
    return record


def _check_names(data: Any, record: Any, place: str) -> None:
    """Check that JSON has no name that the record made of it lacks, nor do records within it."""
    if isinstance(record, tuple) and record and is_dataclass(record[0]):
        for n, entry in enumerate(record):
            _check_names(data[n], entry, f"{place}[{n}]")
    if not is_dataclass(record):
        return
    names = [field.name for field in fields(record)]
    for name, value in data.items():
        if name not in names:
            raise ValueError(f"{place or 'it'} has {short_repr(name)}; expected {', '.join(names)}")
        _check_names(value, getattr(record, name), f"{place}.{name}".lstrip("."))


def _value_at(data: Any, place: str) -> Any:
    """Return the value at a place such as "about.arrays[0].reads".

    msgspec writes [...] for an entry of a dictionary; then the dictionary is returned.
    """
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
        data = data[name] if name else data[int(index)]
    return data
