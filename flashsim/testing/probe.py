"""A kernel called once, for one thing that its spec may say: what it takes and what it returns."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from flashsim.attention.inputs import FLOATS, float_dtype
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS
from flashsim.testing.running import Finding, try_check
from flashsim.testing.spec import Spec
from flashsim.testing.strategies import pool
from flashsim.testing.subject import Subject


class Feature(NamedTuple):
    """Something that a kernel may take.

    field    its name in a spec
    keyword  its name in a call, or "" if it has none
    in_case  what a case with it has
    aliases  names that other packages have for the keyword
    values   of the spec's field, to try in this order
    """

    field: str
    keyword: str
    in_case: Mapping[str, Any]
    aliases: tuple[str, ...] = ()
    values: tuple[Any, ...] = (True,)

    @property
    def words(self) -> str:
        """What it is called in a sentence."""
        said = {"gqa": "fewer KV heads (2) than query heads (4)", "d_v": "V of another width"}
        return said.get(self.field, f"{self.keyword}=")

    def put_into(self, case: Case) -> Case:
        """Return the case with it."""
        return replace(case, **self.in_case)


CORNERS = ("bottom_right", "top_left")
FEATURES = (
    Feature("causal", "causal", {"causal": True}, ("is_causal",), CORNERS),
    Feature(
        "window",
        "window",
        {"window": (2, 0)},
        ("window_size", "local_window_size", "sliding_window"),
        CORNERS,
    ),
    Feature("bias", "bias", {"bias": "dense"}, ("attn_bias", "alibi")),
    Feature(
        "softcap", "softcap", {"softcap": 0.5}, ("logits_soft_cap", "logit_softcapping", "soft_cap")
    ),
    Feature("alibi", "alibi_slopes", {"alibi": True}),
    Feature("sink", "sink", {"sink": "zero"}, ("sinks", "s_aux", "learnable_sink")),
    Feature("masks", "mask", {"mask": "dense"}, ("attn_mask", "attention_mask")),
    Feature("scale", "scale", {"scale": 0.5}, ("softmax_scale", "sm_scale")),
    Feature("gqa", "", {"group": 2}),
    Feature("d_v", "", {"d_v": 11}),
)


def plain(spec: Spec) -> Case:
    """Return an ordinary case that the spec allows: two heads, N_q ≠ N_k, no option."""
    if spec.max_shapes is not None:
        return Case(**pool(spec).shapes[0], dtype=spec.dtypes[0], block=spec.block)
    d = min(spec.head_dims) if spec.head_dims else 8
    N_q, N_k = spec.lengths(5, 7 if spec.cross else 5)
    return Case(B=2, H_kv=2, N_q=N_q, N_k=N_k, d=d, dtype=spec.dtypes[0], block=spec.block)


def smallest(case: Case, spec: Spec) -> Case:
    """Return the case with as little of everything as its kind has."""
    N_q, N_k = spec.lengths(1, min(case.N_k, 1))
    return replace(case, B=1, H_kv=1 if case.group == 1 else case.H_kv, N_q=N_q, N_k=N_k)


def _tried(subject: Subject, case: Case, checks: Sequence[str]) -> Finding | None:
    """Return the worst finding of checks, by default of what is returned; None where the case
    may not be tried.
    """
    names = checks or (("oracle", "log_sum_exp") if subject.spec.lse else ("oracle",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            finding
            for name in names
            if (finding := try_check(CHECKS[name], subject, case)) is not None
        ]
    return max(found, key=lambda finding: finding.ratio, default=None)


def broken_by(subject: Subject, case: Case, *checks: str) -> str:
    """Return how a call goes wrong, or "" where it gives an answer, be it a wrong one."""
    finding = _tried(subject, case, checks)
    return "" if finding is None else finding.broken


def fits(fn: Callable[..., Any], spec: Spec, case: Case | None = None, *checks: str) -> bool:
    """Return whether the case, by default a plain one, may be tried and is answered rightly."""
    finding = _tried(Subject(fn, spec), plain(spec) if case is None else case, checks)
    return finding is not None and not finding.failed


def parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without *args and **kwargs; none where they
    cannot be known.
    """
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(
        each.name for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    )


def other_specs(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield changes to how a plain call looks and what it returns, the fewest first."""
    if spec.max_shapes is not None:
        return
    choices: list[list[dict[str, Any]]] = [
        [{}, *({"lse": lse} for lse in ("natural", "base2", None) if lse != spec.lse)],
        [{}, {"layout": "BNHD" if spec.layout == "BHND" else "BHND"}],
        [
            {},
            *({"dtypes": (name,)} for name in FLOATS if name not in spec.dtypes and there_is(name)),
        ],
        [{}, *({"head_dims": (d,)} for d in (16, 64, 128) if spec.head_dims is None)],
        [{}, *([{"cross": False}] if spec.cross else [])],
        [{}, *({"multiples": (n, n)} for n in (16, 32, 64, 128) if spec.multiples == (1, 1))],
    ]
    merged: list[dict[str, Any]] = [
        {k: v for part in parts for k, v in part.items()} for parts in product(*choices)
    ]
    yield from sorted((changes for changes in merged if 0 < len(changes) <= 3), key=len)


def there_is(dtype: str) -> bool:
    """Return whether arrays of that dtype can be made: bfloat16 needs its package."""
    try:
        float_dtype(dtype)
    except ValueError:
        return False
    return True
