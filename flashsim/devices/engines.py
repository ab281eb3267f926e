"""What sends messages between processes: torch.distributed, with gloo or with NCCL between GPUs,
and MPI.

Bytes that are passed to an engine are counted, and, over MPI, those that it says were received. If
a message has the wrong length, or a process ends, the others raise LinkError within `timeout`
seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any, ClassVar, Protocol, cast
from weakref import WeakSet

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.memory.device import Engine, LinkError, Ticket, said
from flashsim.memory.hbm import Block
from flashsim.memory.source import Site

ENGINES = ("torch", "nccl", "mpi")
STARTED_BY = {
    "torch": ("TORCHELASTIC_RUN_ID",),
    "mpi": ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"),
}
"""Variables that torchrun and mpiexec set in the processes that they start."""


class Processes(Engine, Protocol):
    """An engine between processes: which of them this is, and how many bytes it sent."""

    rank: int
    size: int
    handed: int
    received: int | None

    def everyone_s(self, word: Any) -> list[Any]:
        """Return each process's value, in the order of ranks."""

    def close(self) -> None:
        """End the engine, when all processes have finished."""


class Torch:
    """torch.distributed, unless a process group is there already by `backends`. It does not say
    how much was received.
    """

    backends = "gloo"
    device_type = "cpu"
    patience = 1

    def __init__(self, timeout: float = 60.0) -> None:
        import torch
        import torch.distributed as dist

        self._torch = torch
        self._dist = dist
        self._timeout = timedelta(seconds=timeout)
        self.device = torch.device(self.device_type)
        if not dist.is_initialized():
            dist.init_process_group(self.backends, timeout=self.patience * self._timeout)
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.handed = 0
        self.received = cast(int | None, None)

    def start(
        self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        """Start messages of tensors together, as a lone isend need not be asynchronous; return
        what to wait for.
        """
        dist = self._dist
        operations = [dist.P2POp(dist.irecv, data, from_) for data, from_ in receives]
        for data, to in sends:
            self.handed += data.nbytes
            operations.append(dist.P2POp(dist.isend, data, to))
        with all_processes(self.rank):
            return dist.batch_isend_irecv(operations) if operations else []

    def finish(self) -> None:
        """Return once what is queued on this process's GPU, if it has one, is done."""

    def everyone_s(self, word: Any) -> list[Any]:
        words = [None] * self.size
        with all_processes(self.rank):
            self._dist.all_gather_object(words, word)
        return words

    def close(self) -> None:
        """Wait for all processes, then end: if one ended while others still send to it, they would
        end too.
        """
        self._dist.barrier()
        self._dist.destroy_process_group()


class Nccl(Torch):
    """Torch over NCCL: messages go between GPUs, of which a process has the one of its number on
    the host.

    NCCL never stops waiting for a process that has ended. `finish` waits `timeout` seconds, ends
    NCCL, and raises LinkError. A process that does not call `finish` is ended by PyTorch after
    twice that time, unless it runs a graph. `graphs` hold messages: NCCL ends only when they are
    deleted. A graph that ran later would take its messages as arrived.
    """

    backends = "cpu:gloo,cuda:nccl"
    device_type = "cuda"
    patience = 2
    graphs: ClassVar[WeakSet[Any]] = WeakSet()
    _ended = False

    def __init__(self, timeout: float = 60.0) -> None:
        import torch

        index = int(os.environ.get("LOCAL_RANK", "0"))
        if not 0 <= index < torch.cuda.device_count():
            raise ValueError(
                f"engine is 'nccl', of GPU {index}; this host has {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(index)
        # where a message and a kernel are ready
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
        super().__init__(timeout)
        self.device = torch.device("cuda", index)
        self._works: dict[int, list[Any]] = {}
        self._arriving: dict[int, list[tuple[Any, Any]]] = {}

    def post(
        self,
        ticket: Ticket,
        sends: Sequence[tuple[Block, int]],
        receives: Sequence[tuple[Block, int]],
    ) -> None:
        """Copy blocks to the GPU, and start all of a ticket's messages."""
        from_numpy = self._torch.from_numpy
        leaving = []
        arriving = []
        copies = []
        with _named(said(ticket.rank, ticket.site)):
            for block, from_ in receives:
                into = from_numpy(_bytes(block))
                data = into.to(self.device)
                arriving.append((data, from_))
                copies.append((data, into))
            for block, to in sends:
                data = from_numpy(_bytes(block)).to(self.device)
                leaving.append((data, to))
            self._works[ticket.number] = self.start(leaving, arriving)
        self._arriving[ticket.number] = copies

    def wait(self, ticket: Ticket, site: Site) -> None:
        """Wait for all, and copy what has arrived from the GPU."""
        works = self._works.pop(ticket.number)
        arrived = self._arriving.pop(ticket.number)
        with _named(said(ticket.rank, site)):
            for work in works:
                work.wait()
            self._until_done()
            for data, into in arrived:
                into.copy_(data)

    def finish(self) -> None:
        """Return once what is queued on this GPU's current stream is done. Raises LinkError
        after `timeout` seconds.
        """
        with all_processes(self.rank):
            if self._ended:
                raise TimeoutError("NCCL was ended before")
            self._until_done()

    def _until_done(self) -> None:
        event = self._torch.cuda.Event()
        seconds = self._timeout.total_seconds()
        event.record()
        try:
            _until(event.query, seconds)
        except TimeoutError:
            ending = Thread(
                target=self._dist.group.WORLD._get_backend(self.device).abort, daemon=True
            )
            self._ended = True
            ending.start()  # its kernels end at once
            with suppress(TimeoutError):
                _until(event.query, seconds)
            while self.graphs:
                self.graphs.pop().reset()
            ending.join(seconds)
            raise


class Gloo(Torch):
    """Torch over gloo. gloo accepts a message that was cut short as if it were whole, and ends the
    process if a message is too long.

    So 8 bytes with its length go before each message, beside `handed`. A message is received from
    `wait` on, once its length is known to be right; messages from one rank in the order of their
    posts.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        super().__init__(timeout)
        self._sent: dict[int, list[tuple[Any, Any]]] = {}
        self._due: list[_Due] = []

    def post(
        self,
        ticket: Ticket,
        sends: Sequence[tuple[Block, int]],
        receives: Sequence[tuple[Block, int]],
    ) -> None:
        """Send lengths and messages, and ask for lengths."""
        dist = self._dist
        sent = self._sent.setdefault(ticket.number, [])
        with _named(said(ticket.rank, ticket.site)):
            for block, to in sends:
                data = self._torch.from_numpy(_bytes(block))
                length = self._torch.tensor([data.nbytes])
                self.handed += data.nbytes
                sent.append((dist.isend(length, to, tag=1), length))
                sent.append((dist.isend(data, to, tag=0), data))
            for block, from_ in receives:
                length = self._torch.zeros(1, dtype=self._torch.int64)
                self._due.append(
                    _Due(ticket.number, from_, block, length, dist.irecv(length, from_, tag=1))
                )

    def wait(self, ticket: Ticket, site: Site) -> None:
        """Compare lengths, receive the ticket's messages, after those that were posted before them,
        and wait until its own are sent.
        """
        peers = {due.from_ for due in self._due if due.number == ticket.number}
        now = [due for due in self._due if due.number <= ticket.number and due.from_ in peers]
        self._due = [due for due in self._due if due not in now]
        with _named(said(ticket.rank, site)):
            for due in now:
                due.work.wait(self._timeout)
                data = self._torch.from_numpy(_bytes(due.block))
                length = int(due.length)
                if length != data.nbytes:
                    raise _other_length(ticket.rank, site, length, due.from_, data.nbytes)
                self._dist.irecv(data, due.from_).wait(self._timeout)
            for work, _ in self._sent.pop(ticket.number):
                work.wait(self._timeout)


@dataclass(frozen=True, eq=False)
class _Due:
    """A message of ticket `number` that is to come: `length` holds its bytes once `work` is
    done.
    """

    number: int
    from_: int
    block: Block
    length: Any
    work: Any


class Mpi:
    """MPI, by mpi4py. The receiver's own count of bytes is checked, and kept as `received`."""

    def __init__(self, timeout: float = 60.0) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._all = MPI.COMM_WORLD
        self._timeout = timeout
        self.rank = self._all.Get_rank()
        self.size = self._all.Get_size()
        self.handed = 0
        self.received = cast(int | None, 0)
        self._requests: dict[int, list[Any]] = {}
        self._expected: dict[int, list[tuple[int, int]]] = {}

    def post(
        self,
        ticket: Ticket,
        sends: Sequence[tuple[Block, int]],
        receives: Sequence[tuple[Block, int]],
    ) -> None:
        """Start all of a ticket's messages."""
        requests = []
        expected = []
        for block, from_ in receives:
            data = _bytes(block)
            requests.append(self._all.Irecv([data, self._mpi.BYTE], source=from_))
            expected.append((from_, data.nbytes))
        for block, to in sends:
            data = _bytes(block)
            self.handed += data.nbytes
            requests.append(self._all.Isend([data, self._mpi.BYTE], dest=to))
        self._requests[ticket.number] = requests
        self._expected[ticket.number] = expected

    def wait(self, ticket: Ticket, site: Site) -> None:
        """Wait for all, for `timeout` seconds at most."""
        requests = self._requests.pop(ticket.number)
        expected = self._expected.pop(ticket.number)
        states = [self._mpi.Status() for _ in requests]
        with _named(said(ticket.rank, site)):
            _until(lambda: self._mpi.Request.Testall(requests, states), self._timeout)
        for state, (from_, size) in zip(states, expected, strict=False):
            length = state.Get_count(self._mpi.BYTE)
            self.received = (self.received or 0) + length
            if length != size:
                raise _other_length(ticket.rank, site, length, from_, size)

    def everyone_s(self, word: Any) -> list[Any]:
        with all_processes(self.rank):
            _until(self._all.Ibarrier().Test, self._timeout)
            words: list[Any] = self._all.allgather(word)
        return words

    def close(self) -> None:
        """Do nothing: at the end of the program mpi4py waits for all processes."""


def started_by() -> str | None:
    """Return the engine whose launcher started this process; None: no launcher did."""
    for each, variables in STARTED_BY.items():
        if any(name in os.environ for name in variables):
            return each
    return None


def engine(name: str | None = None, timeout: float = 60.0) -> Processes:
    """Return the engine of that name, "torch" (gloo), "nccl" or "mpi"; None: the one whose launcher
    started this process.

    Raises ValueError.
    """
    name = started_by() if name is None else name
    if name not in ENGINES:
        started = (
            "torchrun --standalone --nproc-per-node 4 -m -- flashsim …, or mpiexec -n 4 python -m "
            "flashsim …"
        )
        raise ValueError(
            f"engine is {name!r}; expected {' or '.join(map(repr, ENGINES))}, and to be started by "
            f"{started}"
        )
    if name == "mpi":
        return Mpi(timeout)
    return Nccl(timeout) if name == "nccl" else Gloo(timeout)


@contextmanager
def _named(who: str, lost: str = "lost its message") -> Iterator[None]:
    """Turn an engine's error into a LinkError that names the process."""
    try:
        yield
    except LinkError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        raise LinkError(f"{who} {lost}: {''.join(first)}") from error


def all_processes(rank: int) -> AbstractContextManager[None]:
    """Return a context that turns an error in a step of all processes into a LinkError with this
    rank.
    """
    return _named(f"rank {rank}", "did not hear from all processes")


def _until(done: Callable[[], Any], seconds: float) -> None:
    """Ask until it is done. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing for {seconds:g} s")
        time.sleep(1e-4)


def _other_length(rank: int, site: Site, length: int, from_: int, expected: int) -> LinkError:
    return LinkError(
        f"{said(rank, site)} received {length:,} bytes from rank {from_}; expected {expected:,}"
    )


def _bytes(block: Block) -> Array:
    """Return a block's own memory as bytes: whole rows lie together."""
    contents: Array = cast(Array, block._values).view(np.uint8).reshape(-1)
    return contents
