"""A spec made from nothing but calls of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flashsim.inputs import FLOATS
from flashsim.testing.kernel import Kernel
from flashsim.testing.mismatches import mismatches
from flashsim.testing.probe import (
    ALIASES,
    FIELDS,
    broken_by,
    fits,
    other_specs,
    parameters,
    plain,
    there_is,
    with_feature,
)
from flashsim.testing.spec import Spec

WIDTHS = (16, 32, 64, 128, 256)  # that kernels are often made for
FITS = "a call with it is right"
FIRST: dict[str, Any] = {"causal": "bottom_right", "masks": True, "scale": True, "gqa": True, "d_v": True}


@dataclass(frozen=True)
class Inferred:
    """A spec, for each field that was found, how, in a few words; and which of these are a reason to look twice."""

    spec: Spec
    notes: Mapping[str, str]
    doubtful: Sequence[str] = ()


def infer(fn: Callable[..., Any], start: Spec | None = None) -> Inferred:
    """Return the spec that a kernel's answers fit best, by calling it; `start` is changed where it does not fit.

    What it takes but answers wrongly is declared too, if it is a parameter by name, so that the checks show it. Raises
    ValueError where no call succeeds.
    """
    spec, notes, doubtful = Spec() if start is None else start, {}, []
    given = {f.name for f in fields(Spec) if getattr(spec, f.name) != f.default}
    if not fits(fn, spec):
        changes = next((c for c in other_specs(spec) if fits(fn, replace(spec, **c))), None)
        if changes is None:
            found = mismatches(Kernel(fn, spec))
            if found and found[0].stops and not found[0].changes:
                raise ValueError(f"{Kernel(fn, spec).name}: {found[0].says}")
            changes, notes["dtypes"] = (dict(found[0].changes) if found else {}), "no plain call gave the right numbers"
            doubtful.append("dtypes")
        spec = replace(spec, **changes)
        notes |= dict.fromkeys(changes, "found by trying")
    case = plain(spec)
    more = tuple(d for d in FLOATS if d not in spec.dtypes and there_is(d) and fits(fn, spec, replace(case, dtype=d)))
    if more and "dtypes" not in given:
        spec, notes["dtypes"] = replace(spec, dtypes=(*spec.dtypes, *more)), "each was tried"
    answered = [name for name in ("float32", "float64") if not broken_by(Kernel(fn, spec), replace(case, dtype=name))]
    wrong = [name for name in answered if name not in spec.dtypes]
    if "dtypes" in notes and "dtypes" not in doubtful and wrong:
        notes["dtypes"] = f"each was tried; {', '.join(wrong)} gave no right answer"
        doubtful.append("dtypes")
    if spec.head_dims is not None and "head_dims" not in given:
        dims = tuple(d for d in WIDTHS if fits(fn, replace(spec, head_dims=(d,))))
        spec = replace(spec, head_dims=dims)
        notes["head_dims"] = f"of {', '.join(map(str, WIDTHS))} and 8 these were right"
    for name in FIRST:
        if name not in given:
            spec, note = _with_feature(fn, spec, name)
            notes |= {name: note} if note else {}
            doubtful += [name] if note not in ("", FITS) else []
    if "empty_rows" not in given:
        spec, note = _with_empty_rows(fn, spec)
        notes |= {"empty_rows": note} if note else {}
    if "zero_keys" not in given and spec.cross:
        there = replace(spec, zero_keys=True)
        if fits(fn, there, replace(case, N_k=0), "empty_rows"):
            spec, notes["zero_keys"] = there, FITS
    if "strides" not in given and fits(fn, spec):
        kinds = ("any", "last_contiguous", "contiguous")
        spec = next(there for kind in kinds if _all_strides(fn, there := replace(spec, strides=kind)))
        notes |= {} if spec.strides == "any" else {"strides": "others gave wrong answers, or an error"}
    return Inferred(spec, notes, doubtful)


def _all_strides(fn: Callable[..., Any], spec: Spec) -> bool:
    kinds = {"any": ("mixed", "columns"), "last_contiguous": ("mixed",), "contiguous": ()}[spec.strides]
    return all(fits(fn, spec, replace(plain(spec), strides=kind)) for kind in kinds)


def _with_feature(fn: Callable[..., Any], spec: Spec, name: str) -> tuple[Spec, str]:
    """Return the spec with a feature declared, if a call with it fits or its parameter is there, and how that was found."""
    if name == "d_v" and spec.head_dims:
        return spec, ""
    values: tuple[Any, ...] = ("bottom_right", "top_left") if name == "causal" else (True,)
    for value in values:
        there = replace(spec, **{name: value})
        if fits(fn, there, with_feature(plain(there), name)):
            return there, FITS
    keyword, named = next((word for word, theirs in FIELDS.items() if theirs == name), ""), parameters(fn)
    if keyword in named:
        return replace(spec, **{name: FIRST[name]}), f"it has the parameter {keyword}, but a call with it is wrong"
    other = next((alias for alias in ALIASES.get(keyword, ()) if alias in named), "")
    said = f"not checked: the kit's name for {other} is {keyword}; wrap it in a function that takes that"
    return spec, said if other else ""


def _with_empty_rows(fn: Callable[..., Any], spec: Spec) -> tuple[Spec, str]:
    case = replace(plain(spec), mask="rows") if spec.masks else replace(plain(spec), N_q=7, N_k=5, causal=True)
    if not spec.masks and (spec.causal != "bottom_right" or not spec.cross):
        return spec, ""
    for value in ("zero", "nan", "mean"):
        if fits(fn, replace(spec, empty_rows=value), case, "empty_rows"):
            return replace(spec, empty_rows=value), "" if value == "zero" else "what a fully masked row gave"
    return replace(spec, empty_rows="undefined"), "a fully masked row gave neither 0, nor NaN, nor the values' mean"
