"""The simulated network: ranks are threads that hand over at `wait`, in the order of ranks, so that
one runs at a time.

A run is the same every time, and a debugger stops in it. The rules are enforced: what is being
received reads as NaN; what is changed while it is sent, is never received, or is waited for without
end raises LinkError.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, cast

import numpy as np

from flashsim.memory.debuggers import keep_following
from flashsim.memory.device import Device, LinkError, Ticket, said
from flashsim.memory.hbm import HBM, Block, Tile
from flashsim.memory.source import Site
from flashsim.memory.sram import SRAM, Observer


class _Stopped(BaseException):
    """Ends a rank's thread after another rank has failed."""


@dataclass(eq=False)
class _Message:
    """One end of a message: what `ticket`'s rank sends or receives. `other` is its other end,
    once that is posted too.
    """

    block: Block
    ticket: Ticket
    peer: int
    values: Tile | None = None
    other: _Message | None = None


@dataclass
class _Posted:
    """A ticket's messages."""

    sends: list[_Message] = field(default_factory=list)
    receives: list[_Message] = field(default_factory=list)

    @property
    def missing(self) -> _Message | None:
        """The first message whose other end is not posted."""
        return next(
            (message for message in (*self.receives, *self.sends) if message.other is None), None
        )


class Network:
    """P devices, each with an SRAM of M elements, that run one program. `observers[rank]` are told
    of its memory's events.

    `fold` is `SRAM`'s.
    """

    def __init__(
        self,
        P: int,
        M: int,
        *,
        dtype: Any = np.float64,
        enforced: bool = True,
        arithmetic: bool = True,
        observers: Sequence[Sequence[Observer]] = (),
        fold: bool = False,
    ) -> None:
        self._turn, self._changed = 0, Condition()
        self._error: BaseException | None = None
        self._tickets: dict[tuple[int, int], _Posted] = {}
        self._ends: dict[tuple[int, int, str], deque[_Message]] = {}
        # what a rank waits for; gone: it ended
        self._at: dict[int, tuple[Ticket, Site] | None] = dict.fromkeys(range(P))
        memories = [HBM(arithmetic=arithmetic) for _ in range(P)]
        self.devices = [
            Device(
                rank,
                P,
                hbm,
                SRAM(
                    hbm, M, enforced=enforced, dtype=dtype, observers=observers_of_rank, fold=fold
                ),
                self,
            )
            for rank, (hbm, observers_of_rank) in enumerate(
                zip(memories, observers or [()] * P, strict=True)
            )
        ]

    def run(self, program: Callable[[Device], Any]) -> list[Any]:
        """Call the program on every device; return what each call returned. A network runs once.

        Raises what the first rank to fail raised, with a note of its rank, and LinkError.
        """
        if len(self._at) < len(self.devices) or self._error is not None:
            raise LinkError("this network has run; expected a new one")
        returned: list[Any] = [None] * len(self.devices)
        tracer = sys.gettrace()

        def work(device: Device) -> None:
            if tracer is not None:
                keep_following(tracer)
            try:
                with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                    self._until_turn(device.rank)
                    returned[device.rank] = program(device)
                self._end(device)
            except _Stopped:
                pass
            except BaseException as error:
                error.add_note(f"on rank {device.rank} of {device.size}")
                self._stop(error)

        threads = [Thread(target=work, args=(device,), daemon=True) for device in self.devices]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C
            self._stop(error)
            raise
        if self._error is not None:
            raise self._error
        return returned

    # ----------------------------------------------------------------------------------------------
    # messages

    def post(
        self,
        ticket: Ticket,
        sends: Sequence[tuple[Block, int]],
        receives: Sequence[tuple[Block, int]],
    ) -> None:
        """Put the ends of messages where their other ends find them."""
        posted = self._tickets[ticket[:2]] = _Posted()
        for block, to in sends:
            posted.sends.append(message := _Message(block, ticket, to, _values(block)))
            self._meet(message, ticket.rank, to, "send")
        for block, from_ in receives:
            posted.receives.append(message := _Message(block, ticket, from_))
            _poison(block)
            self._meet(message, from_, ticket.rank, "receive")

    def _meet(self, message: _Message, from_: int, to: int, end: str) -> None:
        others = self._ends.setdefault((from_, to, "receive" if end == "send" else "send"), deque())
        if not others:
            self._ends.setdefault((from_, to, end), deque()).append(message)
            return
        message.other = others[0]
        others[0].other = message
        other = others.popleft()
        one, two = (message, other) if end == "send" else (other, message)
        kinds = [(each.block.shape, each.block._storage.dtype) for each in (one, two)]
        if kinds[0] != kinds[1]:
            sent, expected = (
                f"{each.block.name} {each.block.shape} {each.block._storage.dtype}"
                for each in (one, two)
            )
            raise LinkError(
                f"{said(from_, one.ticket.site)} sends {sent} to {said(to, two.ticket.site)} which "
                f"expects {expected}"
            )

    def wait(self, ticket: Ticket, site: Site) -> None:
        """Let other ranks run until all of the ticket has met; then hand over what is received."""
        posted = self._tickets[ticket[:2]]
        rank = ticket.rank
        if posted.missing:
            self._at[rank] = ticket, site
            self._hand_over(rank)
            self._until_turn(rank)
            self._at[rank] = None
        del self._tickets[ticket[:2]]
        for message in posted.sends:
            now = _values(message.block)
            if now is not None and not np.array_equal(
                now, cast(Tile, message.values), equal_nan=True
            ):
                raise LinkError(
                    f"{said(rank, ticket.site)} sends {message.block.name} to rank {message.peer}, "
                    "and it was changed before "
                    f"{said(rank, site)} waited for it"
                )
        for message in posted.receives:
            arrived = cast(_Message, message.other).values
            into = message.block._values
            if arrived is None or into is None:
                continue
            if into.dtype.kind not in "biu" and not np.isnan(into).all():
                raise LinkError(
                    f"{said(rank, ticket.site)} receives {message.block.name} from rank "
                    f"{message.peer}, and it was written to "
                    f"before {said(rank, site)} waited for it"
                )
            into[...] = arrived

    # ----------------------------------------------------------------------------------------------
    # turns

    def _until_turn(self, rank: int) -> None:
        with self._changed:
            while self._turn != rank and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise _Stopped

    def _hand_over(self, rank: int) -> None:
        """Give the turn to the next rank that can go on. Raises LinkError where none can."""
        P = len(self.devices)
        for other in ((rank + step) % P for step in range(1, P + 1)):
            if other in self._at and (
                (ticket := self._at[other]) is None or not self._tickets[ticket[0][:2]].missing
            ):
                with self._changed:
                    self._turn = other
                    self._changed.notify_all()
                return
        stuck = [
            (other, ticket) for other, ticket in sorted(self._at.items()) if ticket is not None
        ]
        if stuck:
            raise LinkError(
                "ranks would wait for ever: " + "; ".join(self._why(*each) for each in stuck)
            )

    def _why(self, rank: int, at: tuple[Ticket, Site]) -> str:
        ticket, site = at
        posted = self._tickets[ticket[:2]]
        message = posted.missing
        assert message is not None
        verb = "for a message from" if message in posted.receives else "to be received by"
        gone = "" if message.peer in self._at else ", which has ended"
        return (
            f"{said(rank, site)} waits with {message.block.name} {verb} rank {message.peer}{gone}"
        )

    def _end(self, device: Device) -> None:
        """Let the others go on after a rank's program. Raises LinkError for what it posted and
        did not wait for.
        """
        for ticket in device.waiting:
            raise LinkError(
                f"{said(device.rank, ticket.site)} posts a message, and ends without waiting for it"
            )
        del self._at[device.rank]
        self._hand_over(device.rank)

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


def _values(block: Block) -> Tile | None:
    """Return a copy of what a block holds; None in counting-only mode."""
    return None if block._values is None else block._values.copy()


def _poison(block: Block) -> None:
    if block._values is not None and block._values.dtype.kind not in "biu":
        block._values[...] = np.nan
