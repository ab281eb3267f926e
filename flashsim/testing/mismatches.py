"""Differences between a kernel's spec and its first calls. They are reported once, instead of
for every case.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashsim.testing.case import Case
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
from flashsim.testing.subject import Broken, OutsidePool, Subject
from flashsim.testing.wrapping import Wrapped

# by a word in an error's text
PACKAGES = {"ensor": "torch", "torch": "torch", "jax": "jax", "cupy": "cupy"}


@dataclass(frozen=True)
class Mismatch:
    """A difference between a kernel's spec and its first calls.

    says     what happened, in a sentence
    changes  fields of the spec that would fit, empty if none was found
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
    """Return changes to a spec as they are given on the command line and in Python."""
    python = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return f"{' '.join(flag(*change) for change in changes.items())}, or in Python Spec({python})"


def flag(name: str, value: Any) -> str:
    """Return how a spec's field is given on the command line."""
    flag = name.replace("_", "-")
    if value is None:
        return f"no --{flag}"
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def mismatches(subject: Subject) -> list[Mismatch]:
    """Make one call for each thing that the spec declares, and return what does not fit; mostly
    nothing.

    A bug that needs a certain shape is not a mismatch. If the smallest call succeeds, the check-up
    goes on, and finds that bug.
    """
    case = plain(subject.spec)
    broken = {
        dtype: broken_by(subject, replace(case, dtype=dtype)) for dtype in subject.spec.dtypes
    }
    taken = [dtype for dtype, said in broken.items() if not said]
    if not taken:
        found = _explained(subject, case, broken[case.dtype])
        return [] if found is None else [found]
    refused = [
        Mismatch(f"It does not take {dtype}: it {said}", {"dtypes": tuple(taken)})
        for dtype, said in broken.items()
        if said and broken_by(subject, smallest(replace(case, dtype=dtype), subject.spec))
    ]
    return [*refused, *_of_features(subject, replace(case, dtype=taken[0]))]


def _explained(subject: Subject, case: Case, broken: str) -> Mismatch | None:
    """Say why an ordinary call fails: another spec fits, or no call succeeds. None if the
    smallest call succeeds.
    """
    spec = subject.spec
    for changes in other_specs(spec):
        if fits(subject.fn, replace(spec, **changes)):
            return Mismatch(_told(changes, broken), changes, stops=True)
    for lse in {None, "natural"} - {spec.lse}:  # whatever the numbers: one array or two
        if not broken_by(replace(subject, spec=replace(spec, lse=lse)), case):
            return Mismatch(_told({"lse": lse}, broken), {"lse": lse}, stops=True)
    if not broken_by(subject, smallest(case, subject.spec)):
        return None
    q = (case.B, case.H_kv, case.N_q, case.d)
    k = (case.B, case.H_kv, case.N_k, case.d)
    words = {} if isinstance(subject.fn, Wrapped) else PACKAGES
    package = next((name for word, name in words.items() if word in broken), "")
    give = (
        f". If it takes {package} arrays, give --wrap {package}, or in Python wrap(fn, {package!r})"
        if package
        else ""
    )
    if not package and words and "'numpy.ndarray' object has no attribute" in broken:
        give = (
            ". If it takes another package's arrays, give --wrap "
            f"{' or '.join(dict.fromkeys(words.values()))}"
        )
    if parameters(subject.fn)[:2] == ("hbm", "sram"):
        give = (
            ". It is written on flashsim's memory: flashsim run --algorithm FILE.py:NAME compares "
            "it with naive attention"
        )
    says = (
        f"No call succeeds. With NumPy arrays q {q} and k, v {k} of {case.dtype} (B, H, N, d) it "
        f"{broken.rstrip('.')}{give}"
    )
    return Mismatch(says, stops=True)


TOLD: dict[str, Callable[[Any], str]] = {  # what a kernel does, by the spec's field
    "lse": lambda value: (
        "it returns O alone" if value is None else "it returns two arrays, (O, lse)"
    ),
    "layout": lambda value: f"its arrays are ({', '.join(value[:3])}, d)",
    "dtypes": lambda value: f"it takes dtypes {', '.join(value)}",
    "head_dims": lambda value: f"it takes head_dims {', '.join(map(str, value))}",
    "cross": lambda _: "it takes only N_q = N_k",
    "multiples": lambda value: f"it takes only lengths that are multiples of {value[0]}",
}


def _told(changes: Mapping[str, Any], broken: str) -> str:
    """Say what a kernel does and, unless that is clear already, how the call failed."""
    said = " and ".join(TOLD[name](value) for name, value in changes.items())
    return (
        said[0].upper()
        + said[1:]
        + ("" if set(changes) == {"lse"} else f". Called as its spec says, it {broken}")
    )


def _of_features(subject: Subject, case: Case) -> Iterator[Mismatch]:
    spec = subject.spec
    for feature in FEATURES:
        tried = getattr(spec, feature.field) and not (feature.field == "d_v" and spec.head_dims)
        if tried and (found := _of_feature(subject, case, feature)):
            yield found
    if spec.zero_keys and spec.cross and (broken := broken_by(subject, replace(case, N_k=0))):
        yield Mismatch(f"It does not take N_k = 0: it {broken}", {"zero_keys": False})
    for strides, needed in (("mixed", "contiguous"), ("columns", "last_contiguous")):
        refused = spec.strides == "any" or (
            spec.strides == "last_contiguous" and strides == "mixed"
        )
        if refused and (broken := _both_broken(subject, replace(case, strides=strides))):
            yield Mismatch(
                f"It does not take arrays that are not {needed.replace('_', ' ')}: it {broken}",
                {"strides": needed},
            )
            break
    if subject.back is None:
        return
    if broken := _both_broken(subject, case, "gradients"):
        yield Mismatch(f"Its backward function fails: it {broken}", {"backward": None})
    elif (
        spec.zero_keys is True
        and spec.cross
        and (broken := broken_by(subject, replace(case, N_k=0), "gradients"))
    ):
        yield Mismatch(
            f"Its backward function does not take N_k = 0: it {broken}", {"zero_keys": "forward"}
        )


def _both_broken(subject: Subject, case: Case, *checks: str) -> str:
    """Return how a call goes wrong, or "" if the smallest call of its kind goes well."""
    broken = broken_by(subject, case, *checks)
    return broken if broken and broken_by(subject, smallest(case, subject.spec), *checks) else ""


def _of_feature(subject: Subject, case: Case, feature: Feature) -> Mismatch | None:
    """Say what is wrong with a feature: the call fails, perhaps by the keyword's name, or the
    keyword changes nothing.
    """
    with_it = feature.put_into(case)
    without = {feature.field: getattr(Spec(), feature.field)}
    if broken := _both_broken(subject, with_it):
        theirs = [name for name in feature.aliases if name in parameters(subject.fn)]
        named = (
            f". Its name for it is {theirs[0]}, and the kit's is {feature.keyword}"
            if theirs
            else ""
        )
        return Mismatch(f"It does not take {feature.words}: it {broken}{named}", without)
    one = with_it.problem(subject.spec)
    other = case.problem(subject.spec)
    if not feature.keyword or case.N_k < 2 or np.array_equal(one.solution.O, other.solution.O):
        return None
    try:
        same = np.array_equal(subject.forward(one).O, subject.forward(other).O)
    except (Broken, OutsidePool):
        return None
    said = f"It ignores {feature.words}: its answer has the same bits with it and without"
    return Mismatch(said, without) if same else None
