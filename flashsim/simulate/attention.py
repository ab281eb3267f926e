"""Attention as a plan: launches of one query head each, or of the heads of a group, with their
rows interleaved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from flashsim.algorithms.blocks import Sizing, who_chose
from flashsim.algorithms.notation import logaddexp
from flashsim.algorithms.own import RETURNS
from flashsim.algorithms.parts import ArrayBlockMask, BlockMask, EveryTile, Live
from flashsim.algorithms.record import GRADIENTS, Algorithm
from flashsim.attention.arguments import check_tiles, short_repr
from flashsim.attention.inputs import Array, Inputs, chip_dtype, describe_array
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.dropout import NoDropout, TileDropout
from flashsim.attention.masks.rules import All, Bools, Head, Mask
from flashsim.attention.matrices import KINDS, Kind, kind_of
from flashsim.attention.problem import EVERYTHING, Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.simulate.interleaving import interleave
from flashsim.simulate.live_tiles import CountedSplits, CountedTiles, LiveTiles, TileSplits
from flashsim.simulate.outcome import Outcome
from flashsim.simulate.plan import Launch, Operand, Plan
from flashsim.simulate.tile_masks import (
    BiasGradient,
    HeadSink,
    NoBiasGradient,
    NoMask,
    NoSink,
    PartialTileMask,
    TileMask,
)

if TYPE_CHECKING:  # theory is loaded when it is used
    from flashsim.theory.closed_form import Exact

MOST_RUN_ONE_BY_ONE = 2**22


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionPlan(Plan):
    """One pass of an algorithm over an attention problem.

    program   the algorithm
    options   the algorithm's own, by name
    sizing    the policy that chose `blocks`
    mask      the problem's and the options' together, with its sink, which `row_mask` lacks
    inputs    Q, K, V; None: to count on shapes alone
    more      what a backward pass is given besides, (..., H_q, N, width), by name
    saved     what the forward pass left for it, by name: a matrix for each launch

    Launches are alike but in their numbers. Of one of them are

    heads_per_launch  how many query heads it is of
    shape, leading, row_mask, blocks  its lengths; how many launches there are; the mask for its
                                      rows; its blocks
    skips     whether an algorithm that skips empty tiles does: block sizes are chosen for all tiles
    """

    program: Algorithm
    problem: Problem
    options: Mapping[str, Any]
    sizing: Sizing
    mask: Mask
    inputs: Inputs | None = None
    check_finite: bool = False
    more: Mapping[str, Array] = field(default_factory=dict)
    saved: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    heads_per_launch: int
    shape: Shape
    leading: Head
    row_mask: Mask
    blocks: Blocks
    skips: bool = True

    def exact(self) -> Exact:
        """Return what this run costs, by formula.

        Raises NoClosedForm where there is none: of an algorithm of the user's without a `Form`
        beside it, and of a mask that differs between heads.
        """
        from flashsim.theory.closed_form import NoClosedForm
        from flashsim.theory.form import form_of

        if self.mask.per_head:
            raise NoClosedForm(f"there is no closed form of {self.mask!r}, of each head its own")
        form = form_of(self.program, self.program.direction)
        chooser = who_chose(self.sizing)
        return form.cost(self.problem, self.blocks, self.options, self.enforced, chooser)

    def described(self) -> dict[str, Any]:
        """Return what was asked, as plain data."""
        problem = self.problem
        plain = bool | int | float | str | None
        options = {}
        for name, value in self.options.items():
            options[name] = value if isinstance(value, plain) else short_repr(value)
        return {
            "direction": self.program.direction,
            **asdict(problem.shape),
            "leading": list(problem.leading),
            "kv_heads": problem.heads // problem.group,
            "dtype": problem.dtype.name,
            "scale": problem.scale,
            "mask": repr(self.mask),
            "dropout_p": problem.dropout_p,
            "seed": problem.seed,
            "gqa": problem.gqa,
            "options": options,
        }

    def described_operands(self) -> list[str]:
        """Return name, shape and dtype of each operand; to count, lengths and the dtype."""
        if self.inputs is None:
            return [str(self.shape), self.dtype.name]
        more = [describe_array(name, array) for name, array in self.more.items()]
        return [*self.inputs.described(), *more]

    def main_results(self) -> tuple[str, ...]:
        """Return O, or the gradients of Q, K and V."""
        return GRADIENTS if self.program.direction == "backward" else ("O",)

    @property
    def needs(self) -> tuple[str, ...]:
        """The matrices in HBM at the beginning. Dropout's are P_dropped and Z for Algorithm 3, R
        for other backward passes.
        """
        operands = self.program.operands
        if self.problem.dropout_p and self.program.direction == "backward":
            return (*operands, "Z" if "P" in operands else "R")
        if "P_dropped" in operands and not self.problem.dropout_p:
            return tuple(name for name in operands if name != "P_dropped")
        return operands

    @property
    def has_parts(self) -> bool:
        """Whether query heads that share a KV head run each on its own, and so have dK and dV in
        parts.
        """
        return self.problem.group > 1 and self.heads_per_launch == 1

    def kind(self, name: str) -> Kind:
        """Return the kind of a matrix."""
        return (
            self.program.matrices.get(name)
            or KINDS.get(name)
            or kind_of(name, self.program.matrices)
        )

    def shape_of(self, name: str) -> tuple[int, int]:
        """Return the shape of a launch's matrix."""
        return self.kind(name).shape(self.shape)

    # ----------------------------------------------------------------------------------------------
    # launches

    def launches(self, outcome: Outcome) -> Iterator[Launch]:
        """Yield a launch for each head or group; to count, one that stands for all."""
        if not self.arithmetic:
            yield self.launch(())
            return
        bias = self.row_mask.bias
        for number, head in enumerate(np.ndindex(self.leading)):
            key = () if bias is None else bias.at(head)
            yield self.launch(head, number, outcome.sums.get(key), key)

    def launch(
        self, head: Head, number: int = 0, dB: Array | None = None, key: Head = ()
    ) -> Launch:
        """Return the launch of `head`, the `number`th. `dB`: what heads before it made of the
        bias's gradient they share.
        """
        band = None if self.arithmetic or self.is_user_defined else self._band(head)
        takes = self.program.operands
        if "P_dropped" in takes and not self.problem.dropout_p:
            takes = tuple("P" if name == "P_dropped" else name for name in takes)
        return Launch(
            operands=self._operands(head, number),
            takes=takes,
            make_arguments=_Arguments(self, head, number, dB, band),
            returns=(self.program.returns,) if self.program.returns else RETURNS,
            folds=band is not None,
            key=key,
        )

    def _operands(self, head: Head, number: int) -> list[Operand]:
        operands = []
        stored = self.problem.dtype
        for name in self.needs:
            kind = self.kind(name)
            dtype = stored if kind.type == "inputs" else kind.dtype(stored)
            values: Any = (
                self.values(name, head, number) if self.arithmetic else kind.shape(self.shape)
            )
            # without τ, Q comes scaled
            if name == "Q" and self.arithmetic and "tau" not in self.program.parts:
                values = np.multiply(values, self.problem.scale, dtype=chip_dtype(stored))
            operands.append(Operand(name, values, dtype))
        return operands

    def values(self, name: str, head: Head, number: int) -> Array:
        """Return a matrix of the launch at `head`, the `number`th: of query heads, or of the KV
        head that they share.
        """
        if name in self.saved:
            return self.saved[name][number]
        array: Any = self.more[name] if name in self.more else getattr(self.inputs, name)
        if self.problem.group == 1:
            return cast(Array, array[head])
        by_key = self.kind(name).rows == "N_k"
        if self.heads_per_launch > 1 and not by_key:
            members = slice(
                self.heads_per_launch * head[-1], self.heads_per_launch * (head[-1] + 1)
            )
            array = interleave(array[head[:-1]][members], self.heads_per_launch)
            return cast(Array, array[0])
        if by_key and self.has_parts and self.inputs is not None:
            head = self.inputs.kv(head)
        return cast(Array, array[head])

    def _band(self, head: Head) -> Band | None:
        """Return the band of the live tiles, by which a launch on shapes counts; None: tile by
        tile.

        Raises ValueError where tile by tile would take too long.
        """
        mask = self.row_mask
        if mask.folds:
            band = (mask if self.skips else EVERYTHING).band(self.shape, head)
            if band is not None:
                return band
        _refuse_too_many(mask, self.program.cuts(self.blocks, self.shape.N_q, self.shape.N_k))
        return None

    def keep(self, outcome: Outcome, launch: Launch, hbm: HBM, returned: Sequence[Matrix]) -> None:
        """Keep the results, what the backward pass needs, the log-sum-exp of the rows, and the
        gradient of a bias.
        """
        if not self.arithmetic:
            return
        names = (*(matrix.name for matrix in returned), *self.program.saves)
        outcome.add_matrices(hbm, dict.fromkeys(name for name in names if name in hbm))
        if self.program.lse is not None:
            L = self.program.lse(hbm, self.options)
            if self.mask.sink is not None:
                L = logaddexp(L, np.resize(hbm.peek("sink"), L.shape))
            outcome.matrices.setdefault("lse", []).append(L)
        elif "dB" in hbm:
            outcome.sums[launch.key] = np.array(hbm.peek("dB"))

    def attended(self, head: Head) -> Bools | None:
        """Return the whole (N_q, N_k) mask of one query head, block mask included, for the
        reference; None: it attends to all.
        """
        block_mask = self.options.get("block_mask")
        shape = self.problem.shape
        # "live" leaves out what is masked
        array = None if isinstance(block_mask, str) else block_mask
        if isinstance(self.mask, All) and array is None:
            return None
        whole = self.mask.whole(shape, head)
        if array is None:
            return whole
        B = self.blocks
        member = head[-1] % self.heads_per_launch if head else 0
        tiles = check_tiles(array, B, self.shape)
        spread = tiles.repeat(B.B_r, axis=0)[: self.shape.N_q].repeat(B.B_c, axis=1)[:, : shape.N_k]
        return np.asarray(whole & spread[member :: self.heads_per_launch])


