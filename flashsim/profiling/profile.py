"""`Profile`: what a call of kernels or operators moves, and what that is compared with."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from flashsim.attention.arguments import short_repr
from flashsim.attention.inputs import check_M
from flashsim.attention.problem import Problem
from flashsim.memory.traffic import ArrayTraffic, Traffic
from flashsim.profiling.arrays import Array
from flashsim.profiling.checking import Difference
from flashsim.profiling.comparing import Nearest, blocks_of, fewest, nearest
from flashsim.profiling.findings import WASTE, Finding, findings
from flashsim.profiling.recording import SECTOR, Launch, LineTraffic, Recorder, Tile
from flashsim.support.exporting import Exported
from flashsim.support.sizes import Size


@dataclass(frozen=True, repr=False)
class Profile(Exported):
    """What one call moves between HBM and its kernels' programs, or its operators.

    function   its name
    hbm        accesses by array, in elements: `profile.hbm.by_array["K"].reads`
    sectors    bytes of 32-byte sectors that the instructions touch, by array
    lines      the same accesses by line of the source
    launches   of kernels and operators, in order
    tiles      each instruction of each program of a kernel, in order
    arrays     what is known of each array
    problem    what it computes; None: the call has no Q, K and V
    direction  "forward" or "backward"
    findings   what moves without need, the most first
    blocks     B_r and B_c of its tiles; None: not found, as for operators
    nearest    flashsim's program with the nearest accesses, without blocks only `standard`; None:
               no problem
    on_chip_bytes  the most bytes of on-chip memory that a launch occupies, such as a TPU's VMEM;
                   None: the language does not say
    difference  how far O is from naive attention; None: not compared
    """

    function: str
    hbm: Traffic
    sectors: Mapping[str, int]
    lines: tuple[LineTraffic, ...]
    launches: tuple[Launch, ...]
    tiles: tuple[Tile, ...]
    arrays: Mapping[str, Array]
    problem: Problem | None
    direction: str
    findings: tuple[Finding, ...]
    blocks: tuple[int, int] | None
    nearest: Nearest | None
    on_chip_bytes: int | None
    difference: Difference | None = None

    @classmethod
    def of(
        cls,
        function: str,
        recorder: Recorder,
        problem: Problem | None,
        direction: str,
        difference: Difference | None = None,
    ) -> Profile:
        """Return what a recorder has summed."""
        arrays = {array.name: array for array in recorder.memory.arrays()}
        hbm = _traffic(recorder, arrays)
        blocks = blocks_of(recorder.tiles)
        waste = findings(recorder, arrays, problem, difference)
        program = None
        if problem is not None:
            wasteful = any(finding.kind in WASTE for finding in waste)
            program = nearest(hbm, problem, blocks, direction, wasteful)
        sectors = dict.fromkeys(hbm.by_array, 0)
        for line in recorder.lines.values():
            sectors[line.array] += line.sectors * SECTOR
        return cls(
            function,
            hbm,
            sectors,
            tuple(recorder.lines.values()),
            tuple(recorder.launches),
            tuple(recorder.tiles),
            arrays,
            problem,
            direction,
            waste,
            blocks,
            program,
            recorder.on_chip_bytes,
            difference,
        )

    @property
    def by_array(self) -> Mapping[str, ArrayTraffic]:
        """Accesses of each array, in elements."""
        return self.hbm.by_array

    def fewest(self, M: Size | None = None) -> int:
        """Return how many elements any schedule with M elements of SRAM moves at least, inputs and
        outputs alone; M=None: with as many as it likes. Raises ValueError for a call without Q, K
        and V.
        """
        if self.problem is None:
            raise ValueError(
                f"{self.function} has no arguments Q, K and V, so that no bound is known for it"
            )
        if M is not None:
            M = check_M(M, self.problem.dtype.itemsize)
        return fewest(self.problem, M, self.direction)

    def over_bound(self, M: Size | None = None) -> float:
        """Return its accesses, divided by `fewest(M)`."""
        return self.hbm.accesses / self.fewest(M)

    def __repr__(self) -> str:
        return f"Profile({self.function}: {short_repr(self.hbm)})"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        lines = []
        for line in self.lines:
            numbers = {name: value for name, value in vars(line).items() if name != "line"}
            source = linecache.getline(line.line.file, line.line.number).strip()
            lines.append({**asdict(line.line), "source": source, **numbers})
        program = None
        if self.nearest is not None:
            program = {
                "algorithm": self.nearest.algorithm,
                "blocks": None if self.nearest.blocks is None else list(self.nearest.blocks),
                "skips": self.nearest.skips,
                "equal": self.nearest.equal,
                "accesses": self.nearest.accesses,
            }
        error = None
        if self.difference is not None and isfinite(self.difference.error):
            error = self.difference.error  # JSON has no NaN; the finding says it
        return {
            "function": self.function,
            "direction": self.direction,
            **self.hbm.to_dict(),
            "sector_bytes": dict(self.sectors),
            "on_chip_bytes": self.on_chip_bytes,
            "launches": [asdict(launch) for launch in self.launches],
            "by_line": lines,
            "findings": [_plain_finding(finding) for finding in self.findings],
            "error": error,
            "nearest": program,
            "fewest": None if self.problem is None else self.fewest(),
        }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    line = None if finding.line is None else str(finding.line)
    return {**vars(finding), "line": line}


def _traffic(recorder: Recorder, arrays: Mapping[str, Array]) -> Traffic:
    """Return the accesses by array: inputs, then the others as they were met."""
    reads = dict.fromkeys(arrays, 0)
    writes = dict.fromkeys(arrays, 0)
    for line in recorder.lines.values():
        if line.kind != "write":
            reads[line.array] += line.elements
        if line.kind != "read":
            writes[line.array] += line.elements
    by_array = {}
    order = {"input": 0, "extra": 1, "output": 2}
    for name, array in sorted(arrays.items(), key=lambda item: order[item[1].role]):
        if reads[name] or writes[name] or array.role != "extra":
            by_array[name] = ArrayTraffic(
                reads[name], writes[name], 0, array.size, array.itemsize, array.role
            )
    return Traffic(by_array)
