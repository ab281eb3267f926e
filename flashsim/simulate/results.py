"""What a pass returns: `Run`, `Gradients`, `Tally`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.algorithms.blocks import who_chose
from flashsim.algorithms.record import Algorithm
from flashsim.attention.problem import Problem
from flashsim.machine.traffic import Flops, Occupancy, Traffic
from flashsim.problem.arguments import shown
from flashsim.problem.inputs import HEADS_FIRST, Array, Inputs
from flashsim.problem.shapes import Blocks
from flashsim.simulate.attention import AttentionPlan
from flashsim.support.exporting import ByArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Costs(ByArray):
    """What a tally and a finished pass have in common: how they show, plot, and hand on, what they moved."""

    _arrays: ClassVar[Sequence[str]] = ()
    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Any

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the accesses by array as one bar, on `ax` or on a new figure, which a notebook shows; return the axes."""
        from flashsim.drawing.bars import plot_run

        return plot_run({self.algorithm: self}, ax)

    def to_dict(self) -> dict[str, Any]:
        """Return what was asked and what it cost as plain data; the arrays are not in it."""
        return {
            "algorithm": self.algorithm,
            **self._asked(),
            "hbm": self.hbm.to_dict(),
            "sram": self.sram.to_dict(),
            "blocks": dict(self.blocks) if isinstance(self.blocks, Mapping) else self.blocks.to_dict(),
            **({"sizing": self.sizing} if hasattr(self, "sizing") else {}),
            **({"flops": asdict(flops)} if (flops := getattr(self, "flops", None)) is not None else {}),
        }

    def _asked(self) -> dict[str, Any]:
        return {}

    def _repr_html_(self) -> str:
        return self.hbm.table(f"{self.algorithm}: HBM accesses, in elements", [self._costs()])

    def _costs(self) -> str:
        if isinstance(self.blocks, Mapping):
            return f"{self.blocks}, {self.sram}"
        who = getattr(self, "sizing", "")
        return f"blocks {self.blocks.B_r} × {self.blocks.B_c}{f' ({who})' if who else ''}, {self.sram}"

    def __repr__(self) -> str:
        arrays = {name: getattr(self, name) for name in self._arrays}
        results = (f"{name} {array.shape} {array.dtype}" for name, array in arrays.items())
        said = ", ".join([*results, f"{self.hbm.accesses:,} HBM accesses", self._costs()])
        return f"{type(self).__name__}({self.algorithm!r}: {said})"


@dataclass(frozen=True, repr=False)
class Tally(Costs):
    """What a run costs. `hbm`: accesses by array. `sram`: peak and capacity. `blocks`: B_r, B_c, T_r, T_c. `flops`.

    sizing  who chose the blocks: "fit", "paper", "given", or what a policy is called
    """

    blocks: Blocks
    flops: Flops
    sizing: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Finished(Costs):
    """A finished pass: what it cost, as in `Tally`.

    plan   what was asked, and how it was run: with the algorithm's record, `plan.program`
    """

    blocks: Blocks
    plan: AttentionPlan

    @property
    def sizing(self) -> str:
        """Who chose the blocks: "fit", "paper", "given", or what a policy is called."""
        return who_chose(self.plan.sizing)

    def _asked(self) -> dict[str, Any]:
        plan, problem, plain = self.plan, self.plan.problem, bool | int | float | str | None
        return {
            "direction": plan.program.direction, **asdict(problem.shape), "leading": list(problem.leading),
            "kv_heads": problem.heads // problem.group, "dtype": problem.dtype.name, "scale": problem.scale,
            "mask": repr(plan.mask), "dropout_p": problem.dropout_p, "seed": problem.seed, "gqa": problem.gqa,
            "options": {name: v if isinstance(v, plain) else shown(v) for name, v in plan.options.items()},
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(Finished):
    """A finished forward pass: the result, and what it cost.

    O     (..., H_q, N_q, d_v), in the inputs' dtype; with layout="BNHD", (..., N_q, H_q, d_v). All else is heads first
    l, m  (..., H_q, N_q), softmax statistics of the scaled scores in the chip's dtype; None where the algorithm keeps none
    lse   (..., H_q, N_q), the scaled scores' log-sum-exp, m + log ℓ; where an algorithm returns neither it nor ℓ and m, it is
          made of what the run left in HBM, uncounted. −∞ for a row without a key. None for a function that returns O alone
    hbm, sram, blocks, plan  as in `Finished`
    layout  of O, as in `forward`
    problem, inputs, saved  what was asked; Q, K, V and what else the backward pass needs: copies, independent of the caller's
    """

    _arrays = ("O",)
    O: Array
    l: Array | None
    m: Array | None
    lse: Array | None
    saved: Mapping[str, Sequence[Array]]
    layout: str = HEADS_FIRST

    @property
    def problem(self) -> Problem:
        """What was asked: for `flashsim.count`, `flashsim.tune.tune`, `flashsim.prove`, too."""
        return self.plan.problem

    @property
    def inputs(self) -> Inputs:
        """Q, K, V."""
        assert self.plan.given is not None
        return self.plan.given

    @property
    def scale(self) -> float:
        """The softmax scale τ."""
        return self.plan.problem.scale

    @property
    def gqa(self) -> str:
        """The schedule of query heads that share a KV head, as in `forward`."""
        return self.plan.problem.gqa


@dataclass(frozen=True, kw_only=True, repr=False)
class Gradients(Finished):
    """A finished backward pass: dQ, dK, dV, shaped and typed as Q, K, V, and what it cost, as in `Finished`.

    dB is the gradient of a `flashsim.Bias`, of the shape of its array, in the type that was computed in; None without one.
    dsink is that of a `flashsim.Sink`, (..., H_q): where heads share a logit, a part of its gradient each.
    """

    _arrays = ("dQ", "dK", "dV")
    dQ: Array
    dK: Array
    dV: Array
    dB: Array | None = None
    dsink: Array | None = None


def check_run(algorithm: Algorithm, run: Any) -> Run:
    """Return the run whose backward pass is asked for. Raises ValueError for anything else, and for another algorithm's."""
    if not isinstance(run, Run):
        wanted = f"what flashsim.forward({algorithm.forward_pass!r}, …) returned"
        raise ValueError(f"run is a {type(run).__name__}; expected {wanted}")
    if run.algorithm != algorithm.forward_pass:
        own = f"its backward pass is backward({run.algorithm!r}, …), if any"
        if run.algorithm in FORWARD.keys() - BACKWARD.keys():
            own = f"it has no backward pass; run {algorithm.forward_pass!r} forward, too"
        elif run.algorithm not in FORWARD:
            own = f"expected the run of {algorithm.forward_pass!r}, or a backward pass, an Algorithm, of={run.algorithm!r}"
        raise ValueError(f"run was made by {run.algorithm!r}; {own}")
    return run
