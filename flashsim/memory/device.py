"""A device: an HBM, an SRAM, and links to other devices, on which blocks of HBM travel.

A program is one function, the same for every device, `def ring(device, …)`. Beside the five verbs
it has two::

    # Both tiles are on their way from here on.
    ticket = device.post(sends=[(K, right)], receives=[(K_next, left)])
    # After this, K_next holds what was received, and K may be written again.
    device.wait(ticket)

What is sent is counted on its link, in words (elements) and bytes, apart from HBM accesses, which
are between HBM and SRAM. A block that is being received reads as NaN until `wait`. Who carries
messages is an `Engine`: here the simulated network, in `flashsim.devices.distributed`
torch.distributed and MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from flashsim.memory.errors import MemoryModelError
from flashsim.memory.hbm import HBM, Block, Matrix
from flashsim.memory.source import Site, label_at, site_of
from flashsim.memory.sram import SRAM, EventKind


class LinkError(MemoryModelError):
    """A program broke a rule of the links: what it says names the rank and the line."""


@dataclass(frozen=True)
class Link:
    """What one device has sent to another: elements, bytes, messages."""

    words: int = 0
    bytes: int = 0
    messages: int = 0

    def plus(self, block: Block) -> Link:
        """Return the same with one more message."""
        words = block.shape[0] * block.shape[1]
        return Link(
            self.words + words,
            self.bytes + words * block._storage.dtype.itemsize,
            self.messages + 1,
        )


class Ticket(NamedTuple):
    """What `post` returned, to `wait` for: whose it is, its number there, and the line that
    posted it.
    """

    rank: int
    number: int
    site: Site


class Engine(Protocol):
    """Who carries messages between devices."""

    def post(
        self,
        ticket: Ticket,
        sends: Sequence[tuple[Block, int]],
        receives: Sequence[tuple[Block, int]],
    ) -> None:
        """Take messages on; return at once."""

    def wait(self, ticket: Ticket, site: Site) -> None:
        """Return once everything of that ticket has arrived, here and there."""


class Device:
    """One of `size` devices, numbered by `rank`. `links[to]` says what it has sent there."""

    def __init__(self, rank: int, size: int, hbm: HBM, sram: SRAM, engine: Engine) -> None:
        self.rank = rank
        self.size = size
        self.hbm = hbm
        self.sram = sram
        self.links: dict[int, Link] = {}
        self._engine, self._posted, self._waiting = engine, 0, dict[int, Ticket]()
        self._coming: dict[int, list[tuple[Block, str]]] = {}

    def post(
        self,
        *,
        sends: Sequence[tuple[Matrix, int]] = (),
        receives: Sequence[tuple[Matrix, int]] = (),
    ) -> Ticket:
        """Send matrices, or windows of their rows, to other ranks, and receive such from them.
        Empty ones are not messages.

        Between two ranks messages arrive in the order in which they were posted. Raises LinkError
        for a rank that does not exist.
        """
        ticket = Ticket(self.rank, self._posted, site_of(sys._getframe(1)))
        self._posted += 1
        there = [
            (whole(matrix), self._other(rank, ticket.site))
            for matrix, rank in sends
            if 0 not in matrix.shape
        ]
        here = [
            (whole(matrix), self._other(rank, ticket.site))
            for matrix, rank in receives
            if 0 not in matrix.shape
        ]
        for block, to in there:
            self.links[to] = self.links.get(to, Link()).plus(block)
            self._tell("post", block, f"[→{to}]", ticket.site)
        self._waiting[ticket.number] = ticket
        self._coming[ticket.number] = [(block, f"[←{from_}]") for block, from_ in here]
        self._engine.post(ticket, there, here)
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Wait for all of a ticket. Raises LinkError for one that is not of this device, or was
        waited for.
        """
        site = site_of(sys._getframe(1))
        if not isinstance(ticket, Ticket) or self._waiting.pop(ticket.number, None) is not ticket:
            raise LinkError(
                f"{said(self.rank, site)} waits for {ticket!r:.80}; expected a ticket of its own, "
                "once"
            )
        self._engine.wait(ticket, site)
        for block, way in self._coming.pop(ticket.number):
            self._tell("wait", block, way, site)

    def _tell(self, kind: EventKind, block: Block, way: str, site: Site) -> None:
        """Tell the observers of the memory of what was sent, X[→to], or arrived, X[←from]."""
        if self.sram._observers:
            self.sram._tell(
                kind,
                block.name.partition("[")[0] + way,
                block.shape[0] * block.shape[1],
                None,
                site,
            )

    @property
    def words(self) -> int:
        """The elements that it has sent, over all links."""
        return sum(link.words for link in self.links.values())

    @property
    def waiting(self) -> Sequence[Ticket]:
        """What was posted and not waited for."""
        return [*self._waiting.values()]

    def _other(self, rank: Any, site: Site) -> int:
        if (
            isinstance(rank, bool)
            or not isinstance(rank, int)
            or not 0 <= rank < self.size
            or rank == self.rank
        ):
            raise LinkError(
                f"{said(self.rank, site)} posts to or from rank {rank!r}; expected another one of "
                f"{self.size} ranks"
            )
        return rank


def said(rank: int, site: Site) -> str:
    """Return a rank and a line as messages name them."""
    label = label_at(site)
    return (
        f"rank {rank}, at line {site[1]} of "
        f"{site[0].rpartition('/')[2]}{f' ({label})' if label else ''},"
    )


def whole(matrix: Matrix) -> Block:
    """Return a matrix, or a window of its rows, as one block."""
    if not isinstance(matrix, Matrix):
        raise TypeError(
            "device.post takes matrices in HBM, or K.rows(a, b), with a rank each; got "
            f"{matrix!r:.80}"
        )
    block = matrix.divide(*matrix.shape)[0]
    return Block(block._storage, matrix.name, block.where)
