"""A spec made from nothing but calls of the kernel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flashsim.attention.inputs import FLOATS
from flashsim.testing.mismatches import mismatches
from flashsim.testing.probe import (
    FEATURES,
    Feature,
    broken_by,
    fits,
    other_specs,
    parameters,
    plain,
    there_is,
)
from flashsim.testing.spec import Spec
from flashsim.testing.subject import Subject
from flashsim.testing.unchecked import at_their_defaults

WIDTHS = (16, 32, 64, 128, 256)  # that kernels are often made for
FITS = "a call with it is right"


@dataclass(frozen=True)
class Inferred:
    """A spec, for each field that was found, how, in a few words; and which of these are a
    reason to look twice.
    """

    spec: Spec
    notes: Mapping[str, str]
    doubtful: Sequence[str] = ()


def infer(
    fn: Callable[..., Any], start: Spec | None = None, backward: Callable[..., Any] | None = None
) -> Inferred:
    """Return the spec that a kernel's answers fit best, by calling it; `start` is changed where it
    does not fit.

    What it takes but answers wrongly is declared too, if it is a parameter by name, so that the
    checks show it. Raises ValueError where no call succeeds.
    """
    spec = Spec() if start is None else start
    notes = {}
    doubtful = []
    given = {f.name for f in fields(Spec) if getattr(spec, f.name) != f.default}
    if not fits(fn, spec):
        changes = next((c for c in other_specs(spec) if fits(fn, replace(spec, **c))), None)
        if changes is None:
            found = mismatches(Subject(fn, spec))
            if found and found[0].stops and not found[0].changes:
                raise ValueError(f"{Subject(fn, spec).name}: {found[0].says}")
            changes = dict(found[0].changes) if found else {}
            notes["dtypes"] = "no plain call gave the right numbers"
            doubtful.append("dtypes")
        spec = replace(spec, **changes)
        notes |= dict.fromkeys(changes, "found by trying")
    # a convention declares what its own function takes
    for missed in mismatches(Subject(fn, spec)) if given else ():
        changes = {
            name: value
            for name, value in missed.changes.items()
            if name in given and name not in notes
        }
        spec = replace(spec, **changes)
        notes = notes | dict.fromkeys(changes, missed.says)
        doubtful += changes
    case = plain(spec)
    more = tuple(
        d
        for d in FLOATS
        if d not in spec.dtypes and there_is(d) and fits(fn, spec, replace(case, dtype=d))
    )
    if more and "dtypes" not in given:
        spec = replace(spec, dtypes=(*spec.dtypes, *more))
        notes["dtypes"] = "each was tried"
    others = [name for name in ("float32", "float64") if name not in spec.dtypes]
    wrong = [name for name in others if not broken_by(Subject(fn, spec), replace(case, dtype=name))]
    if "dtypes" in notes and "dtypes" not in doubtful and wrong:
        notes["dtypes"] = f"each was tried; {', '.join(wrong)} gave no right answer"
        doubtful.append("dtypes")
    if spec.head_dims is not None and "head_dims" not in given:
        spec = replace(
            spec, head_dims=tuple(d for d in WIDTHS if fits(fn, replace(spec, head_dims=(d,))))
        )
        notes["head_dims"] = f"of {', '.join(map(str, WIDTHS))} and 8 these were right"
    for feature in FEATURES:
        if feature.field not in given:
            spec, notes[feature.field] = _with_feature(fn, spec, feature)
            doubtful += [feature.field] if notes[feature.field] not in ("", FITS) else []
    if "empty_rows" not in given:
        spec, notes["empty_rows"] = _with_empty_rows(fn, spec)
        doubtful += ["empty_rows"] if notes["empty_rows"] else []
    if "zero_keys" not in given and spec.cross:
        there = replace(spec, zero_keys=True)
        if fits(fn, there, replace(case, N_k=0), "empty_rows"):
            spec = there
            notes["zero_keys"] = FITS
            if backward is not None and broken_by(
                Subject(fn, there, backward), replace(case, N_k=0), "gradients"
            ):
                spec = replace(spec, zero_keys="forward")
                notes["zero_keys"] = "not by its backward function"
                doubtful.append("zero_keys")
    if "strides" not in given and fits(fn, spec):
        spec = _with_strides(fn, spec)
        notes["strides"] = "" if spec.strides == "any" else "others gave wrong answers, or an error"
    if "unchecked" not in given and (left := at_their_defaults(Subject(fn, spec))):
        spec = replace(spec, unchecked=tuple(each.partition(" ")[0] for each in left))
        notes["unchecked"] = f"only the default of {', '.join(left)} is tried"
        doubtful.append("unchecked")
    return Inferred(spec, {name: note for name, note in notes.items() if note}, doubtful)


def _with_strides(fn: Callable[..., Any], spec: Spec) -> Spec:
    for taken, tried in (("any", ("mixed", "columns")), ("last_contiguous", ("mixed",))):
        there = replace(spec, strides=taken)
        if all(fits(fn, there, replace(plain(there), strides=strides)) for strides in tried):
            return there
    return replace(spec, strides="contiguous")


def _with_feature(fn: Callable[..., Any], spec: Spec, feature: Feature) -> tuple[Spec, str]:
    """Return the spec with a feature declared, if a call with it fits or its parameter is there,
    and how that was found.
    """
    if feature.field == "d_v" and spec.head_dims:
        return spec, ""
    declared = [replace(spec, **{feature.field: value}) for value in feature.values]
    for there in declared:
        if fits(fn, there, feature.put_into(plain(there))):
            return there, FITS
    keyword = feature.keyword
    named = parameters(fn)
    if keyword in named:
        return declared[0], f"it has the parameter {keyword}, but a call with it is wrong"
    other = next((alias for alias in feature.aliases if alias in named), "")
    said = (
        f"not checked: the kit's name for {other} is {keyword}; wrap it in a function that takes "
        "that"
    )
    return spec, said if other else ""


def _with_empty_rows(fn: Callable[..., Any], spec: Spec) -> tuple[Spec, str]:
    case = (
        replace(plain(spec), mask="rows")
        if spec.masks
        else replace(plain(spec), N_q=7, N_k=5, causal=True)
    )
    if not spec.masks and (spec.causal != "bottom_right" or not spec.cross):
        return spec, ""
    gave = {"nan": "NaN", "mean": "the values' mean, as where masked scores are finite"}
    for value in ("zero", *gave):
        if fits(fn, replace(spec, empty_rows=value), case, "empty_rows"):
            return replace(
                spec, empty_rows=value
            ), f"a fully masked row gave {gave[value]}" if value in gave else ""
    return replace(
        spec, empty_rows="undefined"
    ), "a fully masked row gave neither 0, nor NaN, nor the values' mean"
