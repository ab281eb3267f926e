"""`Mismatch`: a difference between a kernel's spec and its first calls. It is reported once,
instead of in every case.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.kernel import Broken, Kernel, OutsidePool
from flashsim.testing.probe import (
    FEATURES,
    Feature,
    broken_by,
    fits,
    other_specs,
    parameters,
    plain,
    smallest,
)
from flashsim.testing.spec import Spec
from flashsim.testing.wrapping import Wrapped

# a word in an error's text, and the package whose arrays the kernel takes
PACKAGES = {"ensor": "torch", "torch": "torch", "jax": "jax", "cupy": "cupy"}


@dataclass(frozen=True)
class Mismatch:
    """A difference between a kernel's spec and its first calls.

    says     what happened, in a sentence
    changes  fields of a spec that fits, empty if the kit knows none
    stops    whether no call fits the spec, so that nothing can be checked
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
    """Return changes to a spec as options of the command line, and in Python."""
    python = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    options = " ".join(flag(name, value) for name, value in changes.items())
    return f"{options}, or in Python Spec({python})"


def flag(name: str, value: Any) -> str:
    """Return a spec's field as an option of the command line."""
    option = name.replace("_", "-")
    if value is None:
        return f"no --{option}"
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if isinstance(value, tuple):
        return f"--{option} {' '.join(map(str, value))}"
    return f"--{option} {value}"


def mismatches(kernel: Kernel) -> list[Mismatch]:
    """Make one call for each feature that the spec declares, and return the differences; mostly
    there are none.

    A bug that needs a certain shape is not a mismatch: if the smallest call succeeds, the check-up
    continues, and finds that bug.
    """
    case = plain(kernel.spec)
    failures = {}
    for dtype in kernel.spec.dtypes:
        failures[dtype] = broken_by(kernel, replace(case, dtype=dtype))
    accepted = tuple(dtype for dtype, failure in failures.items() if not failure)
    if not accepted:
        mismatch = _of_plain_call(kernel, case, failures[case.dtype])
        return [] if mismatch is None else [mismatch]
    differences = []
    for dtype, failure in failures.items():
        if failure and broken_by(kernel, smallest(replace(case, dtype=dtype), kernel.spec)):
            says = f"It does not take {dtype}: it {failure}"
            differences.append(Mismatch(says, {"dtypes": accepted}))
    return [*differences, *_of_features(kernel, replace(case, dtype=accepted[0]))]


def _of_plain_call(kernel: Kernel, case: Case, failure: str) -> Mismatch | None:
    """Say why a plain call fails: another spec fits, or no call succeeds. Return None if the
    smallest call succeeds.
    """
    spec = kernel.spec
    for changes in other_specs(spec):
        if fits(kernel.fn, replace(spec, **changes)):
            return Mismatch(_say_what_fits(changes, failure), changes, stops=True)
    # right numbers or not, it may return one array instead of two, or two instead of one
    for lse in {None, "natural"} - {spec.lse}:
        if not broken_by(replace(kernel, spec=replace(spec, lse=lse)), case):
            return Mismatch(_say_what_fits({"lse": lse}, failure), {"lse": lse}, stops=True)
    if not broken_by(kernel, smallest(case, kernel.spec)):
        return None
    q = (case.B, case.H_kv, case.N_q, case.d)
    k = (case.B, case.H_kv, case.N_k, case.d)
    says = (
        f"No call succeeds. With NumPy arrays q {q} and k, v {k} of {case.dtype} (B, H, N, d) it "
        f"{failure.rstrip('.')}{_advice(kernel, failure)}"
    )
    return Mismatch(says, stops=True)


def _advice(kernel: Kernel, failure: str) -> str:
    """Return how to call a kernel that no call fits, a sentence after ". ", or ""."""
    if parameters(kernel.fn)[:2] == ("hbm", "sram"):
        return (
            ". It is written on flashsim's memory: flashsim run --algorithm FILE.py:NAME compares "
            "it with naive attention"
        )
    if isinstance(kernel.fn, Wrapped):
        return ""
    for word, package in PACKAGES.items():
        if word in failure:
            return (
                f". If it takes {package} arrays, give --wrap {package}, or in Python "
                f"wrap(fn, {package!r})"
            )
    if "'numpy.ndarray' object has no attribute" in failure:
        packages = " or ".join(dict.fromkeys(PACKAGES.values()))
        return f". If it takes another package's arrays, give --wrap {packages}"
    return ""