@dataclass(frozen=True)
class _Arguments:
    """What an algorithm takes behind its operands in one launch: the blocks, and the parts that it
    asks for by name.

    head, number  which launch it is
    dB            what heads before it made of the bias's gradient that they share
    band          of the live tiles, to count by their kinds; None: tile by tile
    """

    plan: AttentionPlan
    head: Head
    number: int
    dB: Array | None
    band: Band | None

    def __call__(self, hbm: HBM, sram: SRAM) -> list[Any]:
        """Return them, made for the memory of the launch."""
        arguments: list[Any] = [self.plan.blocks]
        for name in self.plan.program.parts:
            arguments.append(self._part(name, hbm, sram))
        return arguments

    def _part(self, name: str, hbm: HBM, sram: SRAM) -> Any:
        plan = self.plan
        head = self.head
        problem = plan.problem
        mask = plan.row_mask
        blocks = plan.blocks
        shape = plan.shape
        if name == "tau":
            return problem.scale
        if name == "MASK":
            if isinstance(mask, All):
                return NoMask()
            kind = PartialTileMask if {"live", "splits"} & {*plan.program.parts} else TileMask
            return kind(mask, hbm, sram, blocks, shape, head, plan.program.gives_dS, self.dB)
        if name == "dropout":
            if not problem.dropout_p:
                return NoDropout()
            return TileDropout(
                problem.dropout_p,
                problem.seed,
                hbm,
                sram,
                blocks,
                self.number,
                plan.heads_per_launch,
            )
        if name == "sink":
            sink = plan.mask.sink
            return (
                NoSink()
                if sink is None
                else HeadSink(sink.of(head, plan.heads_per_launch), hbm, sram, shape.N_q)
            )
        if name == "dB":
            return (
                NoBiasGradient()
                if mask.bias is None
                else BiasGradient(mask.bias, sram, self.dB, shape)
            )
        if name == "live":
            return self._live()
        if name == "block_mask":
            return self._block_mask()
        if name == "splits":
            number = plan.options["splits"]
            if self.band is None:
                return TileSplits(self._live(), mask, blocks, shape, head, number)
            return CountedSplits(self.band, blocks, shape, plan.heads_per_launch, number)
        return plan.options[name]

    def _live(self) -> Live:
        plan = self.plan
        if isinstance(plan.row_mask, All) or not plan.skips:
            return EveryTile()
        if self.band is None:
            return LiveTiles(plan.row_mask, plan.blocks, plan.shape, self.head)
        return CountedTiles(self.band, plan.blocks, plan.shape, plan.heads_per_launch)

    def _block_mask(self) -> BlockMask:
        plan = self.plan
        tiles = plan.options["block_mask"]
        if tiles is None or not plan.skips:
            return EveryTile()
        if isinstance(tiles, str):  # "live"
            return self._live()
        return ArrayBlockMask(check_tiles(tiles, plan.blocks, plan.shape))


def _refuse_too_many(mask: Mask, cuts: Sequence[Blocks]) -> None:
    """Raise ValueError where tiles of one shape cost unequal amounts, so that each is run, and
    that would take too long.
    """
    tiles = sum(blocks.tiles for blocks in cuts)
    if tiles > MOST_RUN_ONE_BY_ONE:
        raise ValueError(
            f"mask is {short_repr(mask)}: its tiles are counted one by one, and here are "
            f"T_r × T_c = {' + '.join(f'{blocks.T_r:,} × {blocks.T_c:,}' for blocks in cuts)} of "
            "them, "
            f"which takes about {tiles * 1e-4 / 3600:,.1f} hours; "
            f"expected at most {MOST_RUN_ONE_BY_ONE:,} tiles. Take larger blocks, or "
            "flashsim.theory.exact"
        )
