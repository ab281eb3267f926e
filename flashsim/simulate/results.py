"""`Result`: what a plan's run moved, and what it computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsim.algorithms.blocks import who_chose
from flashsim.attention.inputs import HEADS_FIRST
from flashsim.memory.traffic import Flops, Occupancy, Traffic
from flashsim.support.exporting import ByArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Result(ByArray):
    """What a plan's run moved, and what it computed: attention, a program on matrices, a ragged
    batch.

    plan    what was run: `plan.program`, its problem, its blocks, its operands
    hbm     accesses by array, of all launches together
    sram    the peak on chip, and M
    operations  as a count finds them: `flops`; None in a run on numbers
    arrays  what was computed, by name; a count has none. Each is an attribute, too: `run.O`
    layout  of O and the gradients, as in `flashsim.forward`
    saved   matrices, by name, one for each launch, that attention's backward pass needs besides

    Attention, forward, has O (..., H_q, N_q, d_v), in the inputs' type; `l` and `m` (..., H_q,
    N_q), the softmax statistics of the scaled scores, in the type that is computed in, or None
    where the algorithm keeps none; and `lse` (..., H_q, N_q), their log-sum-exp, m + log ℓ, which
    is −∞ for a row without a key. Where an algorithm returns neither `lse` nor ℓ and m, it is made
    of what the run left in HBM, uncounted; for a function that returns O alone it is None.

    Attention, backward, has dQ, dK, dV, shaped and typed as Q, K, V; dB, the gradient of a
    `flashsim.Bias`, as its array, in the type that is computed in; and dsink (..., H_q), that of a
    `flashsim.Sink`: where heads share a logit, each has a part of its gradient. dB and dsink are
    None where there is no bias, or no sink.

    Of a ragged batch, each array is a list with an array for each sequence.

    Two results are equal if they have counted the same, whatever they computed.
    """

    plan: Any
    hbm: Traffic
    sram: Occupancy
    operations: Flops | None = None
    arrays: Mapping[str, Any] = field(default_factory=dict)
    layout: str = HEADS_FIRST
    saved: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        arrays = self.__dict__.get("arrays", {})
        if name in arrays:
            return arrays[name]
        if name == "flops":
            raise AttributeError("flops are counted on shapes alone: flashsim.count(…).flops")
        known = f"it computed {', '.join(arrays)}" if arrays else "it only counted"
        raise AttributeError(f"the result has no {name!r}; {known}")

    @property
    def flops(self) -> Flops:
        """Operations. Raises AttributeError for a run on numbers, which does not count them."""
        if self.operations is None:
            raise AttributeError  # __getattr__ says it
        return self.operations

    @property
    def algorithm(self) -> str:
        """The program's name."""
        name: str = self.plan.program.name
        return name

    @property
    def blocks(self) -> Any:
        """The block sizes, by name."""
        return self.plan.blocks

    @property
    def sizing(self) -> str:
        """Who chose the blocks: "fit", "paper", "given", or what a policy is called; "" where no
        policy did.
        """
        policy = getattr(self.plan, "sizing", None)
        return "" if policy is None else who_chose(policy)

    @property
    def problem(self) -> Any:
        """What was asked, without numbers: for `flashsim.count`, `flashsim.tune.tune`,
        `flashsim.prove`, too.
        """
        return self.plan.problem

    @property
    def equals_theory(self) -> bool | None:
        """Whether the counts are those of the closed form, `plan.exact()`; None where there is
        none.

        Raises ValueError for a closed form of the user's own that fails.
        """
        from flashsim.theory.closed_form import NoClosedForm

        try:
            exact = self.plan.exact()
        except NoClosedForm:
            return None
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            raise ValueError(
                f"the closed form of {self.algorithm!r} cannot be evaluated: "
                f"{type(error).__name__}: {error}{notes}"
            ) from error
        if (self.hbm, self.sram, self.blocks) != (exact.hbm, exact.sram, exact.blocks):
            return False
        if exact.matmul is None or self.operations is None:
            return True
        return bool(self.operations.matmul == exact.matmul)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self._counted() == other._counted()

    def __hash__(self) -> int:
        return hash((self.algorithm, self.hbm.accesses))

    def _counted(self) -> tuple[Any, ...]:
        return self.algorithm, self.blocks, self.hbm, self.sram, self.operations

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the accesses by array as one bar, on `ax` or on a new figure, which a notebook
        shows; return the axes.
        """
        from flashsim.drawing.bars import plot_run

        return plot_run({self.algorithm: self}, ax)

    def to_dict(self) -> dict[str, Any]:
        """Return what was asked and what it cost as plain data; the arrays are not in it."""
        data = {
            "algorithm": self.algorithm,
            **self.plan.described(),
            "hbm": self.hbm.to_dict(),
            "sram": self.sram.to_dict(),
            "blocks": dict(self.blocks)
            if isinstance(self.blocks, Mapping)
            else self.blocks.to_dict(),
        }
        if self.sizing:
            data["sizing"] = self.sizing
        if self.operations is not None:
            data["flops"] = asdict(self.operations)
        return data

    def _repr_html_(self) -> str:
        return self.hbm.table(
            f"{self.algorithm}: HBM accesses, in elements", [self._costs() + self._verdict()]
        )

    def _verdict(self) -> str:
        """Say that the closed form of the user's own is wrong; "" where it is right, or there is
        none.
        """
        if not self.plan.is_user_defined:
            return ""
        try:
            equals_theory = self.equals_theory
        except ValueError as error:
            return f"; {error}"
        return "; NOT EQUAL TO THE CLOSED FORM" if equals_theory is False else ""

    def _costs(self) -> str:
        if isinstance(self.blocks, Mapping):
            return f"{self.blocks}, {self.sram}"
        chosen_by = f" ({self.sizing})" if self.sizing else ""
        return f"blocks {self.blocks.B_r} × {self.blocks.B_c}{chosen_by}, {self.sram}"

    def __repr__(self) -> str:
        arrays = []
        for name, array in self.arrays.items():
            if isinstance(array, np.ndarray) and name in self.plan.main_results():
                arrays.append(f"{name} {array.shape} {array.dtype}")
        text = ", ".join([*arrays, f"{self.hbm.accesses:,} HBM accesses", self._costs()])
        text += self._verdict()
        direction = ", backward" if self.plan.program.direction == "backward" else ""
        return f"Result({self.algorithm!r}{direction}: {text})"
