"""What a pass returns: `Run`, `Gradients`, `Tally`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flashsim.inputs import Array, Inputs
from flashsim.records import Blocks, Flops, Occupancy, Traffic
from flashsim.run.task import AttentionVariant, Plan

if TYPE_CHECKING:
    from flashsim.tracing import Trace


@dataclass(frozen=True)
class Tally:
    """What a run costs. `hbm`: accesses by array. `sram`: peak and capacity. `blocks`: B_r, B_c, T_r, T_c. `flops`."""

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    flops: Flops


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished pass: what it cost, as in `Tally`.

    plan   what was asked, and how it was run: with the algorithm's record, `plan.task.algorithm`
    trace  the first head's events, if `trace=True` asked for them; else None. In Jupyter, such a run shows as their player
    """

    algorithm: str
    hbm: Traffic = field(repr=False)
    sram: Occupancy
    blocks: Blocks
    plan: Plan = field(repr=False)
    trace: Trace | None = field(default=None, repr=False)

    def _repr_html_(self) -> str | None:
        """Return the player of the trace in a sandboxed frame, as Jupyter shows it; None without a trace."""
        return None if self.trace is None else self.trace._repr_html_()


@dataclass(frozen=True, kw_only=True)
class Run(Finished):
    """A finished forward pass: the result, and what it cost.

    O     (..., H_q, N_q, d_v), in the inputs' dtype
    l, m  (..., H_q, N_q), softmax statistics of the scaled scores in the chip's dtype; None where the algorithm keeps none
    lse   (..., H_q, N_q), the scaled scores' log-sum-exp, m + log ℓ; where an algorithm returns neither it nor ℓ and m, it is
          made of what the run left in HBM, uncounted. −∞ for a row without a key. None for a function that returns O alone
    hbm, sram, blocks, plan, trace  as in `Finished`
    gqa   the schedule of query heads that share a KV head, as in `forward`
    inputs, variant, saved  what the backward pass needs: copies, independent of the caller's arrays
    """

    O: Array = field(repr=False)
    l: Array | None = field(repr=False)
    m: Array | None = field(repr=False)
    lse: Array | None = field(repr=False)
    scale: float
    gqa: str
    inputs: Inputs = field(repr=False)
    variant: AttentionVariant = field(repr=False)
    saved: Mapping[str, Sequence[Array]] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Gradients(Finished):
    """A finished backward pass: dQ, dK, dV, shaped and typed as Q, K, V, and what it cost, as in `Finished`."""

    dQ: Array = field(repr=False)
    dK: Array = field(repr=False)
    dV: Array = field(repr=False)
