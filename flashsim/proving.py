"""What no schedule can beat, beside the best that flashsim knows: `prove`.

proof = flashsim.prove(N=4096, d=64, M=25_600)
proof.bound.accesses, proof.best.accesses, proof.ratio
proof.certificate()   # for flashsim.certificate, which checks it on its own
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flashsim.algorithms import FORWARD
from flashsim.allowed import allowed_pairs
from flashsim.api import count
from flashsim.checking import check_shape
from flashsim.inputs import check_M, float_dtype
from flashsim.masks import All, Mask, as_mask
from flashsim.memory import SramOverflow
from flashsim.records import Shape
from flashsim.sizes import Size
from flashsim.theory.lower import LowerBound, lower_bound
from flashsim.tune import tune

CLASS = (
    "Schedules that compute S = QKᵀ and O = PV product by product, in any order and in any tiles, with any recomputation, "
    "partial sums kept, spilled or split, and statistics of the softmax for free. Left out is algebra that mixes entries, "
    "such as Strassen's."
)


@dataclass(frozen=True)
class Schedule:
    """A schedule that flashsim has run on shapes, M enforced: what it is, its blocks, and the elements that it moves."""

    algorithm: str
    B_r: int
    B_c: int
    accesses: int


@dataclass(frozen=True)
class Proof:
    """A lower bound, and the best schedule known here; None where none fits M.

    allowed   "all", "causal", or "given": which pairs of query and key there are
    queries, keys  how many have any
    """

    bound: LowerBound
    allowed: str
    queries: int
    keys: int
    best: Schedule | None

    @property
    def ratio(self) -> float | None:
        """The schedule's accesses, divided by the bound."""
        return None if self.best is None else self.best.accesses / self.bound.accesses

    @property
    def how(self) -> str:
        """What proves the bound, in words."""
        at = self.bound
        if at.accesses == at.compulsory:
            return "as every input that matters is read once and every output written once"
        kind = "the combined bound" if at.a else "the theorem"
        return f"by {kind} of flashsim.theory.lower with {at.n:,} phases that touch Y = {at.Y:,} elements each"

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.certificate.check` needs, as plain data."""
        at = asdict(self.bound)
        del at["compulsory"]
        schedule = None if self.best is None else asdict(self.best)
        more = {"queries": self.queries, "keys": self.keys, "allowed": self.allowed, "bound": self.bound.accesses}
        return {"kind": "lower bound", "class": CLASS, **at, **more, "schedule": schedule}


def prove(
    *,
    N: int | None = None,
    d: int,
    M: Size | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    dtype: Any = "float32",
    causal: bool = False,
    mask: Any = None,
) -> Proof:
    """Return the fewest HBM accesses that any schedule can make for one head's forward pass, and the best schedule known here.

    Arguments as for `flashsim.count`; `mask` is a boolean array (N_q, N_k), True = attend, or a mask object. Raises ValueError
    for arguments that make no sense.
    """
    shape = check_shape(N, d, N_q, N_k, d_v)
    stored = float_dtype(dtype)
    M = check_M(M, stored.itemsize)
    rule = as_mask(mask, causal, shape, ())
    allowed, pairs, queries, keys = allowed_pairs(rule, shape)
    bound = lower_bound(
        N_q=shape.N_q, N_k=shape.N_k, d=shape.d, d_v=shape.d_v, M=M, pairs=pairs, queries=queries, keys=keys
    )  # fmt: skip
    return Proof(bound, allowed, queries, keys, _best(rule, shape, M, stored.name))


def _best(rule: Mask, shape: Shape, M: int, dtype: str) -> Schedule | None:
    """Return the schedule of fewest accesses: as `tune` finds it, or, under a mask that is in HBM, of those that fill M."""
    sizes: dict[str, Any] = {**asdict(shape), "M": M, "dtype": dtype}
    if not (rule.dense(()) or rule.tree is not None or rule.bias is not None):
        try:
            best = tune(**sizes, mask=None if isinstance(rule, All) else rule).best
        except ValueError:  # nothing fits
            return None
        return Schedule(best.algorithm, best.blocks.B_r, best.blocks.B_c, best.accesses)
    found = []
    for name in FORWARD:
        try:
            tally = count(name, **sizes, sizing="fit", mask=rule)
        except (SramOverflow, ValueError):
            continue
        found.append(Schedule(name, tally.blocks.B_r, tally.blocks.B_c, tally.hbm.accesses))
    return min(found, key=lambda schedule: schedule.accesses, default=None)
