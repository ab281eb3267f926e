"""The second step: run a plan's launches, each with an HBM and an SRAM of its own; and what a forward pass then returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashsim.algorithms.notation import log, logaddexp
from flashsim.algorithms.own import RETURNS, is_own
from flashsim.algorithms.parts import ArrayBlockMask, BlockMask, EveryTile, Live
from flashsim.algorithms.record import Algorithm
from flashsim.attention.problem import EVERYTHING
from flashsim.machine.memory import HBM, SRAM, Event, Matrix, MemoryModelError, Observer
from flashsim.machine.shape_only import ShapeOnly
from flashsim.machine.source import at_line
from flashsim.machine.traffic import Flops, Occupancy, Traffic
from flashsim.machine.turns import TooManyTurns, Watch, count_alike
from flashsim.masks.band import Band
from flashsim.masks.dropout import NoDropout, TileDropout
from flashsim.masks.rules import All, Head, Mask
from flashsim.problem.arguments import check_tiles, shown
from flashsim.problem.inputs import Array, chip_dtype, largest
from flashsim.problem.matrices import KINDS, kind_of
from flashsim.problem.shapes import Blocks
from flashsim.run.following import followed
from flashsim.run.interleaving import by_head
from flashsim.run.live_tiles import CountedSplits, CountedTiles, LiveTiles, TileSplits
from flashsim.run.plan import Plan
from flashsim.run.results import Run
from flashsim.run.tile_masks import BiasGradient, HeadSink, NoBiasGradient, NoSink, PartialTileMask, TileMask
from flashsim.support.blas import one_blas_thread

OnHead = Callable[[int, int], None]
Launched = tuple[HBM, SRAM, tuple[Matrix, ...]]
MOST_RUN_ONE_BY_ONE = 2**22


@dataclass(frozen=True)
class Cost:
    """What launches cost together: elements moved, the highest peak, and, where they only counted, operations."""

    traffic: Traffic = field(default_factory=Traffic)
    peak: int = 0
    flops: Flops = field(default_factory=lambda: Flops(0, 0))

    def sized(self, **sizes: int) -> Cost:
        """Return the same, where matrices of these names are so large."""
        by_array = self.traffic.by_array
        of_size = {name: replace(by_array[name], size=size) for name, size in sizes.items()}
        return replace(self, traffic=Traffic({**by_array, **of_size}))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.traffic + other.traffic, max(self.peak, other.peak), self.flops + other.flops)

    def times(self, heads: int) -> Cost:
        """Return what so many heads cost alike, one after another."""
        return Cost(self.traffic.times(heads), self.peak, self.flops.times(heads))

    def with_sums(self, of: Cost) -> Cost:
        """Return what launches cost that write some gradients as parts, with the passes that sum those up."""
        named = {name: f"{name}_parts" for name in of.traffic.by_array if f"{name}_parts" in of.traffic.by_array}
        written = {
            named.get(name, name): replace(a, role="extra") if name in named else a for name, a in self.traffic.by_array.items()
        }
        read = {name: replace(a, size=0) if name in written else a for name, a in of.traffic.by_array.items()}
        return Cost(Traffic(written) + Traffic(read), max(self.peak, of.peak), self.flops + of.flops)


@dataclass
class Outcome:
    """What all launches of a plan left: matrices by name, one for each launch; what they cost together."""

    matrices: dict[str, list[Array]] = field(default_factory=dict)
    cost: Cost = field(init=False)
    dB: dict[Head, Array] = field(default_factory=dict)  # by where its bias is among the leading axes


def launch_all(plan: Plan, observers: Sequence[Observer], on_head: OnHead | None) -> Outcome:
    """Launch one head, or group, after another. `on_head` is called with (launches done, launches in all)."""
    outcome, heads = Outcome(), list(np.ndindex(plan.leading))
    with one_blas_thread(), np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for number, head in enumerate(heads):
            at = () if plan.row_mask.bias is None else plan.row_mask.bias.at(head)
            hbm, sram, returned = launch(plan, head, number, observers, outcome.dB.get(at))
            cost = Cost(hbm.traffic, sram.peak, sram.flops)
            outcome.cost = outcome.cost + cost if number else cost
            names = (*(matrix.name for matrix in returned), *plan.algorithm.saves)
            for name, matrix in {name: hbm.peek(name) for name in names if name in hbm}.items():
                outcome.matrices.setdefault(name, []).append(matrix)
            if plan.algorithm.lse is not None:
                L = plan.algorithm.lse(hbm, plan.options)
                L = L if plan.mask.sink is None else logaddexp(L, np.resize(hbm.peek("sink"), L.shape))
                outcome.matrices.setdefault("lse", []).append(L)
            elif "dB" in hbm:
                outcome.dB[at] = np.array(hbm.peek("dB"))
            if on_head is not None:
                on_head(number + 1, len(heads))
    return outcome


def launch(plan: Plan, head: Head = (), number: int = 0, observers: Sequence[Observer] = (), dB: Array | None = None) -> Launched:
    """Run one launch, the `number`th, of `head`; return its memory, and the matrices that the algorithm returned.

    `dB` is what heads before this one made of the bias's gradient, if they share it.
    """
    algorithm = plan.algorithm
    hbm = HBM(arithmetic=plan.given is not None)
    own = is_own(algorithm)
    if own and not hbm.arithmetic:
        return _count_own(plan, head, number, observers, dB)
    band = None if hbm.arithmetic else _counted_by(plan, head)
    sram = plan.on_chip(hbm, observers, fold=band is not None)
    placed = _placed(plan, hbm, head, number)
    parts = [_part(part, plan, hbm, sram, head, number, dB, band) for part in algorithm.parts]
    if own:
        run = algorithm.run if number else followed(algorithm.run, sram)
        return hbm, sram, _returned(plan, hbm, sram.call(run, hbm, sram, *placed, plan.blocks, *parts))
    return hbm, sram, _returned(plan, hbm, algorithm.run(hbm, sram, *placed, plan.blocks, *parts))


def _count_own(plan: Plan, head: Head, number: int, observers: Sequence[Observer], dB: Array | None) -> Launched:
    """Run one launch of a user's algorithm on shapes alone: what is counted in one go was shown to be alike."""

    def run(watch: Watch, observers: Sequence[Observer]) -> Launched:
        hbm = HBM(arithmetic=False)
        sram = plan.on_chip(hbm, observers, watch=watch)
        placed = _placed(plan, hbm, head, number)
        parts = [_part(part, plan, hbm, sram, head, number, dB, None) for part in plan.algorithm.parts]
        returned = sram.call(watch.call, plan.algorithm.run, hbm, sram, *placed, plan.blocks, *parts)
        return hbm, sram, _returned(plan, hbm, returned)

    try:
        return count_alike(run, observers)
    except TooManyTurns as error:
        raise ValueError(f"{error}{', or flashsim.theory.exact' if has_form(plan.algorithm) else ''}") from None


