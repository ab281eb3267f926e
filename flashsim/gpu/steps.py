"""What each idea gains: every kernel of the ladder on one problem, forward, with the steps within
`hopper`, and PyTorch's kernels and FlashAttention-4.

    record = climb(Setting(4096, 128))

The record has the time and rate of each, from one run in which they took turns. It has the accesses
that the simulator and the kernel's counting build count, in elements. And it has the hardware's
counts, in bytes, between L2 and multiprocessors and in DRAM.

A step of `hopper` is the kernel with fewer of its ideas: two loops, a persistent grid, the longest
row blocks first, lazy rescaling, sums for maxima, mending, turns. docs/gpu-tried.md has the ideas
that cannot be switched off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from flashsim.gpu import hopper, hopper_fp8, tensor_core
from flashsim.gpu.benchmark import compile_first, race
from flashsim.gpu.compiling import capability, current_device, import_cupy
from flashsim.gpu.contestants import PEERS, Call, Setting, arrays, contestants, dtype_of
from flashsim.gpu.kernel import Kernel, Options
from flashsim.gpu.profiling import profiled, run_marked
from flashsim.gpu.rungs import ladder
from flashsim.simulate.api import count

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, hopper_fp8.NAME: 1}
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """A kernel, or `hopper` with some of its ideas: how to call it, and the simulator's algorithm
    and block sizes.
    """

    name: str
    rung: Kernel
    blocks: tuple[int, int] | None
    tiles: hopper.Tiles | None = None

    @property
    def counts(self) -> bool:
        """Whether it has a counting build."""
        return "count" in self.rung.takes and self.tiles is None

    def call(self, setting: Setting, *, counting: bool = False) -> Call:
        """Return a function that runs it on random arrays; with `counting`, in the counting build,
        which the steps of `hopper` do not have.
        """
        from flashsim import gpu

        q, k, v = arrays(setting, 3, dtype_of(self.rung, setting))
        tiles = self.tiles
        if tiles is None:
            keywords: dict[str, Any] = {
                "kernel": self.rung.name,
                "causal": setting.causal,
                "return_lse": True,
            }
            return lambda: gpu.forward(q, k, v, count=counting, **keywords)
        cupy, options = import_cupy(), Options(setting.d**-0.5, setting.causal)

        def run() -> Any:
            o = cupy.empty(q.shape, q.dtype)
            lse = cupy.empty(q.shape[:3], "float32")
            hopper.launch(tiles, q, k, v, o, lse, options)
            return o, lse

        return run


def steps(setting: Setting) -> Iterator[Step]:
    """Yield the steps, from the slowest kernel up."""
    for rung in ladder().values():
        shape = setting.batch, setting.H, setting.N, setting.d
        lacks = setting.causal and "causal" not in rung.takes, setting.d not in rung.head_dims
        if any(lacks) or (rung.unsuited and rung.unsuited(shape, shape)):
            continue
        if rung.name != "hopper":
            blocks = rung.choose_blocks and rung.choose_blocks(setting.d, setting.dtype, "forward")
            yield Step(
                rung.name,
                rung,
                tensor_core.block_sizes(setting.d) if rung.name == "tensor_core" else blocks,
            )
        elif not hopper.why_not(capability(current_device()), setting.d):
            for name, tiles in hopper.steps(setting.d).items():
                yield Step(f"hopper, {name}", rung, tiles.blocks, tiles)
            tiles = hopper.choose_tiles(setting.d, hopper.kind_of(Options(1.0, setting.causal)))
            yield Step("hopper", rung, tiles.blocks)


def climb(setting: Setting, *, rounds: int = 9, on_step: OnStep = lambda _: None) -> dict[str, Any]:
    """Return the setting and its steps as plain data, peers last. Raises MissingGPU without a
    GPU or without `ncu`.
    """
    taking_part = list(steps(setting))
    on_step("compile")
    makers = [(step.name, partial(step.call, setting)) for step in taking_part]
    counting = [partial(step.call, setting, counting=True) for step in taking_part if step.counts]
    compile_first([*(make for _, make in makers), *counting])
    on_step("time")
    timings = {
        timing.name: asdict(timing)
        for timing in race(setting, [*makers, *contestants(setting, PEERS)], rounds)
    }
    on_step("counters")
    profile = profiled(
        "flashsim.gpu.steps",
        str(setting.N),
        str(setting.d),
        str(int(setting.causal)),
        str(setting.H),
        setting.distribution,
    )
    rows: list[dict[str, Any]] = []
    for step, counters in zip(taking_part, profile, strict=True):
        on_step(step.name)
        width = WIDTHS[dtype_of(step.rung, setting)]  # of an element of Q, K and V
        rows.append(
            {
                **timings.pop(step.name),
                "width": width,
                "simulated": simulated(step, setting),
                "seen": counters,
            }
        )
        if step.counts:
            *_, counts = step.call(setting, counting=True)()
            rows[-1]["counted"] = {
                way: sum(getattr(a, way) for a in counts.values()) for way in ("reads", "writes")
            }
    rows += [timings[name] for name in PEERS if name in timings]
    return {
        "setting": {**asdict(setting), "B": setting.batch, "flops": setting.flops},
        "steps": rows,
    }


def simulated(step: Step, setting: Setting) -> dict[str, int]:
    """Return how many elements the simulator's algorithm reads and writes over all heads, with M
    large enough for its tiles.
    """
    heads = setting.batch * setting.H
    options: dict[str, Any] = {"causal": True} if setting.causal else {}
    traffic = count(
        step.rung.model,
        N=setting.N,
        d=setting.d,
        M=10**9,
        blocks=step.blocks,
        heads=heads,
        **options,
    ).hbm
    state = traffic.by_array.get("R")  # dropout's seed, which the kernel gets with the call
    unwritten = state.writes if state is not None and step.rung.tensor_cores else 0
    return {"reads": traffic.reads, "writes": traffic.writes - unwritten}


def main() -> None:
    """Run every step once, for ncu."""
    N, d, causal, H = map(int, sys.argv[1:5])
    setting = Setting(N, d, bool(causal), H=H, distribution=sys.argv[5])
    run_marked(step.call(setting) for step in steps(setting))


if __name__ == "__main__":
    main()
