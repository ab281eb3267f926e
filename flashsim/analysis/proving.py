"""The lower bound on the accesses of any schedule, beside the best schedule that flashsim knows:
`prove`.

proof = flashsim.prove(N=4096, d=64, M=25_600)
proof.bound.accesses, proof.best.accesses, proof.ratio
proof.certificate()   # for flashsim.theory.bounds.certificate, which checks it on its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.analysis.tune import bound_of, tune
from flashsim.attention.arguments import check_count, check_direction, short_repr
from flashsim.attention.problem import Problem
from flashsim.drawing.proof import picture
from flashsim.memory.errors import SramOverflow
from flashsim.simulate.api import count
from flashsim.support.exporting import Exported, html_table
from flashsim.support.sizes import Size
from flashsim.theory.bounds.backward import BackwardBound
from flashsim.theory.bounds.forward import LowerBound
from flashsim.theory.bounds.rows import lower_bound_rows

CLASS = (
    "Schedules that compute S = QKᵀ and O = PV product by product, in any order and in any tiles, "
    "with any recomputation, "
    "partial sums kept, spilled or split, and statistics of the softmax for free. Left out is "
    "algebra that mixes entries, "
    "such as Strassen's."
)
BACKWARD_CLASS = (
    "Schedules that compute S = QKᵀ, dP = dO Vᵀ, dV = Pᵀ dO, dK = dSᵀ Q and dQ = dS K product by "
    "product, in any order and in "
    "any tiles, with any recomputation, partial sums kept, spilled or split, P given or not, and "
    "statistics of rows for free. "
    "Left out are algebra that mixes entries, such as Strassen's, and products of K or Q with a "
    "part of dP's sum."
)


@dataclass(frozen=True)
class Schedule:
    """A schedule that flashsim has run on shapes, M enforced: its algorithm, its blocks, and the
    elements that it moves.
    """

    algorithm: str
    B_r: int
    B_c: int
    accesses: int


@dataclass(frozen=True, repr=False)
class Proof(Exported):
    """A lower bound, and the best schedule known here; None where none fits M.

    allowed   "all", "causal", or "given": which pairs of query and key there are
    queries, keys  how many have any
    direction  "forward" or "backward"
    """

    bound: LowerBound | BackwardBound
    allowed: str
    queries: int
    keys: int
    best: Schedule | None
    direction: str = "forward"

    @property
    def ratio(self) -> float | None:
        """The schedule's accesses, divided by the bound."""
        return None if self.best is None else self.best.accesses / self.bound.accesses

    def __repr__(self) -> str:
        best = ""
        if self.best is not None:
            best = f"; {self._best} moves {self.best.accesses:,}, {self.ratio:.3f} × that"
        return (
            f"Proof({self._problem}: no schedule moves less than {self.bound.accesses:,} elements, "
            f"{self.how}{best})"
        )

    def _repr_html_(self) -> str:
        bound = self.bound.accesses
        numbers = {"lower bound": bound, "compulsory": self.bound.compulsory}
        if self.rows is not None and self.rows > bound:
            numbers["lower bound of the row game"] = self.rows
        best = None
        name = ""
        if self.best is not None:
            best = self.best.accesses
            name = self._best
            numbers[name] = best
        rows = []
        for text, accesses in numbers.items():
            ratio = "1" if text == "lower bound" else f"{accesses / bound:.3f}"
            rows.append((text, accesses, ratio))
        caption = f"No schedule moves less: {self._problem}"
        notes = [f"It is proved {self.how}."]
        table = html_table(caption, ("", "elements", "× the bound"), rows, notes)
        return table + picture(self.bound, best, name)

    @property
    def _problem(self) -> str:
        bound = self.bound
        lengths = f"N_q = {bound.N_q:,}, N_k = {bound.N_k:,}, d = {bound.d:,}"
        return f"{self.direction}, {lengths}, M = {bound.M:,}"

    @property
    def _best(self) -> str:
        assert self.best is not None
        return f"{self.best.algorithm} in blocks of {self.best.B_r:,} × {self.best.B_c:,}"

    @property
    def how(self) -> str:
        """What proves the bound, in words."""
        bound = self.bound
        if bound.accesses == bound.compulsory:
            return "as every input that matters is read once and every output written once"
        kind = "the combined bound of flashsim.theory.bounds.forward"
        if isinstance(bound, BackwardBound):
            kind = "the theorem of flashsim.theory.bounds.backward"
        elif not bound.a:
            kind = "the theorem of flashsim.theory.bounds.forward"
        return f"by {kind} with {bound.n:,} phases that touch Y = {bound.Y:,} elements each"

    @property
    def rows(self) -> int | None:
        """The lower bound of backward schedules of the row game (flashsim.theory.bounds.rows);
        None forward.
        """
        bound = self.bound
        if not isinstance(bound, BackwardBound):
            return None
        return lower_bound_rows(
            N_q=bound.N_q,
            N_k=bound.N_k,
            d=bound.d,
            d_v=bound.d_v,
            M=bound.M,
            pairs=bound.pairs,
            queries=self.queries,
            keys=self.keys,
        )

    @property
    def schedules(self) -> str:
        """The class of schedules, in words."""
        return CLASS if self.direction == "forward" else BACKWARD_CLASS

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.theory.bounds.certificate.check` needs."""
        numbers = asdict(self.bound)
        del numbers["compulsory"]
        certificate = {
            "kind": "lower bound",
            "direction": self.direction,
            "class": self.schedules,
            **numbers,
            "queries": self.queries,
            "keys": self.keys,
            "allowed": self.allowed,
            "bound": self.bound.accesses,
        }
        if self.rows is not None:
            certificate["rows"] = self.rows
        certificate["schedule"] = None if self.best is None else asdict(self.best)
        return certificate

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate: what `flashsim prove --json` writes, and `flashsim prove
        --check` reads.
        """
        return self.certificate()


def prove(
    problem: Problem | None = None,
    *,
    N: int | None = None,
    d: int | None = None,
    M: Size | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    dtype: Any = "float32",
    direction: str = "forward",
    causal: bool = False,
    mask: Any = None,
) -> Proof:
    """Return the fewest HBM accesses that any schedule can make for one head's pass, and the best
    schedule known here.

    Arguments as for `flashsim.count`, or a `flashsim.Problem`; `mask` is a boolean array (N_q,
    N_k), True = attend, or a mask object. Raises ValueError for arguments that make no sense.
    """
    direction = check_direction(direction)
    problem = Problem.from_arguments(
        problem, N=N, d=d, M=M, N_q=N_q, N_k=N_k, d_v=d_v, dtype=dtype, causal=causal, mask=mask
    )
    bound, allowed, queries, keys = bound_of(problem.mask, problem.shape, problem.M, direction)
    return Proof(bound, allowed, queries, keys, _best(problem, direction), direction)


def recount(certificate: Mapping[str, Any]) -> str:
    """Count the schedule of a certificate that was checked, and return the result in a sentence; ""
    where it has none.

    Where the certificate does not hold the mask, the schedule cannot be counted: the sentence says
    so. Raises ValueError if the count is another one than the certificate's, if it is below the
    bound, and if the certificate names another class of schedules.
    """
    direction = certificate["direction"]
    if certificate["class"] != (CLASS if direction == "forward" else BACKWARD_CLASS):
        raise ValueError(f"its class of schedules is not the one whose {direction} bound is proved")
    if certificate["schedule"] is None:
        return ""
    is_mask_known = certificate["allowed"] != "given"
    try:
        schedule = _schedule_of(certificate["schedule"])
        record = (FORWARD if direction == "forward" else BACKWARD).get(schedule.algorithm)
        if record is None:
            raise ValueError(f"algorithm is {schedule.algorithm!r}; expected one of flashsim's")
        accesses = schedule.accesses
        if is_mask_known:
            accesses = _accesses(certificate, schedule, record)
    except (SramOverflow, TypeError, ValueError) as error:
        raise ValueError(f"its schedule cannot be counted: {error}") from None
    name = f"{schedule.algorithm} with blocks {schedule.B_r} × {schedule.B_c}"
    if accesses != schedule.accesses:
        raise ValueError(
            f"its schedule, {name}, counted again, moves {accesses:,}; it is said to move "
            f"{schedule.accesses:,}"
        )
    if accesses < certificate["bound"]:
        raise ValueError(
            f"its schedule, {name}, is said to move {accesses:,}, less than the bound, "
            f"{certificate['bound']:,}"
        )
    if is_mask_known:
        return f"{name}, counted again, moves {accesses:,}."
    return (
        f"{name}, said to move {accesses:,}, is not counted again: the certificate does not hold "
        "its mask."
    )


def _schedule_of(entry: Any) -> Schedule:
    """Return the schedule of a certificate. Raises ValueError for one that is not complete."""
    if not isinstance(entry, dict) or entry.keys() != Schedule.__annotations__.keys():
        fields = "its algorithm, B_r, B_c and accesses"
        raise ValueError(f"it is {short_repr(entry)}; expected {fields}")
    counts = {name: check_count(name, entry[name]) for name in ("B_r", "B_c", "accesses")}
    return Schedule(entry["algorithm"], **counts)


def _accesses(certificate: Mapping[str, Any], schedule: Schedule, record: Algorithm) -> int:
    """Count a certificate's schedule, whose mask is causal or none, as `tune` does: with one,
    Algorithm 2 skips tiles as Algorithm 5 does.
    """
    options: dict[str, Any] = {"causal": certificate["allowed"] == "causal"}
    name = schedule.algorithm
    if options["causal"] and record.skips_as:
        name = record.skips_as
        options["block_mask"] = "live"
    for length in ("N_q", "N_k", "d", "d_v", "M"):
        options[length] = certificate[length]
    blocks = (schedule.B_r, schedule.B_c)
    result = count(name, direction=certificate["direction"], blocks=blocks, **options)
    return result.hbm.accesses


def _best(problem: Problem, direction: str) -> Schedule | None:
    """Return the schedule of fewest accesses: as `tune` finds it, or, under a mask that is in
    HBM, of those that fill M.
    """
    one_head = problem.one_head()
    if not problem.in_hbm:
        try:
            best = tune(one_head, direction=direction).best
        except ValueError:  # nothing fits
            return None
        return Schedule(best.algorithm, best.blocks.B_r, best.blocks.B_c, best.accesses)
    schedules = []
    for name in FORWARD if direction == "forward" else BACKWARD:
        try:
            result = count(name, one_head, direction=direction, sizing="fit")
        except (SramOverflow, ValueError):
            continue
        blocks = result.blocks
        schedules.append(Schedule(name, blocks.B_r, blocks.B_c, result.hbm.accesses))
    return min(schedules, key=lambda schedule: schedule.accesses, default=None)
