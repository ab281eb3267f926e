"""Data of a JSON or TOML file as typed records. msgspec checks each value against its type."""

import re
from reprlib import repr as short_repr
from typing import Any, TypeVar

Record = TypeVar("Record")


def convert(data: Any, kind: type[Record]) -> Record:
    """Return what JSON or TOML holds as a record: a dataclass, or a `msgspec.Struct`.

    Raises ValueError with the place, the value there, and what was expected.
    """
    import msgspec  # 6 ms, for those who read a file

    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        reason = reason[:1].lower() + reason[1:]
        place = path.strip(".`")
        if not place:
            raise ValueError(reason) from None
        raise ValueError(f"{place} is {short_repr(_value_at(data, place))}; {reason}") from None


def _value_at(data: Any, place: str) -> Any:
    """Return the value at a place such as "about.arrays[0].reads".

    msgspec writes [...] for an entry of a dictionary; then the dictionary is returned.
    """
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
        data = data[name] if name else data[int(index)]
    return data
