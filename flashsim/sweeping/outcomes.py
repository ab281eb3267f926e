"""What a point comes to: by its closed form where there is one, else by a count; or the reason why it makes no sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashsim.api import Tally, count
from flashsim.memory import MemoryModelError, SramOverflow
from flashsim.records import Blocks, Occupancy, Traffic
from flashsim.sweeping.points import Point
from flashsim.theory import Exact, NoClosedForm, exact

Status = Literal["ok", "does not fit", "refused"]


@dataclass(frozen=True)
class Outcome:
    """What a point costs.

    status  "ok"; "does not fit": blocks that are enforced take more than M, so a run would raise `SramOverflow`; "refused":
            the arguments make no sense
    reason  why there are no counts
    source  "closed form" or "count"
    hbm     None unless "ok"; sram and blocks are known where it does not fit, too, by closed form
    """

    status: Status
    reason: str = ""
    source: str = ""
    hbm: Traffic | None = None
    sram: Occupancy | None = None
    blocks: Blocks | None = None
    matmul: int | None = None


def outcome(point: Point) -> Outcome:
    """Return what a point comes to."""
    if point.way.algorithm is None:
        return Outcome("refused", point.way.refused)
    if "d" not in point.arguments:
        return Outcome("refused", "d is missing: give the head dimension")
    try:
        return by_form(point)
    except NoClosedForm:
        return by_count(point)
    except (ValueError, TypeError) as error:
        return Outcome("refused", _said(error))


def by_form(point: Point) -> Outcome:
    """Return it by the closed form. Raises NoClosedForm, or ValueError where a run would, too."""
    way, arguments = point.way, point.arguments
    if way.form is None or way.algorithm is None:
        raise NoClosedForm(f"no closed form for {way.name!r}")
    found: Exact = exact(way.form, **arguments)
    if arguments.get("blocks") is None and arguments.get("sizing", "paper") == "paper":
        d, d_v = arguments["d"], arguments.get("d_v")
        way.algorithm.rows(
            found.sram.capacity, d, d if d_v is None else d_v
        )  # ValueError where M is too small for line 1
    if found.sram.enforced and found.sram.peak > found.sram.capacity:
        B, use = found.blocks, found.sram
        what = f"blocks of {B.B_r:,} × {B.B_c:,}" + (", the smallest," if arguments.get("blocks") is None else "")
        reason = (
            f"{what} take {use.peak:,} elements of SRAM, {use.peak - use.capacity:,} more than M = {use.capacity:,}"
        )
        return Outcome("does not fit", reason, "closed form", None, use, B)
    return Outcome("ok", "", "closed form", found.hbm, found.sram, found.blocks, found.matmul)


def by_count(point: Point) -> Outcome:
    """Return it by counting on shapes."""
    algorithm = point.way.algorithm
    assert algorithm is not None
    try:
        tally: Tally = count(algorithm, **point.arguments)
    except SramOverflow as error:
        return Outcome("does not fit", _said(error), "count")
    except (ValueError, TypeError, MemoryModelError) as error:
        return Outcome("refused", _said(error))
    return Outcome("ok", "", "count", tally.hbm, tally.sram, tally.blocks, tally.flops.matmul)


def _said(error: Exception) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    kind = "" if isinstance(error, ValueError | MemoryModelError) else f"{type(error).__name__}: "
    return f"{kind}{error}{notes}"
