"""`Problem`: attention with heads, a mask and dropout, on a chip of M elements."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from inspect import signature
from math import prod
from typing import Any

from flashsim.attention.arguments import (
    check_gqa,
    check_heads,
    check_p,
    check_scale,
    check_seed,
    check_shape,
    short_repr,
)
from flashsim.attention.base import BaseProblem
from flashsim.attention.masks.rules import All, Head, Mask, as_mask
from flashsim.attention.shapes import Shape
from flashsim.support.records import set_fields
from flashsim.support.sizes import Size

EVERYTHING = All()


@dataclass(frozen=True, kw_only=True)
class Problem(BaseProblem):
    """dropout(softmax(MASK(scale · QKᵀ))) V for all heads, and the memory to compute it in:
    whatever the algorithm.

    `Problem.of` makes one of lengths; a run of arrays has its own, `run.problem`. These take it:
    `flashsim.count("flash", problem)`, `flashsim.theory.exact("flash", problem)`,
    `flashsim.tune.tune(problem)`, `flashsim.prove(problem)`, `flashsim.optimum(problem)`,
    `flashsim.sweep(["flash", "q_outer"], points=problem)`.

    shape    one head's N_q, N_k, d, d_v
    leading  the axes of query heads, such as (batch, H_q); () for one head
    group    how many query heads share a KV head
    dtype    of Q, K, V, O
    M        SRAM's size in elements
    scale    None: 1/√d
    mask     a mask object (`flashsim.Mask`)
    gqa      how query heads that share a KV head run, as in `flashsim.forward`

    Raises ValueError for a field that makes no sense.
    """

    shape: Shape
    leading: Head = ()
    group: int = 1
    scale: float
    mask: Mask = EVERYTHING
    dropout_p: float = 0.0
    seed: int = 0
    gqa: str = "separate"

    def __post_init__(self) -> None:
        """Check all fields, and convert numbers to Python's own."""
        super().__post_init__()
        if not isinstance(self.shape, Shape):
            raise ValueError(f"shape is {short_repr(self.shape)}; expected a Shape")
        if not isinstance(self.mask, Mask):
            raise ValueError(f"mask is {short_repr(self.mask)}; expected a mask object")
        lengths = {**vars(self.shape), "group": self.group}
        for axis, length in enumerate(self.leading):
            lengths[f"leading[{axis}]"] = length
        for name, length in lengths.items():
            if type(length) is not int or length < 1:
                raise ValueError(
                    f"{name} is {short_repr(length)}; expected a whole number of at least 1"
                )
        heads = self.leading[-1] if self.leading else 1
        if heads % self.group:
            raise ValueError(f"group is {self.group}; expected a divisor of {heads} query heads")
        set_fields(
            self,
            scale=check_scale(self.scale, self.shape.d),
            dropout_p=check_p(self.dropout_p),
            seed=check_seed(self.seed),
            gqa=check_gqa(self.gqa),
        )

    @classmethod
    def of(
        cls,
        *,
        N: int | None = None,
        d: int | None = None,
        M: Size | None = None,
        N_q: int | None = None,
        N_k: int | None = None,
        d_v: int | None = None,
        heads: int = 1,
        kv_heads: int | None = None,
        dtype: Any = "float32",
        causal: bool = False,
        mask: Any = None,
        scale: float | None = None,
        dropout_p: float = 0.0,
        seed: int = 0,
        gqa: str = "separate",
    ) -> Problem:
        """Return the problem of these lengths, in elements; arguments as in `flashsim.count`.
        Raises ValueError.
        """
        shape = check_shape(N, d, N_q, N_k, d_v)
        heads, kv_heads = check_heads(heads, kv_heads)
        return cls.of_shape(
            shape,
            (heads,) if heads > 1 else (),
            heads // kv_heads,
            dtype,
            M=M,
            scale=scale,
            causal=causal,
            mask=mask,
            dropout_p=dropout_p,
            seed=seed,
            gqa=gqa,
            one_mask=True,
        )

    @classmethod
    def from_arguments(cls, problem: Problem | None, **arguments: Any) -> Problem:
        """Return the problem, or, where there is none, that of the other arguments, which are
        `of`'s.

        Raises ValueError for one with a mask for each head, since what is counted is one head's;
        and for both.
        """
        if problem is None:
            return cls.of(**arguments)
        if not isinstance(problem, cls):
            raise ValueError(
                f"problem is {short_repr(problem)}; expected a flashsim.Problem, or lengths by "
                "name: N=1024, d=64"
            )
        defaults = signature(cls.of).parameters
        for name, value in arguments.items():
            default = defaults[name].default
            plain = isinstance(value, bool | int | float | str)
            if value is not default and not (plain and value == default):
                reason = "a problem is given, which has its own; expected one of the two"
                raise ValueError(f"{name} is {short_repr(value)}, and {reason}")
        if problem.mask.per_head:
            raise ValueError(
                f"mask is {problem.mask!r}, which may differ between heads; expected one mask for "
                "all heads"
            )
        return problem

    @classmethod
    def of_shape(
        cls,
        shape: Shape,
        leading: Head,
        group: int,
        dtype: Any,
        *,
        M: Any,
        scale: Any,
        causal: Any,
        mask: Any,
        dropout_p: Any,
        seed: Any,
        gqa: Any,
        one_mask: bool = False,
    ) -> Problem:
        """Return the problem of these fields, with `mask` as users give it, and `causal`. With
        `one_mask`, all heads have the same mask.
        """
        rule: Mask = EVERYTHING
        if mask is not None or causal is not False:
            rule = as_mask(mask, causal, shape, () if one_mask else leading)
        return cls(
            shape=shape,
            leading=leading,
            group=group,
            dtype=dtype,
            M=M,
            mask=rule,
            scale=scale,
            dropout_p=dropout_p,
            seed=seed,
            gqa=gqa,
        )

    @property
    def heads(self) -> int:
        """How many query heads there are over all leading axes."""
        return prod(self.leading)

    @property
    def arguments(self) -> dict[str, Any]:
        """What `flashsim.count` would be given for the same, by name."""
        of_heads = {"heads": self.heads, "kv_heads": self.heads // self.group, "gqa": self.gqa}
        others = {"M": self.M, "dtype": self.dtype.name, "dropout_p": self.dropout_p}
        return (
            asdict(self.shape)
            | of_heads
            | others
            | ({} if self.mask is EVERYTHING else {"mask": self.mask})
        )

    @property
    def in_hbm(self) -> bool:
        """Whether something of the mask must be in HBM: an array, a tree's words, a bias, a
        sink.
        """
        mask = self.mask
        has_words = mask.tree is not None or mask.bias is not None or mask.sink is not None
        return has_words or bool(mask.dense(()))

    def one_head(self) -> Problem:
        """Return the same for one head, without dropout: what bounds and schedules are of."""
        return replace(self, leading=(), group=1, gqa="separate", dropout_p=0.0)
