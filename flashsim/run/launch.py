"""The third step: run the algorithm on each problem of a plan, with an HBM and an SRAM of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashsim.algorithms.notation import log
from flashsim.algorithms.own import RETURNS
from flashsim.algorithms.parts import ArrayBlockMask, BlockMask, EveryTile, Live, Splits
from flashsim.machine.memory import HBM, SRAM, Matrix, MemoryModelError, Observer
from flashsim.machine.shape_only import ShapeOnly
from flashsim.machine.traffic import Flops, Traffic
from flashsim.masks.band import Band
from flashsim.masks.dropout import NoDropout, TileDropout
from flashsim.masks.rules import All, Head, Mask
from flashsim.problem.arguments import check_tiles, shown
from flashsim.problem.inputs import Array, Inputs, chip_dtype
from flashsim.problem.matrices import kind_of
from flashsim.problem.shapes import Blocks, Shape
from flashsim.run.following import followed
from flashsim.run.live_tiles import CountedSplits, CountedTiles, LiveTiles, TileSplits
from flashsim.run.task import AttentionVariant, Plan
from flashsim.run.tile_masks import BiasGradient, NoBiasGradient, PartialTileMask, TileMask
from flashsim.support.blas import one_blas_thread

OnHead = Callable[[int, int], None]
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

    def plus(self, hbm: HBM, sram: SRAM, times: int = 1) -> Cost:
        """Return the cost with that of a launch, so many times."""
        traffic, flops = hbm.traffic.times(times), sram.flops.times(times)
        return Cost(self.traffic + traffic, max(self.peak, sram.peak), self.flops + flops)

    def with_sums(self, of: Cost) -> Cost:
        """Return what launches cost that write some gradients as parts, with the passes that sum those up."""
        named = {name: f"{name}_parts" for name in of.traffic.by_array if f"{name}_parts" in of.traffic.by_array}
        written = {
            named.get(name, name): replace(a, role="extra") if name in named else a
            for name, a in self.traffic.by_array.items()
        }
        read = {name: replace(a, size=0) if name in written else a for name, a in of.traffic.by_array.items()}
        return Cost(Traffic(written) + Traffic(read), max(self.peak, of.peak), self.flops + of.flops)


@dataclass
class Outcome:
    """What all launches of a plan left: matrices by name, one for each problem; elements moved; the highest peak."""

    matrices: dict[str, list[Array]] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    dB: dict[Head, Array] = field(default_factory=dict)  # by where its bias is among the leading axes


def launch_all(plan: Plan, observers: Sequence[Observer], on_head: OnHead | None) -> Outcome:
    """Launch every problem, one after another. `on_head` is called with (problems done, problems in all)."""
    outcome, problems = Outcome(), list(np.ndindex(plan.leading))
    with one_blas_thread(), np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for number, head in enumerate(problems):
            bias = plan.variant.mask.bias
            at = () if bias is None else bias.at(head)
            hbm, sram, returned = launch(plan, head, number, observers, outcome.dB.get(at))
            if "dB" in hbm:
                outcome.dB[at] = np.array(hbm.peek("dB"))
            outcome.cost = outcome.cost.plus(hbm, sram)
            for name, matrix in _kept(plan, hbm, returned):
                outcome.matrices.setdefault(name, []).append(matrix)
            if on_head is not None:
                on_head(number + 1, len(problems))
    return outcome


def _kept(plan: Plan, hbm: HBM, returned: Sequence[Matrix]) -> Iterator[tuple[str, Array]]:
    """Yield what a launch returned and saved, and a forward pass's log-sum-exp, (N_q, 1)."""
    algorithm = plan.task.algorithm
    results = {matrix.name: hbm.peek(matrix.name) for matrix in returned}
    yield from results.items()
    yield from ((name, hbm.peek(name)) for name in algorithm.saves if name in hbm)
    if algorithm.direction == "backward":
        return
    if algorithm.lse is not None:
        yield "lse", algorithm.lse(hbm, plan.variant.options)
    elif "L" in results:
        yield "lse", results["L"]
    elif "l" in results:
        yield "lse", results["m"] + log(results["l"])


