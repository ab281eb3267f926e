"""An L2 that several multiprocessors share, each with an SRAM of its own.

    l2 = SharedL2(200_000, sms=8)                        # or SharedL2.of(MACHINES["H100"], "float16")
    flashsim.forward("q_outer", Q, K, V, observers=[l2])
    l2.flush()                                           # plays what was recorded, then writes back
    l2.dram_reads, l2.by_array["K"].hits

A run is recorded, then played anew on `sms` multiprocessors:

* A piece of work is a turn of an outermost loop, as a GPU's thread block takes one. Where a turn writes what another touches, as
  FlashAttention's O_i for each j, all turns of that loop are one piece. So are accesses outside of loops.
* A head's next loop begins when all of its last one is done. Heads wait for nothing of each other.
* A free multiprocessor takes the first piece that may begin, in the order in which the run came to it. Then each in turn makes
  one transfer, a block loaded or stored, round after round.

What one has fetched, the others hit, if they come to it before it is replaced. What SMs and L2 exchange is as in the run, to
the element; with `sms=1` all else is, too, as `flashsim.cache.L2` counts it. A real GPU's multiprocessors drift apart.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.hardware.cache import L2
from flashsim.hardware.machines import Machine
from flashsim.machine.memory import SRAM, Event
from flashsim.problem.arguments import check_count
from flashsim.problem.inputs import float_dtype

Access = tuple[str, int, int, bool]
"""An array, its first address, how many elements, and whether they are written."""
Piece = list[list[Access]]
"""Transfers, each of the runs of addresses that its block has."""
NOBODY, SEVERAL = -1, -2


class _Stage:
    """An outermost loop of one head, or what lies outside of loops: its turns, and whether they are independent."""

    def __init__(self, head: int) -> None:
        self.head, self.turns, self.independent = head, dict[int, Piece](), True
        self._readers: dict[str, NDArray[Any]] = {}
        self._writers: dict[str, NDArray[Any]] = {}

    def add(self, turn: int, transfer: list[Access], first: int, elements: int) -> None:
        """Add a turn's transfer, of an array of so many `elements` from the address `first` on."""
        self.turns.setdefault(turn, []).append(transfer)
        for array, start, length, write in transfer:
            readers, writers = (each.setdefault(array, np.full(elements, NOBODY)) for each in (self._readers, self._writers))
            at = slice(start - first, start - first + length)
            others = [writers[at], *([readers[at]] if write else [])]
            if any(((who != NOBODY) & (who != turn)).any() for who in others):
                self.independent = False
            if write:
                writers[at] = turn
            else:
                readers[at] = np.where((readers[at] == NOBODY) | (readers[at] == turn), turn, SEVERAL)

    @property
    def pieces(self) -> list[Piece]:
        if self.independent:
            return list(self.turns.values())
        return [[transfer for piece in self.turns.values() for transfer in piece]]


class SharedL2(L2):
    """An `L2` between `sms` multiprocessors and DRAM. An observer; it counts when `flush` is called."""

    def __init__(self, size: int, *, sms: int, line: int = 32) -> None:
        super().__init__(size, line=line)
        self.sms = check_count("sms", sms)
        self._stages: list[_Stage] = []
        self._transfer: list[Access] = []
        self._head = -1
        self._of: SRAM | None = None
        self._loop = False

    @classmethod
    def of(cls, machine: Machine, dtype: Any, *, line: int = 32) -> SharedL2:
        """Return a machine's, in elements of a dtype, shared by all its multiprocessors."""
        return cls(machine.l2 // float_dtype(dtype).itemsize, sms=machine.sms, line=line)

    def __call__(self, event: Event) -> None:
        """Record one event."""
        if event.sram is not self._of:
            self._of, self._head = event.sram, self._head + 1
            self._begin(loop=False)
        if event.kind == "enter" and not event.loops:
            self._begin(loop=True)
        elif self._loop and not event.loops and event.kind in ("init", "load", "store"):
            self._begin(loop=False)
        self._transfer = []
        super().__call__(event)
        if self._transfer:
            first, height, width = self._places[self._transfer[0][0]]
            turn = event.loops[0][1] if event.loops else 0
            self._stages[-1].add(turn, self._transfer, first, height * width)

    def access(self, array: str, start: int, elements: int, write: bool) -> None:
        """Record an access as a part of the transfer."""
        self._transfer.append((array, start, elements, write))

    def flush(self) -> None:
        """Play all that was recorded since the last time, and write back all that is dirty. To be called after each run."""
        stages = [stage for stage in self._stages if stage.turns]
        pieces = [stage.pieces for stage in stages]
        left = list(map(len, pieces))
        ready: list[tuple[int, Piece]] = []  # the number of the stage, and what is to be done, in the run's order

        def begin(number: int) -> None:
            ready.extend((number, piece) for piece in pieces[number])
            ready.sort(key=lambda each: each[0])

        for number, stage in enumerate(stages):
            if not number or stage.head != stages[number - 1].head:
                begin(number)
        running: list[tuple[int, deque[list[Access]]]] = []
        while ready or running:
            while ready and len(running) < self.sms:
                number, piece = ready.pop(0)
                running.append((number, deque(piece)))
            for _, transfers in running:
                for access in transfers.popleft():
                    super().access(*access)
            for number, _ in (each for each in running if not each[1]):
                left[number] -= 1
                if not left[number] and number + 1 < len(stages) and stages[number + 1].head == stages[number].head:
                    begin(number + 1)
            running = [each for each in running if each[1]]
        self._stages = []
        self._begin(loop=False)
        super().flush()

    def _begin(self, loop: bool) -> None:
        self._stages.append(_Stage(self._head))
        self._loop = loop
