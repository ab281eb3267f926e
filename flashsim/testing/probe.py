"""What a kernel seems to take and to return, found by calling it once for each thing that a spec may say.

`mismatches` holds the few first calls of a check-up against its spec: what does not fit is said once, not at every case.
`infer` makes a spec from nothing but such calls.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np

from flashsim.inputs import FLOATS, float_dtype
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS
from flashsim.testing.kernel import Broken, Kernel, OutsidePool
from flashsim.testing.running import Finding, try_check
from flashsim.testing.spec import Spec
from flashsim.testing.strategies import pool

ALIASES = {
    "causal": ("is_causal",),
    "mask": ("attn_mask", "attention_mask"),
    "scale": ("softmax_scale", "sm_scale"),
}
FIELDS = {"causal": "causal", "mask": "masks", "scale": "scale"}  # of a spec, by the keyword of the call
PACKAGES = {"ensor": "torch", "torch": "torch", "jax": "jax", "cupy": "cupy"}  # by a word of an error
WIDTHS = (16, 32, 64, 128, 256)  # that kernels are often made for
FITS = "a call with it is right"
WITHOUT: dict[str, Any] = {
    "causal": None,
    "masks": False,
    "scale": False,
    "gqa": False,
    "d_v": False,
    "zero_keys": False,
}
FIRST: dict[str, Any] = {"causal": "bottom_right", "masks": True, "scale": True, "gqa": True, "d_v": True}


@dataclass(frozen=True)
class Mismatch:
    """Something that a kernel's spec says otherwise than its first calls went.

    says     what happened, in a sentence
    changes  fields of the spec that would fit, empty if none was found
    stops    no call fits the spec, so that nothing can be checked
    """

    says: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    stops: bool = False

    def __str__(self) -> str:
        if "backward" in self.changes:
            return f"{self.says}."
        give = f" Give {in_words(self.changes)}." if self.changes else ""
        return f"{self.says}.{give}"


def in_words(changes: Mapping[str, Any]) -> str:
    """Return changes to a spec as they are given on the command line and in Python."""
    python = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return f"{' '.join(_flag(*change) for change in changes.items())}, in Python Spec({python})"


def _flag(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if value is None:
        return f"no --{flag}"
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


# ------------------------------------------------------------------------------------------------------ single calls


def plain(spec: Spec) -> Case:
    """Return an ordinary case that the spec allows: two heads, N_q ≠ N_k, no option."""
    if spec.max_shapes is not None:
        return Case(**pool(spec).shapes[0], dtype=spec.dtypes[0], block=spec.block)
    d = min(spec.head_dims) if spec.head_dims else 8
    return Case(B=2, H_kv=2, N_q=5, N_k=7 if spec.cross else 5, d=d, dtype=spec.dtypes[0], block=spec.block)


def _smallest(case: Case) -> Case:
    return replace(case, B=1, H_kv=1 if case.group == 1 else case.H_kv, N_q=1, N_k=min(case.N_k, 1))


def _tried(kernel: Kernel, case: Case) -> Finding | None:
    """Return the worse finding of O and of the log-sum-exp, or None where the case may not be tried."""
    names = ("oracle", "log_sum_exp") if kernel.spec.lse else ("oracle",)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [finding for name in names if (finding := try_check(CHECKS[name], kernel, case)) is not None]
    return max(found, key=lambda finding: finding.ratio, default=None)


def _broken(kernel: Kernel, case: Case) -> str:
    """Return how a call goes wrong, or "" where it gives an answer, be it a wrong one."""
    finding = _tried(kernel, case)
    return "" if finding is None else finding.broken


def _fits(fn: Callable[..., Any], spec: Spec, case: Case | None = None) -> bool:
    finding = _tried(Kernel(fn, spec), plain(spec) if case is None else case)
    return finding is not None and not finding.failed


def parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters; none where they cannot be known."""
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()


# ----------------------------------------------------------------------------------------------- against a given spec


