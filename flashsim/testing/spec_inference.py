"""`infer`: a spec that is made from calls of the kernel alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flashsim.attention.inputs import FLOATS
from flashsim.testing.case import Case
from flashsim.testing.kernel import Kernel
from flashsim.testing.mismatches import mismatches
from flashsim.testing.probe import (
    FEATURES,
    Feature,
    broken_by,
    exists,
    fits,
    other_specs,
    parameters,
    plain,
)
from flashsim.testing.spec import Spec
from flashsim.testing.unchecked import at_their_defaults

WIDTHS = (16, 32, 64, 128, 256)  # for which kernels are often written
FITS = "a call with it is right"


@dataclass(frozen=True)
class Inference:
    """A spec that was inferred.

    notes     for each field that was inferred: how, in a few words
    doubtful  the fields that somebody should look at again
    """

    spec: Spec
    notes: Mapping[str, str]
    doubtful: Sequence[str] = ()


def infer(
    fn: Callable[..., Any], start: Spec | None = None, backward: Callable[..., Any] | None = None
) -> Inference:
    """Return the spec that a kernel's results fit best. `start` is changed where it does not fit.

    If the kernel has a feature's parameter, but is wrong when it is used, the spec declares the
    feature nevertheless, so that the checks show it. Raises ValueError if no call succeeds.
    """
    inference = _Inference(fn, Spec() if start is None else start, backward)
    inference.infer_plain_call()
    inference.infer_convention()
    inference.infer_dtypes()
    inference.infer_head_dims()
    for feature in FEATURES:
        inference.infer_feature(feature)
    inference.infer_empty_rows()
    inference.infer_zero_keys()
    inference.infer_strides()
    inference.infer_unchecked()
    notes = {field: note for field, note in inference.notes.items() if note}
    return Inference(inference.spec, notes, inference.doubtful)


class _Inference:
    """A spec while it is being inferred. Each step sets some of its fields.

    fixed  the fields that the caller has set
    """

    def __init__(
        self, fn: Callable[..., Any], spec: Spec, backward: Callable[..., Any] | None
    ) -> None:
        self.fn = fn
        self.spec = spec
        self.backward = backward
        self.fixed = {f.name for f in fields(Spec) if getattr(spec, f.name) != f.default}
        self.notes: dict[str, str] = {}
        self.doubtful: list[str] = []

    def _fits(self, spec: Spec, case: Case | None = None, *checks: str) -> bool:
        return fits(self.fn, spec, case, *checks)

    def _kernel(self) -> Kernel:
        return Kernel(self.fn, self.spec)

    def infer_plain_call(self) -> None:
        """Set the basic fields, so that a plain call is right. Raises ValueError if no call
        succeeds.
        """
        if self._fits(self.spec):
            return
        for changes in other_specs(self.spec):
            if self._fits(replace(self.spec, **changes)):
                self._change(changes, "found by trying")
                return
        differences = mismatches(self._kernel())
        changes = {}
        if differences:
            first = differences[0]
            if first.stops and not first.changes:
                raise ValueError(f"{self._kernel().name}: {first.says}")
            changes = dict(first.changes)
        self.notes["dtypes"] = "no plain call gave the right numbers"
        self.doubtful.append("dtypes")
        self._change(changes, "found by trying")

    def _change(self, changes: Mapping[str, Any], note: str) -> None:
        self.spec = replace(self.spec, **changes)
        self.notes |= dict.fromkeys(changes, note)

    def infer_convention(self) -> None:
        """Change fields that the caller, or a convention, declared and the kernel does not take."""
        if not self.fixed:
            return
        for mismatch in mismatches(self._kernel()):
            changes = {}
            for field, value in mismatch.changes.items():
                if field in self.fixed and field not in self.notes:
                    changes[field] = value
            self._change(changes, mismatch.says)
            self.doubtful += changes

    def infer_dtypes(self) -> None:
        """Add the dtypes with which a plain call is right."""
        case = plain(self.spec)
        more = []
        for dtype in FLOATS:
            if dtype in self.spec.dtypes or not exists(dtype):
                continue
            if self._fits(self.spec, replace(case, dtype=dtype)):
                more.append(dtype)
        if more and "dtypes" not in self.fixed:
            self._change({"dtypes": (*self.spec.dtypes, *more)}, "each was tried")
        wrong = []  # the kernel returns a result, but not the right one
        for dtype in ("float32", "float64"):
            if dtype in self.spec.dtypes:
                continue
            if not broken_by(self._kernel(), replace(case, dtype=dtype)):
                wrong.append(dtype)
        if "dtypes" in self.notes and "dtypes" not in self.doubtful and wrong:
            self.notes["dtypes"] = f"each was tried; {', '.join(wrong)} gave no right answer"
            self.doubtful.append("dtypes")

    def infer_head_dims(self) -> None:
        """Set the head dimensions with which a plain call is right."""
        if self.spec.head_dims is None or "head_dims" in self.fixed:
            return
        right = tuple(d for d in WIDTHS if self._fits(replace(self.spec, head_dims=(d,))))
        note = f"of {', '.join(map(str, WIDTHS))} and 8 these were right"
        self._change({"head_dims": right}, note)

    def infer_feature(self, feature: Feature) -> None:
        """Declare a feature if a call with it is right, or if the kernel has its parameter."""
        field = feature.field
        if field in self.fixed:
            return
        self.notes[field] = ""
        if field == "d_v" and self.spec.head_dims:
            return
        for value in feature.values:
            spec = replace(self.spec, **{field: value})
            if self._fits(spec, feature.put_into(plain(spec))):
                self._change({field: value}, FITS)
                return
        keyword = feature.keyword
        names = parameters(self.fn)
        if keyword in names:
            note = f"it has the parameter {keyword}, but a call with it is wrong"
            self._change({field: feature.values[0]}, note)
            self.doubtful.append(field)
            return
        for alias in feature.aliases:
            if alias in names:
                self.notes[field] = (
                    f"not checked: the kit's name for {alias} is {keyword}; wrap it in a function "
                    "that takes that"
                )
                self.doubtful.append(field)
                return

    def infer_empty_rows(self) -> None:
        """Set what O is in an empty row."""
        if "empty_rows" in self.fixed:
            return
        self.notes["empty_rows"] = ""
        if self.spec.masks:
            case = replace(plain(self.spec), mask="rows")
        elif self.spec.causal == "bottom_right" and self.spec.cross:
            case = replace(plain(self.spec), N_q=7, N_k=5, causal=True)
        else:
            return
        notes = {
            "zero": "",
            "nan": "a fully masked row gave NaN",
            "mean": ("a fully masked row gave the values' mean, as where masked scores are finite"),
        }
        fitting = "undefined"
        note = "a fully masked row gave neither 0, nor NaN, nor the values' mean"
        for value in notes:
            if self._fits(replace(self.spec, empty_rows=value), case, "empty_rows"):
                fitting = value
                note = notes[value]
                break
        self._change({"empty_rows": fitting}, note)
        if note:
            self.doubtful.append("empty_rows")

    def infer_zero_keys(self) -> None:
        """Declare N_k = 0 if a call with it is right."""
        if "zero_keys" in self.fixed or not self.spec.cross:
            return
        case = replace(plain(self.spec), N_k=0)
        spec = replace(self.spec, zero_keys=True)
        if not self._fits(spec, case, "empty_rows"):
            return
        self._change({"zero_keys": True}, FITS)
        kernel = Kernel(self.fn, spec, self.backward)
        if self.backward is not None and broken_by(kernel, case, "gradients"):
            self._change({"zero_keys": "forward"}, "not by its backward function")
            self.doubtful.append("zero_keys")

    def infer_strides(self) -> None:
        """Set the strides with which a plain call is right."""
        if "strides" in self.fixed or not self._fits(self.spec):
            return
        note = "others gave wrong answers, or an error"
        if self._fits_with_strides("any", ("mixed", "columns")):
            self._change({"strides": "any"}, "")
        elif self._fits_with_strides("last_contiguous", ("mixed",)):
            self._change({"strides": "last_contiguous"}, note)
        else:
            self._change({"strides": "contiguous"}, note)

    def _fits_with_strides(self, strides: str, kinds: Sequence[str]) -> bool:
        spec = replace(self.spec, strides=strides)
        return all(self._fits(spec, replace(plain(spec), strides=kind)) for kind in kinds)

    def infer_unchecked(self) -> None:
        """List the parameters that only have their defaults."""
        if "unchecked" in self.fixed:
            return
        parameters_with_notes = at_their_defaults(self._kernel())
        if parameters_with_notes:
            names = tuple(text.partition(" ")[0] for text in parameters_with_notes)
            note = f"only the default of {', '.join(parameters_with_notes)} is tried"
            self._change({"unchecked": names}, note)
            self.doubtful.append("unchecked")