def has_form(algorithm: Algorithm) -> bool:
    """Return whether an algorithm has a closed form."""
    from flashsim.theory import NoClosedForm, form_of

    try:
        form_of(algorithm, algorithm.direction)
    except NoClosedForm:
        return False
    return True


def _counted_by(plan: Plan, head: Head) -> Band | None:
    """Return the band of the live tiles, by which a launch without arithmetic counts; None: tile by tile."""
    mask = plan.row_mask
    if mask.folds and (band := (mask if plan.skips else EVERYTHING).band(plan.shape, head)) is not None:
        return band
    _refuse_too_many(mask, plan.algorithm.cuts(plan.blocks, plan.shape.N_q, plan.shape.N_k))
    return None


def _part(name: str, plan: Plan, hbm: HBM, sram: SRAM, head: Head, number: int, dB: Array | None, band: Band | None) -> Any:
    """Return a part that an algorithm asks for, by name; `band` is of the live tiles, for counting by kind."""
    problem, mask, blocks, shape = plan.problem, plan.row_mask, plan.blocks, plan.shape
    if name == "tau":
        return problem.scale
    if name == "MASK":
        kind = PartialTileMask if {"live", "splits"} & {*plan.algorithm.parts} else TileMask
        return kind(mask, hbm, sram, blocks, shape, head, plan.algorithm.gives_dS, dB)
    if name == "dropout":
        dropped = problem.dropout_p, problem.seed, hbm, sram, blocks, number, plan.together
        return TileDropout(*dropped) if problem.dropout_p else NoDropout()
    if name == "sink":
        sink = plan.mask.sink
        return NoSink() if sink is None else HeadSink(sink.of(head, plan.together), hbm, sram, shape.N_q)
    if name == "dB":
        return NoBiasGradient() if mask.bias is None else BiasGradient(mask.bias, sram, dB, shape)
    if name == "live":
        return _live(plan, head, band)
    if name == "block_mask":
        return _block_mask(plan, head, band)
    if name == "splits":
        if band is None:
            return TileSplits(_live(plan, head, None), mask, blocks, shape, head, plan.options["splits"])
        return CountedSplits(band, blocks, shape, plan.together, plan.options["splits"])
    return plan.options[name]


