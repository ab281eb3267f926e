"""A user's machine from a JSON or TOML file: `read_machine`. docs/sweeps.md has an example."""

from __future__ import annotations

import json
import math
import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flashsim.attention.arguments import is_one_of, near, short_repr
from flashsim.attention.inputs import float_name
from flashsim.hardware.machines import MACHINES, Machine
from flashsim.support.schema import convert
from flashsim.support.sizes import parse_size

SUFFIXES = (".json", ".toml")


@dataclass(frozen=True, kw_only=True)
class _MachineFile:
    """`Machine` in a file. A size is in bytes, or text with a unit, "228KB"."""

    name: str
    sram_per_sm: int | str
    l2: int | str = 0
    hbm: int | str
    sms: int
    bandwidth: float
    peak: dict[str, float]
    sources: dict[str, str] = field(default_factory=dict)
    notes: str = ""


def read_machine(path: str | os.PathLike[str]) -> Machine:
    """Return the machine that a file describes, by `Machine`'s fields.

    Sizes are bytes, or text with a unit ("228KB", 1 KB = 1024 bytes). `l2` is 0 where it is left
    out. Raises ValueError for what is not a machine, with the file's name, the field, and what was
    expected.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{path} is neither .json nor .toml; expected a file that describes a machine"
        )
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # JSON, TOML and UTF-8 raise them
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}") from None
    try:
        return _machine(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def machine_of(what: str | Machine) -> Machine:
    """Return a machine of the table by its name, of a file by its path, or `what` itself, if it is
    a machine. Raises ValueError for anything else.
    """
    if isinstance(what, Machine):
        return what
    if is_one_of(what, MACHINES):
        return MACHINES[what]
    if isinstance(what, str | os.PathLike) and Path(what).suffix.lower() in SUFFIXES:
        return read_machine(what)
    known = f"known: {', '.join(MACHINES)}; yours is FILE.json or FILE.toml"
    raise ValueError(f"unknown machine {short_repr(what)}; {known}")


def _machine(data: Any) -> Machine:
    names = [field.name for field in fields(_MachineFile)]
    for name in data if isinstance(data, dict) else ():
        if name not in names:
            close = near(name, names)
            hint = f", perhaps {close} is meant" if close else ""
            raise ValueError(f"it has {short_repr(name)}{hint}; expected {', '.join(names)}")
    file = convert(data, _MachineFile)
    if not file.name:
        raise ValueError("name is ''; expected text")
    if file.sms < 1:
        raise ValueError(f"sms is {short_repr(file.sms)}; expected a whole number of at least 1")
    if not file.peak:
        raise ValueError('peak is {}; expected FLOP/s by dtype, such as {"float16": 1e15}')
    return Machine(
        name=file.name,
        sram_per_sm=_bytes("sram_per_sm", file.sram_per_sm, 1),
        sms=file.sms,
        l2=_bytes("l2", file.l2, 0),
        hbm=_bytes("hbm", file.hbm, 1),
        bandwidth=_rate("bandwidth", file.bandwidth, "bytes/s"),
        peak={
            float_name(dtype): _rate(f"peak of {dtype}", rate, "FLOP/s")
            for dtype, rate in file.peak.items()
        },
        sources=file.sources,
        notes=file.notes,
    )


def _bytes(name: str, size: int | str, least: int) -> int:
    if isinstance(size, str):
        try:
            return parse_size(size, 1)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if size < least:
        raise ValueError(
            f'{name} is {short_repr(size)}; expected bytes, or text with a unit, such as "228KB"'
        )
    return size


def _rate(name: str, rate: float, unit: str) -> float:
    if not 0 < rate < math.inf:
        raise ValueError(f"{name} is {short_repr(rate)}; expected {unit}, a finite number above 0")
    return rate