def mismatches(kernel: Kernel) -> list[Mismatch]:
    """Return what the spec does not say, or says wrongly, by one call for each thing that it declares; mostly nothing.

    A bug that needs a certain shape is none: where the smallest call succeeds, the check-up goes on, and finds and shrinks it.
    """
    case = plain(kernel.spec)
    broken = {dtype: _broken(kernel, replace(case, dtype=dtype)) for dtype in kernel.spec.dtypes}
    taken = [dtype for dtype, said in broken.items() if not said]
    if not taken:
        found = _explained(kernel, case, broken[case.dtype])
        return [] if found is None else [found]
    refused = [
        Mismatch(f"It does not take {dtype}: it {said}", {"dtypes": tuple(taken)})
        for dtype, said in broken.items()
        if said and _broken(kernel, _smallest(replace(case, dtype=dtype)))
    ]
    return [*refused, *_of_features(kernel, replace(case, dtype=taken[0]))]


def _explained(kernel: Kernel, case: Case, broken: str) -> Mismatch | None:
    """Say why an ordinary call breaks: by another spec that fits, or that the smallest call does too."""
    spec = kernel.spec
    for changes in _other_specs(spec):
        if _fits(kernel.fn, replace(spec, **changes)):
            return Mismatch(_told(changes, broken), changes, stops=True)
    for lse in {None, "natural"} - {spec.lse}:  # a pair is a pair, even of wrong numbers
        if not _broken(replace(kernel, spec=replace(spec, lse=lse)), case):
            return Mismatch(_told({"lse": lse}, broken), {"lse": lse}, stops=True)
    if not _broken(kernel, _smallest(case)):
        return None
    q, k = (case.B, case.H_kv, case.N_q, case.d), (case.B, case.H_kv, case.N_k, case.d)
    package = next((name for word, name in PACKAGES.items() if word in broken), "")
    give = f". If it takes {package} arrays, give --wrap {package}, in Python wrap(fn, {package!r})" if package else ""
    says = f"No call succeeds. With NumPy arrays q {q} and k, v {k} of {case.dtype} (B, H, N, d) it {broken.rstrip('.')}{give}"
    return Mismatch(says, stops=True)


def _told(changes: Mapping[str, Any], broken: str) -> str:
    """Say in a sentence what a kernel does, by the spec that it fits, and how it broke where that is not said by it."""
    told = []
    for name, value in changes.items():
        if name == "lse":
            told.append("it returns O alone" if value is None else "it returns two arrays, (O, lse)")
        elif name == "layout":
            told.append(f"its arrays are ({', '.join(value[:3])}, d)")
        elif name == "cross":
            told.append("it takes N_q = N_k only")
        else:
            told.append(f"it takes {name} {', '.join(map(str, value))}")
    said = " and ".join(told)
    return said[0].upper() + said[1:] + ("" if set(changes) == {"lse"} else f"; called by the spec, it {broken}")


