"""What no schedule can beat, beside the best that flashsim knows: `prove`.

proof = flashsim.prove(N=4096, d=64, M=25_600)
proof.bound.accesses, proof.best.accesses, proof.ratio
proof.certificate()   # for flashsim.theory.bounds.certificate, which checks it on its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.analysis.tune import bound_of, tune
from flashsim.attention.arguments import check_count, check_direction, shown
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
    """A schedule that flashsim has run on shapes, M enforced: what it is, its blocks, and the
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
        at = self.bound
        sizes = f"{self.direction}, N_q = {at.N_q:,}, N_k = {at.N_k:,}, d = {at.d:,}, M = {at.M:,}"
        best = (
            ""
            if self.best is None
            else f"; {self._best} moves {self.best.accesses:,}, {self.ratio:.3f} × that"
        )
        return (
            f"Proof({sizes}: no schedule moves less than {at.accesses:,} elements, "
            f"{self.how}{best})"
        )

    def _repr_html_(self) -> str:
        at = self.bound
        caption = (
            f"No schedule moves less: {self.direction}, N_q = {at.N_q:,}, N_k = {at.N_k:,}, d = "
            f"{at.d:,}, M = {at.M:,}"
        )
        rows: list[tuple[str, int, str]] = [
            ("lower bound", at.accesses, "1"),
            ("compulsory", at.compulsory, f"{at.compulsory / at.accesses:.3f}"),
        ]
        if (self.rows or 0) > at.accesses:
            rows.append(
                (
                    "lower bound of the row game",
                    self.rows or 0,
                    f"{(self.rows or 0) / at.accesses:.3f}",
                )
            )
        if self.best is not None:
            rows.append((self._best, self.best.accesses, f"{self.ratio:.3f}"))
        best, name = (None, "") if self.best is None else (self.best.accesses, self._best)
        shown = html_table(
            caption, ("", "elements", "× the bound"), rows, [f"It is proved {self.how}."]
        )
        return shown + picture(self.bound, best, name)

    @property
    def _best(self) -> str:
        assert self.best is not None
        return f"{self.best.algorithm} in blocks of {self.best.B_r:,} × {self.best.B_c:,}"

    @property
    def how(self) -> str:
        """What proves the bound, in words."""
        at = self.bound
        if at.accesses == at.compulsory:
            return "as every input that matters is read once and every output written once"
        kind = "the combined bound of flashsim.theory.bounds.forward"
        if isinstance(at, BackwardBound):
            kind = "the theorem of flashsim.theory.bounds.backward"
        elif not at.a:
            kind = "the theorem of flashsim.theory.bounds.forward"
        return f"by {kind} with {at.n:,} phases that touch Y = {at.Y:,} elements each"

    @property
    def rows(self) -> int | None:
        """What no backward schedule of the row game moves less than
        (flashsim.theory.bounds.rows); None forward.
        """
        at = self.bound
        if not isinstance(at, BackwardBound):
            return None
        sizes: dict[str, int] = {
            name: getattr(at, name) for name in ("N_q", "N_k", "d", "d_v", "M", "pairs")
        }
        return lower_bound_rows(**sizes, queries=self.queries, keys=self.keys)

    @property
    def schedules(self) -> str:
        """The class of schedules, in words."""
        return CLASS if self.direction == "forward" else BACKWARD_CLASS

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.theory.bounds.certificate.check` needs."""
        at = asdict(self.bound)
        del at["compulsory"]
        schedule = None if self.best is None else asdict(self.best)
        more = {
            "queries": self.queries,
            "keys": self.keys,
            "allowed": self.allowed,
            "bound": self.bound.accesses,
        }
        if self.rows is not None:
            more["rows"] = self.rows
        kind = {"kind": "lower bound", "direction": self.direction, "class": self.schedules}
        return {**kind, **at, **more, "schedule": schedule}

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
    asked = Problem.from_arguments(
        problem, N=N, d=d, M=M, N_q=N_q, N_k=N_k, d_v=d_v, dtype=dtype, causal=causal, mask=mask
    )
    return Proof(
        *bound_of(asked.mask, asked.shape, asked.M, direction), _best(asked, direction), direction
    )


def recount(certificate: Mapping[str, Any]) -> str:
    """Count the schedule of a certificate that was checked, and return what came of it in a
    sentence; "" where it has none.

    One whose mask the certificate does not hold cannot be counted: the sentence says so. Raises
    ValueError for one that does not move what it is said to, for one that beats the bound, and for
    a certificate that names another class of schedules.
    """
    direction = certificate["direction"]
    allowed = certificate["allowed"]
    if certificate["class"] != (CLASS if direction == "forward" else BACKWARD_CLASS):
        raise ValueError(f"its class of schedules is not the one whose {direction} bound is proved")
    if certificate["schedule"] is None:
        return ""
    sizes = {name: certificate[name] for name in ("N_q", "N_k", "d", "d_v", "M")}
    try:
        if not isinstance(certificate["schedule"], dict) or {*certificate["schedule"]} != {
            *Schedule.__annotations__
        }:
            fields = "its algorithm, B_r, B_c and accesses"
            raise ValueError(f"it is {shown(certificate['schedule'])}; expected {fields}")
        said = Schedule(**certificate["schedule"])
        B_r, B_c, accesses = (
            check_count(name, getattr(said, name)) for name in ("B_r", "B_c", "accesses")
        )
        record = (FORWARD if direction == "forward" else BACKWARD).get(said.algorithm)
        if record is None:
            raise ValueError(f"algorithm is {said.algorithm!r}; expected one of flashsim's")
        what = f"{said.algorithm} with blocks {B_r} × {B_c}"
        moved = accesses
        if allowed != "given":
            causal = allowed == "causal"
            name = causal and record.skips_as  # as `tune` counts it
            how: dict[str, Any] = {"causal": causal, **({"block_mask": "live"} if name else {})}
            moved = count(
                name or said.algorithm, **sizes, direction=direction, blocks=(B_r, B_c), **how
            ).hbm.accesses
    except (SramOverflow, TypeError, ValueError) as error:
        raise ValueError(f"its schedule cannot be counted: {error}") from None
    if moved != accesses:
        raise ValueError(
            f"its schedule, {what}, counted again, moves {moved:,}; it is said to move {accesses:,}"
        )
    if accesses < certificate["bound"]:
        raise ValueError(
            f"its schedule, {what}, is said to move {accesses:,}, less than the bound, "
            f"{certificate['bound']:,}"
        )
    if allowed == "given":
        return (
            f"{what}, said to move {accesses:,}, is not counted again: the certificate does not "
            "hold its mask."
        )
    return f"{what}, counted again, moves {moved:,}."


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
    found = []
    for name in FORWARD if direction == "forward" else BACKWARD:
        try:
            tally = count(name, one_head, direction=direction, sizing="fit")
        except (SramOverflow, ValueError):
            continue
        found.append(Schedule(name, tally.blocks.B_r, tally.blocks.B_c, tally.hbm.accesses))
    return min(found, key=lambda schedule: schedule.accesses, default=None)
