"""Machines of one's own, from a file of JSON or TOML: `read_machine`. The documentation has an
example (docs/sweeps.md).
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashsim.attention.arguments import is_one_of, near, shown
from flashsim.attention.inputs import float_name
from flashsim.hardware.machines import MACHINES, Machine
from flashsim.support.sizes import parse_size

SIZES = ("sram_per_sm", "l2", "hbm")
NUMBERS = ("sms", "bandwidth")
FIELDS = ("name", *SIZES, *NUMBERS, "peak", "sources", "notes")
NEEDED = ("name", "sram_per_sm", "sms", "hbm", "bandwidth", "peak")
SUFFIXES = (".json", ".toml")


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
        held = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of both languages, and of what is not text
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}") from None
    try:
        return _machine(held)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def machine_of(what: str | Machine) -> Machine:
    """Return a machine of the table by its name, of a file by its path, or as it is. Raises
    ValueError.
    """
    if isinstance(what, Machine):
        return what
    if is_one_of(what, MACHINES):
        return MACHINES[what]
    if isinstance(what, str | os.PathLike) and Path(what).suffix.lower() in SUFFIXES:
        return read_machine(what)
    known = f"known: {', '.join(MACHINES)}; yours is FILE.json or FILE.toml"
    raise ValueError(f"unknown machine {shown(what)}; {known}")


def _machine(held: Any) -> Machine:
    if not isinstance(held, Mapping):
        raise ValueError(f"it holds {shown(held)}; expected fields by name")
    for name in held:
        if name not in FIELDS:
            close = near(name, FIELDS)
            meant = f", perhaps {close} is meant" if close else ""
            raise ValueError(f"it has {shown(name)}{meant}; expected {', '.join(FIELDS)}")
    for name in NEEDED:
        if name not in held:
            raise ValueError(f"{name} is missing; expected {', '.join(NEEDED)}")
    for name in ("name", "notes"):
        if not isinstance(held.get(name, "-"), str) or not held.get(name, "-"):
            raise ValueError(f"{name} is {shown(held[name])}; expected text")
    sram, l2, hbm = (_bytes(name, held.get(name, 0)) for name in SIZES)
    sms = held["sms"]
    sources = held.get("sources", {})
    if type(sms) is not int or sms < 1:
        raise ValueError(f"sms is {shown(sms)}; expected a whole number of at least 1")
    if not isinstance(sources, Mapping) or not all(
        isinstance(said, str) for said in sources.values()
    ):
        raise ValueError(f"sources is {shown(sources)}; expected text by what it is of")
    peak = held["peak"]
    if not isinstance(peak, Mapping) or not peak:
        raise ValueError(
            f'peak is {shown(peak)}; expected FLOP/s by dtype, such as {{"float16": 1e15}}'
        )
    rates = {
        float_name(dtype): _rate(f"peak of {dtype}", rate, "FLOP/s") for dtype, rate in peak.items()
    }
    bandwidth = _rate("bandwidth", held["bandwidth"], "bytes/s")
    notes = held.get("notes", "")
    return Machine(held["name"], sram, sms, l2, hbm, bandwidth, rates, dict(sources), notes)


def _bytes(name: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_size(value, 1)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    least = 0 if name == "l2" else 1
    if type(value) is not int or value < least:
        raise ValueError(
            f'{name} is {shown(value)}; expected bytes, or text with a unit, such as "228KB"'
        )
    return value


def _rate(name: str, value: Any, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {shown(value)}; expected {unit}, a finite number above 0")
    return float(value)
