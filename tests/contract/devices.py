"""Trials of programs over devices: the reference is the same attention on one device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

import flashsim
from flashsim import devices
from flashsim.devices.layouts import LAYOUTS
from flashsim.devices.programs import programs
from flashsim.devices.record import DevicesProgram
from flashsim.devices.theory import forms
from flashsim.devices.tracing import trace
from flashsim.memory.sram import Observer
from flashsim.simulate.results import Result
from flashsim.tracing import Trace
from tests.contract.trials import Array, Trial

PROGRAMS: Mapping[str, DevicesProgram] = {
    **{f"{name} over devices": program for name, program in programs().items()},
    **{f"{name} over devices, backward": one for name, one in programs("backward").items()},
}
MUCH = 1000
NEAR = 1e-11


class EveryThird(flashsim.Mask):
    """No band: each tile is looked at."""

    def allows(self, rows: Any, cols: Any, shape: Any, head: Any) -> Any:
        return (rows[:, None] - cols) % 3 == 0


@dataclass(frozen=True)
class DevicesTrial(Trial):
    """
    N_q      fewer than N for a program that has all queries on device 0
    columns  of a mesh, else None
    """

    program: DevicesProgram
    P: int
    N: int
    N_q: int
    widths: tuple[int, int] = (3, 2)
    kv_heads: int = 1
    group: int = 1
    blocks: tuple[int, int] = (2, 3)
    layout: str = "contiguous"
    columns: int | None = None
    mask: flashsim.Mask | None = None
    seed: int = 0

    @cached_property
    def arrays(self) -> dict[str, Array]:
        d, d_v = self.widths
        heads = self.group * self.kv_heads
        rng = np.random.default_rng(self.seed)
        return {
            "Q": rng.normal(size=(heads, self.N_q, d)),
            "K": rng.normal(size=(self.kv_heads, self.N, d)),
            "V": rng.normal(size=(self.kv_heads, self.N, d_v)),
            "dO": rng.normal(size=(heads, self.N_q, d_v)),
        }

    def operands(self) -> Mapping[str, Array]:
        return self.arrays

    @property
    def inputs(self) -> tuple[Array, Array, Array]:
        return self.arrays["Q"], self.arrays["K"], self.arrays["V"]

    @property
    def is_backward(self) -> bool:
        return self.program.direction == "backward"

    @property
    def how(self) -> dict[str, Any]:
        """How the devices share the problem."""
        return {
            "P": self.P,
            "layout": self.layout,
            "blocks": self.blocks,
            "mask": self.mask,
            "M": MUCH,
        }

    @cached_property
    def before(self) -> devices.DevicesResult:
        """The forward pass of a backward pass."""
        return devices.forward("ring", *self.inputs, **self.how)

    @cached_property
    def on_one_device(self) -> dict[str, Array]:
        """What one device computes."""
        run = flashsim.forward("q_outer", *self.inputs, mask=self.mask, M=MUCH)
        if self.is_backward:
            return dict(flashsim.backward("q_outer", run, self.arrays["dO"]).arrays)
        assert run.lse is not None
        return {"O": run.O, "lse": run.lse}

    def run(
        self, program: Any = None, M: int | None = None, observers: Sequence[Observer] = ()
    ) -> devices.DevicesResult:
        """Observers are of all devices; a backward pass over devices takes none."""
        program = program or self.program
        M = MUCH if M is None else M
        if self.is_backward:
            return devices.backward(
                program,
                self.before,
                self.arrays["dO"],
                columns=self.columns,
                blocks=self.blocks,
                M=M,
            )
        how = {**self.how, "M": M, "columns": self.columns}
        return devices.forward(program, *self.inputs, **how, observers=[observers] * self.P)

    def run_in(self, M: int, run: Result) -> devices.DevicesResult:
        """Count: it refuses what a run refuses."""
        return self._count({**self.how, "M": M})

    def count(self) -> devices.DevicesResult:
        return self._count(self.how)

    def _count(self, how: dict[str, Any]) -> devices.DevicesResult:
        d, d_v = self.widths
        return devices.count(
            self.program,
            N=self.N,
            N_q=self.N_q,
            d=d,
            d_v=d_v,
            heads=self.group * self.kv_heads,
            kv_heads=self.kv_heads,
            direction=self.program.direction,
            columns=self.columns,
            dtype="float64",
            **how,
        )

    def wrong(self, run: Result) -> list[str]:
        names = []
        for name in ("dQ", "dK", "dV") if self.is_backward else ("O", "lse"):
            result = run.arrays[name]
            if not np.allclose(result, self.on_one_device[name], rtol=0, atol=NEAR):
                names.append(name)
        return names

    def costs(self, result: Any) -> Any:
        return [(device.words, device.hbm) for device in result.devices]

    def exact(self, result: Any) -> Any:
        """The form's peak is of whole blocks: no device has more on chip."""
        most = forms()[self.program.name, self.program.direction].peak(*self.blocks, *self.widths)
        assert self.peak(result) <= most
        return [(device.words, device.hbm) for device in devices.exact(result)]

    def matmul(self, result: Result) -> int | None:
        return None

    def in_common(self, result: Any) -> Any:
        return result.devices

    def peak(self, run: Any) -> int:
        peaks: list[int] = [device.sram.peak for device in run.devices]
        return max(peaks)

    def trace(self) -> Trace | None:
        if self.is_backward:
            return None
        if self.group * self.kv_heads > 1:
            return None
        how = {**self.how, "columns": self.columns}
        rank = 0 if self.program.at_root else self.P // 2
        return trace(self.program.name, *self.inputs, rank=rank, **how)


@st.composite
def trials(draw: st.DrawFn, program: DevicesProgram) -> DevicesTrial:
    N = draw(st.integers(1, 16))
    P = draw(st.integers(1, 6))
    divisors = [columns for columns in range(1, P + 1) if P % columns == 0]
    masks = (
        None,
        flashsim.Causal(),
        flashsim.SlidingWindow(3, 1),
        flashsim.KeyPadding(max(N - 2, 0)),
        EveryThird(),
    )
    return DevicesTrial(
        program,
        P=P,
        N=N,
        N_q=draw(st.integers(1, N)) if program.at_root else N,
        widths=(draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 2)),
        blocks=(draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        layout=draw(st.sampled_from(LAYOUTS)),
        columns=draw(st.sampled_from(divisors)) if program.columns else None,
        mask=draw(st.sampled_from(masks)),
        seed=draw(st.integers(0, 2**32)),
    )


def samples(program: DevicesProgram) -> list[DevicesTrial]:
    """Return a problem of one head; grouped heads under a mask, in ragged shares; and more heads
    than devices.
    """
    few = 2 if program.columns else None
    all_of_them = 3 if program.columns else None
    causal = flashsim.Causal()
    return [
        DevicesTrial(program, P=4, N=10, N_q=10, columns=few),
        DevicesTrial(
            program, P=3, N=8, N_q=8, kv_heads=1, group=2, columns=all_of_them, mask=causal
        ),
        DevicesTrial(program, P=3, N=11, N_q=11, kv_heads=4, columns=all_of_them, mask=causal),
    ]