def _live(plan: Plan, head: Head, band: Band | None) -> Live:
    if isinstance(plan.row_mask, All) or not plan.skips:
        return EveryTile()
    if band is None:
        return LiveTiles(plan.row_mask, plan.blocks, plan.shape, head)
    return CountedTiles(band, plan.blocks, plan.shape, plan.together)


def _block_mask(plan: Plan, head: Head, band: Band | None) -> BlockMask:
    given = plan.options["block_mask"]
    if given is None or not plan.skips:
        return EveryTile()
    return _live(plan, head, band) if isinstance(given, str) else ArrayBlockMask(check_tiles(given, plan.blocks, plan.shape))


def _placed(plan: Plan, hbm: HBM, head: Head, number: int) -> list[Matrix]:
    """Put in HBM what the algorithm finds there; return its operands. Without τ among its parts, Q is scaled here."""
    algorithm, problem = plan.algorithm, plan.problem
    placed: dict[str, Matrix] = {}
    for name in plan.needs:
        kind = kind_of(name, algorithm.matrices)
        values = plan.operand(name, kind, head, number) if hbm.arithmetic else kind.shape(plan.shape)
        if name == "Q" and hbm.arithmetic and "tau" not in algorithm.parts:
            values = np.multiply(values, problem.scale, dtype=chip_dtype(problem.dtype))
        placed[name] = hbm.place(name, values, kind.dtype(problem.dtype))
    return [placed[name if name in placed else "P"] for name in algorithm.operands]  # P_dropped is P without dropout


def _returned(plan: Plan, hbm: HBM, result: Any) -> tuple[Matrix, ...]:
    """Return the matrices that an algorithm returned. Raises MemoryModelError where they are not those of its record."""
    found = result if isinstance(result, tuple) else (result,)
    expected = (plan.algorithm.returns,) if plan.algorithm.returns else RETURNS
    if tuple(matrix.name if isinstance(matrix, Matrix) else None for matrix in found) not in expected:
        arrays = np.ndarray | ShapeOnly
        said = ", ".join("an array" if isinstance(one, arrays) else str(getattr(one, "name", one)) for one in found)
        wanted = " or ".join("(" + ", ".join(names) + ")" for names in expected)
        raise _wrong(plan, f"{f'({said})' if isinstance(result, tuple) else said}; expected {wanted}, matrices in HBM")
    for matrix in found:
        if matrix.shape != (shape := kind_of(matrix.name, plan.algorithm.matrices).shape(plan.shape)):
            raise _wrong(plan, f"{matrix.name} of shape {matrix.shape}; expected {shape}")
        if not hbm.holds(matrix):
            raise _wrong(plan, f"an {matrix.name} of another HBM; expected one that was made in the hbm it was called with")
    return found


def _wrong(plan: Plan, said: str) -> MemoryModelError:
    return MemoryModelError(f"{plan.algorithm.name!r} ({plan.algorithm.title}) returned {said}")


def finished(plan: Plan, outcome: Outcome) -> Run:
    """Return the finished forward pass."""
    left = outcome.matrices
    found: dict[str, Any] = {name: stacked(plan, name, left[name]) for name in ("O", "l", "m", "lse") if name in left}
    if "l" in found:
        found["lse"] = found["m"] + log(found["l"])
    elif "L" in left:
        found["lse"] = stacked(plan, "L", left["L"])
    if plan.check_finite and not plan.algorithm.returns:
        for name, matrix in found.items():
            if np.isnan(matrix).any():
                raise returned_nan(plan, "L" if name == "lse" else name)
    saved = {name: each for name, each in left.items() if name not in {*found, "L"}}
    return Run(**{"l": None, "m": None, "lse": None, **found}, **cost_of(plan, outcome.cost), plan=plan, saved=saved)