def _say_what_fits(changes: Mapping[str, Any], failure: str) -> str:
    """Return a sentence about the spec that fits and, unless it is clear, how the call failed."""
    text = " and ".join(_say_field(name, value) for name, value in changes.items())
    sentence = text[0].upper() + text[1:]
    if set(changes) == {"lse"}:
        return sentence
    return f"{sentence}. Called as its spec says, it {failure}"


def _say_field(name: str, value: Any) -> str:
    """Return what a kernel does whose spec has this value in this field."""
    if name == "lse":
        return "it returns O alone" if value is None else "it returns two arrays, (O, lse)"
    if name == "layout":
        return f"its arrays are ({', '.join(value[:3])}, d)"
    if name == "cross":
        return "it takes only N_q = N_k"
    if name == "multiples":
        return f"it takes only lengths that are multiples of {value[0]}"
    return f"it takes {name} {', '.join(map(str, value))}"  # dtypes, head_dims


def _of_features(kernel: Kernel, case: Case) -> Iterator[Mismatch]:
    spec = kernel.spec
    for feature in FEATURES:
        if not getattr(spec, feature.field) or (feature.field == "d_v" and spec.head_dims):
            continue
        if mismatch := _of_feature(kernel, case, feature):
            yield mismatch
    no_keys = replace(case, N_k=0)
    if spec.zero_keys and spec.cross and (failure := broken_by(kernel, no_keys)):
        yield Mismatch(f"It does not take N_k = 0: it {failure}", {"zero_keys": False})
    if mismatch := _of_strides(kernel, case):
        yield mismatch
    if kernel.back is None:
        return
    if failure := _failure_of_kind(kernel, case, "gradients"):
        yield Mismatch(f"Its backward function fails: it {failure}", {"backward": None})
        return
    if spec.zero_keys is not True or not spec.cross:
        return
    if failure := broken_by(kernel, no_keys, "gradients"):
        says = f"Its backward function does not take N_k = 0: it {failure}"
        yield Mismatch(says, {"zero_keys": "forward"})


def _of_strides(kernel: Kernel, case: Case) -> Mismatch | None:
    """Return the strides that a kernel does not take, though the spec says so."""
    kinds = [("mixed", "contiguous"), ("columns", "last_contiguous")]
    if kernel.spec.strides == "contiguous":
        return None
    if kernel.spec.strides == "last_contiguous":
        kinds = kinds[:1]
    for strides, needed in kinds:
        if failure := _failure_of_kind(kernel, replace(case, strides=strides)):
            words = needed.replace("_", " ")
            says = f"It does not take arrays that are not {words}: it {failure}"
            return Mismatch(says, {"strides": needed})
    return None


def _failure_of_kind(kernel: Kernel, case: Case, *checks: str) -> str:
    """Return how a call fails, or "" if the smallest call of its kind succeeds."""
    failure = broken_by(kernel, case, *checks)
    if failure and broken_by(kernel, smallest(case, kernel.spec), *checks):
        return failure
    return ""


def _of_feature(kernel: Kernel, case: Case, feature: Feature) -> Mismatch | None:
    """Return how a feature does not fit: the call fails, perhaps because the keyword has another
    name, or the keyword changes nothing.
    """
    with_feature = feature.put_into(case)
    without = {feature.field: getattr(Spec(), feature.field)}
    if failure := _failure_of_kind(kernel, with_feature):
        says = f"It does not take {feature.words}: it {failure}"
        names = parameters(kernel.fn)
        for alias in feature.aliases:
            if alias in names:
                says += f". Its name for it is {alias}, and the kit's is {feature.keyword}"
                break
        return Mismatch(says, without)
    problem = with_feature.problem(kernel.spec)
    plain_problem = case.problem(kernel.spec)
    if not feature.keyword or case.N_k < 2:
        return None
    if np.array_equal(problem.solution.O, plain_problem.solution.O):
        return None
    try:
        O = kernel.forward(problem).O
        plain_O = kernel.forward(plain_problem).O
    except (Broken, OutsidePool):
        return None
    if not np.array_equal(O, plain_O):
        return None
    says = f"It ignores {feature.words}: its answer has the same bits with it and without"
    return Mismatch(says, without)
