"""What a point of a sweep costs: by its closed form where it has one, else by a count; or the
reason why it has no counts.
"""

from dataclasses import dataclass
from inspect import signature

from flashsim.analysis.sweeping.points import Point
from flashsim.analysis.sweeping.records import Status
from flashsim.attention.shapes import Blocks
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.simulate.api import count
from flashsim.support.entry import one_line
from flashsim.theory import Exact, NoClosedForm, exact

DEFAULTS = {name: parameter.default for name, parameter in signature(count).parameters.items()}


@dataclass(frozen=True)
class Cost:
    """What a point costs.

    status  "ok"; "does not fit": blocks that are enforced take more than M, so a run would raise
            `SramOverflow`; "refused": the arguments make no sense
    reason  why there are no counts
    source  "closed form" or "count"
    hbm     None unless "ok". A closed form knows sram and blocks also where they do not fit
    matmul  FLOPs of the matrix products
    """

    status: Status
    reason: str = ""
    source: str = ""
    hbm: Traffic | None = None
    sram: Occupancy | None = None
    blocks: Blocks | None = None
    matmul: int | None = None


def cost_of(point: Point) -> Cost:
    """Return what a point costs."""
    if point.algorithm_pass.algorithm is None:
        return Cost("refused", point.algorithm_pass.refusal)
    if "d" not in point.arguments:
        return Cost("refused", "d is missing: give the head dimension")
    try:
        return by_form(point)
    except NoClosedForm:
        return by_count(point)
    except (ValueError, TypeError) as error:
        return Cost("refused", _reason(error))


def by_form(point: Point) -> Cost:
    """Return the cost by the closed form. Raises NoClosedForm; ValueError where a run would."""
    algorithm = point.algorithm_pass.algorithm
    form = point.algorithm_pass.form
    arguments = point.arguments
    if form is None or algorithm is None:
        raise NoClosedForm(f"no closed form for {point.algorithm_pass.name!r}")
    result: Exact = exact(form, **arguments)
    has_blocks = arguments.get("blocks") is not None
    if not has_blocks and arguments.get("sizing", DEFAULTS["sizing"]) == "paper":
        d = arguments["d"]
        # for its ValueError, of too small an M
        algorithm.rows(result.sram.capacity, d, arguments.get("d_v") or d)
    sram = result.sram
    if sram.enforced and sram.peak > sram.capacity:
        reason = _overflow(result.blocks, sram, is_smallest=not has_blocks)
        return Cost("does not fit", reason, "closed form", sram=sram, blocks=result.blocks)
    return Cost("ok", "", "closed form", result.hbm, sram, result.blocks, result.matmul)


def by_count(point: Point) -> Cost:
    """Return the cost by counting on shapes."""
    algorithm = point.algorithm_pass.algorithm
    assert algorithm is not None
    try:
        result = count(algorithm, **point.arguments)
    except SramOverflow as error:
        return Cost("does not fit", _reason(error), "count")
    except (ValueError, TypeError, MemoryModelError) as error:
        return Cost("refused", _reason(error))
    matmul = result.flops.matmul
    return Cost("ok", "", "count", result.hbm, result.sram, result.blocks, matmul)


def _overflow(blocks: Blocks, sram: Occupancy, *, is_smallest: bool) -> str:
    smallest = ", the smallest," if is_smallest else ""
    return (
        f"blocks of {blocks.B_r:,} × {blocks.B_c:,}{smallest} take {sram.peak:,} elements of SRAM, "
        f"{sram.peak - sram.capacity:,} more than M = {sram.capacity:,}"
    )


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, ValueError | MemoryModelError) else f"{type(error).__name__}: "
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    return one_line(f"{kind}{error}{notes}")