def returned_nan(plan: Plan, name: str) -> MemoryModelError:
    """Return the error for a user's algorithm whose results are NaN: it is run again, to see where they begin."""
    said = f"{plan.algorithm.name!r} returned an {name} with NaN in it"
    events: list[Event] = []
    sram: SRAM | None = None

    def first(event: Event) -> None:
        if not events and event.tile is not None and event.kind in ("load", "compute") and np.isnan(event.tile).any():
            events.append(event)

    for number, head in enumerate(np.ndindex(plan.leading)):
        with np.errstate(all="ignore"):
            _, sram, _ = launch(plan, head, number, [first])
    if not events:
        return MemoryModelError(f"{said}: rows of it were never stored")
    (event,) = events
    if event.kind == "load":
        error = MemoryModelError(f"{said}: it begins in {event.name}, which is loaded before it was stored")
    elif (death := None if sram is None else sram.death_at(event.site)) is not None:
        error = MemoryModelError(
            f"{said}: it begins in {event.name}, made of {death.name} ({'×'.join(map(str, death.shape))}), which was overwritten "
            "with NaN when its turn ended, or a tile was evicted, as it was not on chip. Expected it in SRAM, by on_chip(…), "
            "or in HBM, by sram.store(…)"
        )
        if death.site is not None:
            error.add_note(at_line(*death.site))
    else:
        error = MemoryModelError(
            f"{said}: it begins in {event.name}, made of a tile that was evicted at the end of its turn "
            "(on_chip(…, over=tile) keeps that tile), or of numbers that are too large, or −∞ − −∞"
        )
    error.add_note(at_line(*event.site))
    return error


def cost_of(plan: Plan, cost: Cost) -> dict[str, Any]:
    """Return the query heads' cost together, as a run's fields: K and V are as large as they are, once for each KV head."""
    if plan.parts:
        cost = cost.sized(**{name: cost.traffic.by_array[name].size // plan.problem.group for name in ("K", "V")})
    use = Occupancy(cost.peak, plan.problem.M, plan.sizing.enforced)
    return {"algorithm": plan.algorithm.name, "hbm": cost.traffic, "sram": use, "blocks": plan.blocks}


def stacked(plan: Plan, name: str, matrices: Sequence[Array], said: str = "") -> Array:
    """Stack a matrix over the launches, their interleaved heads taken apart; a column (N, 1) becomes a vector."""
    stacked = np.stack(matrices).reshape(*plan.leading, *matrices[0].shape)
    if plan.together > 1 and KINDS[name].rows == "N_q":
        stacked = by_head(stacked, plan.together)
    refuse_overflow(plan, said or name, stacked)
    return stacked[..., 0] if KINDS[name].columns == "1" else stacked


def refuse_overflow(plan: Plan, name: str, array: Array) -> None:
    """Raise ValueError where finite input overflowed the type that a result is stored in."""
    if plan.check_finite and array.dtype.itemsize == 2 and np.isinf(array).any():
        down, end = "dO" if name.startswith("d") else "V", largest(array.dtype)
        raise ValueError(f"{name} overflows {array.dtype}, which ends at {end:.3g}. Scale {down} down, or use a wider dtype")


def _refuse_too_many(mask: Mask, cuts: Sequence[Blocks]) -> None:
    """Raise ValueError where tiles of one shape cost unequal amounts, so that each is run, and that would take too long."""
    tiles = sum(blocks.tiles for blocks in cuts)
    if tiles > MOST_RUN_ONE_BY_ONE:
        raise ValueError(
            f"mask is {shown(mask)}: its tiles are counted one by one, and here are "
            f"T_r × T_c = {' + '.join(f'{blocks.T_r:,} × {blocks.T_c:,}' for blocks in cuts)} of them, "
            f"which takes about {tiles * 1e-4 / 3600:,.1f} hours; "
            f"expected at most {MOST_RUN_ONE_BY_ONE:,} tiles. Take larger blocks, or flashsim.theory.exact"
        )
