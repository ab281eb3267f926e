"""Probes: single calls of a kernel that show what it takes and returns."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from flashsim.attention.inputs import FLOATS, float_dtype
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS
from flashsim.testing.kernel import Kernel
from flashsim.testing.spec import Spec
from flashsim.testing.strategies import pool
from flashsim.testing.survey import Finding, try_check


class Feature(NamedTuple):
    """Something that a kernel may take.

    field    its name in a spec
    keyword  its name in a call, or "" if it has none
    in_case  the fields of a case that has it
    aliases  names of the keyword in other packages
    values   of the spec's field, in the order in which they are tried
    """

    field: str
    keyword: str
    in_case: Mapping[str, Any]
    aliases: tuple[str, ...] = ()
    values: tuple[Any, ...] = (True,)

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        if self.field == "gqa":
            return "fewer KV heads (2) than query heads (4)"
        return "V of another width" if self.field == "d_v" else f"{self.keyword}="

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
    """Return a simple case that the spec allows: two heads, N_q ≠ N_k, no option."""
    if spec.max_shapes is not None:
        return Case(**pool(spec).shapes[0], dtype=spec.dtypes[0], block=spec.block)
    d = min(spec.head_dims) if spec.head_dims else 8
    N_q, N_k = spec.lengths(5, 7 if spec.cross else 5)
    return Case(B=2, H_kv=2, N_q=N_q, N_k=N_k, d=d, dtype=spec.dtypes[0], block=spec.block)


def smallest(case: Case, spec: Spec) -> Case:
    """Return the case with the smallest batch, heads and lengths that its features allow."""
    N_q, N_k = spec.lengths(1, min(case.N_k, 1))
    return replace(case, B=1, H_kv=1 if case.group == 1 else case.H_kv, N_q=N_q, N_k=N_k)


def _worst_finding(kernel: Kernel, case: Case, checks: Sequence[str]) -> Finding | None:
    """Return the worst finding of checks, by default those of the forward pass. Return None if the
    kernel may not be called with the case.
    """
    names = checks or (("oracle", "log_sum_exp") if kernel.spec.lse else ("oracle",))
    findings = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            finding = try_check(CHECKS[name], kernel, case)
            if finding is not None:
                findings.append(finding)
    return max(findings, key=lambda finding: finding.ratio, default=None)


def broken_by(kernel: Kernel, case: Case, *checks: str) -> str:
    """Return how a call fails, or "" if it returns a result, right or wrong."""
    finding = _worst_finding(kernel, case, checks)
    return "" if finding is None else finding.broken


def fits(fn: Callable[..., Any], spec: Spec, case: Case | None = None, *checks: str) -> bool:
    """Return whether the kernel may be called with the case, by default a plain one, and is
    right.
    """
    finding = _worst_finding(Kernel(fn, spec), plain(spec) if case is None else case, checks)
    return finding is not None and not finding.failed


def parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without *args and **kwargs; none if the
    function has no signature.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return ()
    names = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            names.append(parameter.name)
    return tuple(names)


def other_specs(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield changes to a spec's basic fields: arrays, results and lengths of a plain call. The
    fewest changes come first.
    """
    if spec.max_shapes is not None:
        return
    lse = [kind for kind in ("natural", "base2", None) if kind != spec.lse]
    dtypes = [(name,) for name in FLOATS if name not in spec.dtypes and exists(name)]
    head_dims = [(16,), (64,), (128,)] if spec.head_dims is None else []
    multiples = [(n, n) for n in (16, 32, 64, 128)] if spec.multiples == (1, 1) else []
    choices: list[list[dict[str, Any]]] = [
        _choices("lse", lse),
        _choices("layout", ["BNHD" if spec.layout == "BHND" else "BHND"]),
        _choices("dtypes", dtypes),
        _choices("head_dims", head_dims),
        _choices("cross", [False] if spec.cross else []),
        _choices("multiples", multiples),
    ]
    specs = []
    for parts in product(*choices):
        changes: dict[str, Any] = {}
        for part in parts:
            changes |= part
        if 0 < len(changes) <= 3:
            specs.append(changes)
    yield from sorted(specs, key=len)


def _choices(field: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return no change, and one for each value of a field."""
    return [{}, *({field: value} for value in values)]


def exists(dtype: str) -> bool:
    """Return whether NumPy can make arrays of that dtype: bfloat16 needs a package."""
    try:
        float_dtype(dtype)
    except ValueError:
        return False
    return True