def _other_specs(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield changes to how a plain call looks and what it returns, the fewest first."""
    if spec.max_shapes is not None:
        return
    choices: list[list[dict[str, Any]]] = [
        [{}, *({"lse": lse} for lse in ("natural", "base2", None) if lse != spec.lse)],
        [{}, {"layout": "BNHD" if spec.layout == "BHND" else "BHND"}],
        [{}, *({"dtypes": (name,)} for name in FLOATS if name not in spec.dtypes and _there(name))],
        [{}, *({"head_dims": (d,)} for d in (16, 64, 128) if spec.head_dims is None)],
        [{}, *([{"cross": False}] if spec.cross else [])],
    ]
    merged: list[dict[str, Any]] = [{k: v for part in parts for k, v in part.items()} for parts in product(*choices)]
    yield from sorted((changes for changes in merged if 0 < len(changes) <= 3), key=len)


def _there(dtype: str) -> bool:
    try:
        float_dtype(dtype)
    except ValueError:
        return False  # bfloat16 without its package
    return True


def _of_features(kernel: Kernel, case: Case) -> Iterator[Mismatch]:
    """Yield what is wrong with the features that the spec declares."""
    spec = kernel.spec
    for keyword, changed in (("causal", {"causal": True}), ("mask", {"mask": "dense"}), ("scale", {"scale": 0.5})):
        if getattr(spec, FIELDS[keyword]) and (found := _of_keyword(kernel, case, keyword, replace(case, **changed))):
            yield found
    if spec.gqa and (broken := _both_broken(kernel, replace(case, group=2))):
        yield Mismatch(f"It does not take fewer KV heads (2) than query heads (4): it {broken}", {"gqa": False})
    if spec.d_v and not spec.head_dims and (broken := _both_broken(kernel, replace(case, d_v=case.d + 3))):
        yield Mismatch(f"It does not take V of another width: it {broken}", {"d_v": False})
    if spec.zero_keys and spec.cross and (broken := _broken(kernel, replace(case, N_k=0))):
        yield Mismatch(f"It does not take N_k = 0: it {broken}", {"zero_keys": False})
    for strides, needed in (("mixed", "contiguous"), ("columns", "last_contiguous")):
        refused = spec.strides == "any" or (spec.strides == "last_contiguous" and strides == "mixed")
        if refused and (broken := _both_broken(kernel, replace(case, strides=strides))):
            yield Mismatch(
                f"It does not take arrays that are not {needed.replace('_', ' ')}: it {broken}", {"strides": needed}
            )
            break
    if kernel.back is not None and (broken := _backward_broken(kernel, case)):
        yield Mismatch(f"Its backward function fails: it {broken}", {"backward": None})


def _both_broken(kernel: Kernel, case: Case) -> str:
    """Return how a call goes wrong of which the smallest kind does too, or ""."""
    broken = _broken(kernel, case)
    return broken if broken and _broken(kernel, _smallest(case)) else ""


def _of_keyword(kernel: Kernel, case: Case, keyword: str, with_it: Case) -> Mismatch | None:
    """Say what is wrong with a keyword of the call: it is not known by that name, it breaks the call, or it changes nothing."""
    without = {FIELDS[keyword]: WITHOUT[FIELDS[keyword]]}
    if broken := _both_broken(kernel, with_it):
        theirs = [name for name in ALIASES[keyword] if name in parameters(kernel.fn)]
        named = f"; its own name for it is {theirs[0]}, and the kit's is {keyword}" if theirs else ""
        return Mismatch(f"It does not take {keyword}=: it {broken}{named}", without)
    problem = with_it.problem(kernel.spec)
    if with_it.N_k < 2 or np.array_equal(problem.solution.O, case.problem(kernel.spec).solution.O):
        return None
    try:
        same = np.array_equal(kernel.forward(problem).O, kernel.forward(case.problem(kernel.spec)).O)
    except (Broken, OutsidePool):
        return None
    return Mismatch(f"It ignores {keyword}=: with it, its answer is the same, to the bit", without) if same else None


def _backward_broken(kernel: Kernel, case: Case) -> str:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            kernel.backward(case.problem(kernel.spec))
    except Broken as broken:
        try:
            kernel.backward(_smallest(case).problem(kernel.spec))
        except Broken:
            return str(broken)
        except OutsidePool:
            pass
    except OutsidePool:
        pass
    return ""


def undeclared(kernel: Kernel) -> list[str]:
    """Return the keywords that the function has and the spec does not declare, so that nothing checks them."""
    named = parameters(kernel.fn)
    return [word for word, name in FIELDS.items() if word in named and not getattr(kernel.spec, name)]


# ------------------------------------------------------------------------------------------------------ without a spec


@dataclass(frozen=True)
class Inferred:
    """A spec, and for each field that was found, how: a few words."""

    spec: Spec
    notes: Mapping[str, str]


def infer(fn: Callable[..., Any], start: Spec | None = None) -> Inferred:
    """Return the spec that a kernel's answers fit best, by calling it; `start` is changed where it does not fit.

    What it takes but answers wrongly is declared too, if it is a parameter by name, so that the checks show it. Raises
    ValueError where no call succeeds.
    """
    spec, notes = Spec() if start is None else start, {}
    given = {f.name for f in fields(Spec) if getattr(spec, f.name) != f.default}
    if not _fits(fn, spec):
        changes = next((c for c in _other_specs(spec) if _fits(fn, replace(spec, **c))), None)
        if changes is None:
            found = mismatches(Kernel(fn, spec))
            if found and found[0].stops and not found[0].changes:
                raise ValueError(f"{Kernel(fn, spec).name}: {found[0].says}")
            changes, notes["dtypes"] = (dict(found[0].changes) if found else {}), "no plain call gave the right numbers"
        spec = replace(spec, **changes)
        notes |= dict.fromkeys(changes, "found by trying")
    case = plain(spec)
    more = tuple(d for d in FLOATS if d not in spec.dtypes and _there(d) and _fits(fn, spec, replace(case, dtype=d)))
    if more and "dtypes" not in given:
        spec, notes["dtypes"] = replace(spec, dtypes=(*spec.dtypes, *more)), "each was tried"
    if spec.head_dims is not None and "head_dims" not in given:
        dims = tuple(d for d in WIDTHS if _fits(fn, replace(spec, head_dims=(d,))))
        spec, notes["head_dims"] = (
            replace(spec, head_dims=dims),
            f"of {', '.join(map(str, WIDTHS))} and 8 these were right",
        )
    for name in FIRST:
        if name not in given:
            spec, note = _with_feature(fn, spec, name)
            notes |= {name: note} if note else {}
    if "empty_rows" not in given:
        spec, note = _with_empty_rows(fn, spec)
        notes |= {"empty_rows": note} if note else {}
    if "zero_keys" not in given and spec.cross and _empty(fn, replace(spec, zero_keys=True), replace(case, N_k=0)):
        spec, notes["zero_keys"] = replace(spec, zero_keys=True), FITS
    if "strides" not in given and _fits(fn, spec):
        kinds = ("any", "last_contiguous", "contiguous")
        spec = next(there for kind in kinds if _all_strides(fn, there := replace(spec, strides=kind)))
        notes |= {} if spec.strides == "any" else {"strides": "others gave wrong answers, or an error"}
    return Inferred(spec, notes)


def _all_strides(fn: Callable[..., Any], spec: Spec) -> bool:
    kinds = {"any": ("mixed", "columns"), "last_contiguous": ("mixed",), "contiguous": ()}[spec.strides]
    return all(_fits(fn, spec, replace(plain(spec), strides=kind)) for kind in kinds)


def _with_feature(fn: Callable[..., Any], spec: Spec, name: str) -> tuple[Spec, str]:
    """Return the spec with a feature declared, if a call with it fits or its parameter is there, and how that was found."""
    values: tuple[Any, ...] = ("bottom_right", "top_left") if name == "causal" else (True,)
    for value in values:
        there = replace(spec, **{name: value})
        if (case := _case_with(there, name)) is None:
            return spec, ""
        if _fits(fn, there, case):
            return there, FITS
    keyword, named = next((word for word, theirs in FIELDS.items() if theirs == name), ""), parameters(fn)
    if keyword in named:
        return replace(spec, **{name: FIRST[name]}), f"it has the parameter {keyword}, but a call with it is wrong"
    other = next((alias for alias in ALIASES.get(keyword, ()) if alias in named), "")
    said = f"not checked: the kit's name for {other} is {keyword}; wrap it in a function that takes that"
    return spec, said if other else ""


def _case_with(spec: Spec, name: str) -> Case | None:
    case = plain(spec)
    if name == "d_v":
        return None if spec.head_dims else replace(case, d_v=case.d + 3)
    changes: dict[str, dict[str, Any]] = {
        "causal": {"causal": True}, "masks": {"mask": "dense"}, "scale": {"scale": 0.5}, "gqa": {"group": 2}
    }  # fmt: skip
    return replace(case, **changes[name])


def _with_empty_rows(fn: Callable[..., Any], spec: Spec) -> tuple[Spec, str]:
    """Return the spec with what empty rows give, where a row can be empty."""
    case = replace(plain(spec), mask="rows") if spec.masks else replace(plain(spec), N_q=7, N_k=5, causal=True)
    if not spec.masks and (spec.causal != "bottom_right" or not spec.cross):
        return spec, ""
    for value in ("zero", "nan", "mean"):
        if _empty(fn, replace(spec, empty_rows=value), case):
            return replace(spec, empty_rows=value), "" if value == "zero" else "what a fully masked row gave"
    return replace(spec, empty_rows="undefined"), "a fully masked row gave neither 0, nor NaN, nor the values' mean"


def _empty(fn: Callable[..., Any], spec: Spec, case: Case) -> bool:
    """Say whether the empty rows of a call are as the spec says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finding = try_check(CHECKS["empty_rows"], Kernel(fn, spec), case)
    return finding is not None and not finding.failed
