"""Fields of a frozen dataclass, converted while it is made."""

from typing import Any


def set_fields(record: object, **values: Any) -> None:
    """Set fields of a frozen dataclass, in its `__post_init__` alone: what is made does not change.

    A dataclass has no converters: this is what Python's documentation names for a frozen one.
    """
    for name, value in values.items():
        object.__setattr__(record, name, value)
