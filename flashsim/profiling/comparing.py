"""What a kernel's traffic is compared with: flashsim's nearest program at the kernel's block sizes,
and the fewest elements that any schedule moves. Operators have no block sizes; they are compared
with `standard`, whose products then read each operand once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.masks.allowed import allowed_pairs
from flashsim.attention.masks.rules import All
from flashsim.attention.problem import Problem
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.traffic import ArrayTraffic, Traffic
from flashsim.profiling.recording import Tile
from flashsim.theory import exact, lower_bound, lower_bound_backward

ARRAYS = {
    "forward": ("Q", "K", "V", "O"),
    "backward": ("Q", "K", "V", "dO", "dQ", "dK", "dV"),
}
"""The arrays by which programs are compared; statistics are kept in many ways."""
USUAL = {
    "forward": ("q_outer", "flash", "standard"),
    "backward": ("q_outer_two_pass", "q_outer", "standard"),
}
"""The programs whose loops kernels mostly have."""
UNBLOCKED = ("standard",)
"""Programs made of whole operators: the only ones that traffic without blocks is compared with."""
ROW_STATISTICS = 2
"""Elements of m and ℓ that go with a row of S."""


@dataclass(frozen=True)
class Nearest:
    """flashsim's program whose accesses to Q, K, V, O are nearest to a kernel's.

    algorithm   its name
    blocks      B_r and B_c, as the kernel's tiles have them; None: it has none
    skips       whether its counts are those with tiles skipped that the mask empties
    by_array    its accesses of these arrays
    difference  elements by which the accesses of these differ, over all arrays
    others      accesses of its other arrays, such as S or statistics
    peak        the most that it has on chip, in elements
    """

    algorithm: str
    blocks: tuple[int, int] | None
    skips: bool
    by_array: Mapping[str, ArrayTraffic]
    difference: int
    others: int
    peak: int

    @property
    def equal(self) -> bool:
        """Whether reads and writes of each of these arrays are equal."""
        return self.difference == 0

    @property
    def accesses(self) -> int:
        """Elements that it moves of these arrays."""
        return sum(array.accesses for array in self.by_array.values())


def blocks_of(tiles: Sequence[Tile]) -> tuple[int, int] | None:
    """Return B_r and B_c: the most rows of Q, and of K, that one instruction reads; None where it
    reads none of one of them.
    """
    rows = {"Q": 0, "K": 0}
    for tile in tiles:
        if tile.array in rows and tile.kind == "read":
            rows[tile.array] = max(rows[tile.array], len(tile.rows))
    if not all(rows.values()):
        return None
    return rows["Q"], rows["K"]


def nearest(
    traffic: Traffic,
    problem: Problem,
    blocks: tuple[int, int] | None,
    direction: str,
    wasteful: bool,
) -> Nearest | None:
    """Return the program that moves what this traffic is, at these block sizes; where none does, or
    the kernel is wasteful, the nearest of `USUAL`. None where none has a closed form for the
    problem. Without block sizes, only `UNBLOCKED` is compared.

    A wasteful kernel may move by chance what another program moves, and it is not that program.

    Of programs equally near, it is the one whose other arrays are nearest; of these, the one with
    most on chip, since a kernel holds whole tiles.
    """
    names = [name for name in ARRAYS[direction] if name in traffic.by_array]
    candidates = list(_candidates(traffic, problem, blocks, direction, names))
    others = sum(array.accesses for name, array in traffic.by_array.items() if name not in names)

    def distance(candidate: Nearest) -> tuple[int, int, int]:
        return candidate.difference, abs(candidate.others - others), -candidate.peak

    usual = [each for each in candidates if each.algorithm in USUAL[direction]]
    equal = [each for each in candidates if each.equal]
    if wasteful or not equal:
        candidates = usual or candidates
    return min(candidates, key=distance, default=None)


def _candidates(
    traffic: Traffic,
    problem: Problem,
    blocks: tuple[int, int] | None,
    direction: str,
    names: Sequence[str],
) -> Iterator[Nearest]:
    masked = not isinstance(problem.mask, All)
    every_tile = replace(problem, mask=All())
    programs: Iterable[str] = FORWARD if direction == "forward" else BACKWARD
    whole = blocks
    M = problem.M
    if blocks is None:
        programs = UNBLOCKED
        shape = problem.shape
        whole = (shape.N_q, shape.N_k)
        # A softmax that is one operator holds a row, its gradient two.
        M = max(M, 2 * shape.N_k + ROW_STATISTICS)
    for algorithm in programs:
        for variant, skips in ((problem, True), (every_tile, False)):
            if not skips and not masked:
                continue
            try:
                form = exact(
                    algorithm,
                    heads=variant.heads,
                    kv_heads=variant.heads // variant.group,
                    mask=None if isinstance(variant.mask, All) else variant.mask,
                    blocks=whole,
                    enforce=False,
                    direction=direction,
                    dtype=variant.dtype,
                    M=M,
                    **asdict(variant.shape),
                )
            except (ValueError, MemoryModelError):
                continue
            by_array = {
                name: form.hbm.by_array[name] for name in names if name in form.hbm.by_array
            }
            if len(by_array) < len(names):
                continue
            difference = 0
            for name, array in by_array.items():
                counted = traffic.by_array[name]
                difference += abs(array.reads - counted.reads)
                # A kernel that fills an output in SRAM does not initialise it in HBM.
                difference += abs(array.writes - counted.writes)
            others = form.hbm.accesses - sum(array.accesses for array in by_array.values())
            yield Nearest(algorithm, blocks, skips, by_array, difference, others, form.sram.peak)


def fewest(problem: Problem, M: int | None, direction: str) -> int:
    """Return how many elements of inputs and outputs any schedule moves at least, over all heads.

    M  elements of SRAM that the schedules have; None: as many as they like, so that each element
       is read once or written once

    Query heads that share a KV head are bounded together: as one head of all their queries.
    """
    shape = problem.shape
    _, pairs, queries, keys = allowed_pairs(problem.mask, shape)
    group = problem.group
    bound = lower_bound if direction == "forward" else lower_bound_backward
    group_shape = replace(shape, N_q=shape.N_q * group)
    result = bound(
        **asdict(group_shape),
        M=problem.M if M is None else M,
        pairs=pairs * group,
        queries=queries * group,
        keys=keys,
    )
    one = result.compulsory if M is None else result.accesses
    return one * (problem.heads // group)
