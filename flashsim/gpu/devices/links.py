"""A GPU as one of several devices: what it sends and receives, by torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsim.devices.engines import Torch, all_processes
from flashsim.devices.share import Share
from flashsim.gpu.compiling import import_cupy
from flashsim.memory.device import Link


class Links:
    """One of `size` devices, numbered by `rank`. `sent[to]` says what it has sent there; replays of
    a graph are not counted.

    overlap  False: `post` waits for what it posts, so that nothing is computed meanwhile
    """

    def __init__(self, engine: Torch, *, overlap: bool = True) -> None:
        self.engine = engine
        self.overlap = overlap
        self.rank, self.size, self.sent = engine.rank, engine.size, dict[int, Link]()
        self.shares: dict[Any, Share] = {}  # by what was asked for
        if engine.device.type == "cuda":
            import_cupy().cuda.Device(engine.device.index).use()

    def post(
        self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        """Send contiguous tensors, each to a rank, and receive others; return what to `wait`
        for. Empty ones are not messages.
        """
        there, here = ([(X, rank) for X, rank in each if X.numel()] for each in (sends, receives))
        for X, to in there:
            link = self.sent.get(to, Link())
            self.sent[to] = Link(link.words + X.numel(), link.bytes + X.nbytes, link.messages + 1)
        works: list[Any] = self.engine.start(there, here)
        if not self.overlap:
            self.wait(works)
        return works

    def wait(self, works: list[Any]) -> None:
        """Let the current stream wait for messages, once."""
        with all_processes(self.rank):
            for work in works:
                work.wait()
        works.clear()

    def finish(self) -> None:
        """Return once this GPU has done what is queued. Raises LinkError if a process has ended:
        after the engine's `timeout`.
        """
        self.engine.finish()

    @property
    def words(self) -> int:
        """The elements that it has sent."""
        return sum(link.words for link in self.sent.values())

    @property
    def bytes(self) -> int:
        """The same in bytes."""
        return sum(link.bytes for link in self.sent.values())