def launch(
    plan: Plan, head: Head = (), number: int = 0, observers: Sequence[Observer] = (), dB: Array | None = None
) -> tuple[HBM, SRAM, tuple[Matrix, ...]]:
    """Run the problem at `head`, the `number`th; return its memory, and the matrices that the algorithm returned.

    `dB` is what heads before this one made of the bias's gradient, if they share it.
    """
    task, algorithm, variant, shape, blocks = plan.task, plan.task.algorithm, plan.variant, plan.shape, plan.blocks
    hbm = HBM(arithmetic=isinstance(task.given, Inputs))
    band = (variant.mask if variant.skips else All()).band(shape, head) if variant.mask.folds else None
    if not hbm.arithmetic and band is None:
        _refuse_too_many(variant.mask, algorithm.cuts(blocks, shape.N_q, shape.N_k))
    chip = chip_dtype(task.given.dtype)
    sram = SRAM(hbm, task.M, enforced=task.sizing.enforced, dtype=chip, observers=observers, fold=band is not None)
    placed = _placed(plan, hbm, head, number)
    kind = PartialTileMask if {"live", "splits"} & {*algorithm.parts} else TileMask
    dropped = variant.dropout_p, variant.seed, hbm, sram, blocks, number, variant.group
    parts: dict[str, Callable[[], Any]] = {
        "tau": lambda: variant.tau,
        "MASK": lambda: kind(variant.mask, hbm, sram, blocks, shape, head, algorithm.gives_dS, dB),
        "dropout": lambda: TileDropout(*dropped) if variant.dropout_p else NoDropout(),
        "dB": lambda: NoBiasGradient() if variant.mask.bias is None else BiasGradient(variant.mask.bias, sram, dB),
        **_tiles(variant, blocks, shape, head, None if hbm.arithmetic else band),
    }
    given = (parts[part]() if part in parts else variant.options[part] for part in algorithm.parts)
    run = algorithm.run if number else followed(algorithm.run, sram)
    result = run(hbm, sram, *placed, blocks, *given)
    return hbm, sram, _returned(plan, hbm, result)


def _tiles(
    variant: AttentionVariant, blocks: Blocks, shape: Shape, head: Head, band: Band | None
) -> dict[str, Callable[[], Any]]:
    """Return the parts that say which tiles of S to compute; with the `band` of the live ones, for counting by kind."""
    given, number = variant.options.get("block_mask"), variant.options.get("splits")

    def live() -> Live:
        if isinstance(variant.mask, All) or not variant.skips:
            return EveryTile()
        if band is None:
            return LiveTiles(variant.mask, blocks, shape, head)
        return CountedTiles(band, blocks, shape, variant.group)

    def block_mask() -> BlockMask:
        if given is None or not variant.skips:
            return EveryTile()
        return live() if isinstance(given, str) else ArrayBlockMask(check_tiles(given, blocks, shape))

    def splits() -> Splits:
        if band is None:
            return TileSplits(live(), variant.mask, blocks, shape, head, number)
        return CountedSplits(band, blocks, shape, variant.group, number)

    return {"live": live, "block_mask": block_mask, "splits": splits}


def _placed(plan: Plan, hbm: HBM, head: Head, number: int) -> list[Matrix]:
    """Put in HBM what the algorithm finds there; return its operands. Without τ among its parts, Q is scaled here."""
    task, algorithm, tau = plan.task, plan.task.algorithm, plan.variant.tau
    placed: dict[str, Matrix] = {}
    for name in task.needs:
        kind = kind_of(name, algorithm.matrices)
        values = plan.operand(name, head, number) if hbm.arithmetic else kind.shape(plan.shape)
        if name == "Q" and hbm.arithmetic and "tau" not in algorithm.parts:
            values = np.multiply(values, tau, dtype=chip_dtype(task.given.dtype))
        placed[name] = hbm.place(name, values, kind.dtype(task.given.dtype))
    return [placed[name if name in placed else "P"] for name in algorithm.operands]  # P_dropped is P without dropout


def _returned(plan: Plan, hbm: HBM, result: Any) -> tuple[Matrix, ...]:
    """Return the matrices that an algorithm returned. Raises MemoryModelError where they are not those of its record."""
    algorithm = plan.task.algorithm
    who = f"{algorithm.name!r} ({algorithm.title})"
    found = result if isinstance(result, tuple) else (result,)
    names = tuple(matrix.name if isinstance(matrix, Matrix) else None for matrix in found)
    expected = (algorithm.returns,) if algorithm.returns else RETURNS
    if names not in expected:
        arrays = np.ndarray | ShapeOnly
        said = ", ".join("an array" if isinstance(one, arrays) else str(getattr(one, "name", one)) for one in found)
        raise MemoryModelError(
            f"{who} returned {f'({said})' if isinstance(result, tuple) else said}; "
            f"expected {' or '.join('(' + ', '.join(names) + ')' for names in expected)}, matrices in HBM"
        )
    for matrix in found:
        if matrix.shape != (shape := kind_of(matrix.name, algorithm.matrices).shape(plan.shape)):
            raise MemoryModelError(f"{who} returned {matrix.name} of shape {matrix.shape}; expected {shape}")
        if not hbm.holds(matrix):
            raise MemoryModelError(
                f"{who} returned an {matrix.name} of another HBM; expected one that was made in the hbm it was called with"
            )
    return found


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
