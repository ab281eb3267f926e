"""What the failing cases have in common, if no known bug fits."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.case import Case
from flashsim.testing.diagnosis.exhibits import Suspicion
from flashsim.testing.diagnosis.experiments import STRIDES
from flashsim.testing.spec import FP8, Spec
from flashsim.testing.suspects import FA

CAUSAL = (FA + "282", FA + "402", "NVIDIA/cutlass#2336")
TAIL = ("jax-ml/jax#27224", "NVIDIA/cutlass#2428")
MASKING = ("pytorch/pytorch#103963", FA + "2082")


class Feature(NamedTuple):
    """Something that a case may have, and what it hints at."""

    words: str
    has: Callable[[Case], bool]
    hint: str
    threads: tuple[str, ...] = ()


def _features(spec: Spec, cases: Sequence[Case]) -> list[Feature]:
    B_r, B_c = spec.block
    found = [
        Feature(
            "N_k = 0",
            lambda c: c.N_k == 0,
            "no keys at all",
            (FA + "1155", FA + "2470", "deepseek-ai/FlashMLA#11"),
        ),
        Feature("causal", lambda c: c.causal, "causal masking", CAUSAL),
        Feature("a mask", lambda c: c.mask is not None, "masking", MASKING),
        Feature(
            "a window",
            lambda c: c.window is not None,
            "the window's ends",
            ("zml/zml#763", "ml-explore/mlx-lm#390"),
        ),
        Feature("a bias", lambda c: c.bias is not None, "the bias"),
        Feature(
            "a soft cap",
            lambda c: c.softcap is not None,
            "the cap, or its place before the mask",
            (FA + "1025",),
        ),
        Feature("slopes", lambda c: c.alibi, "where positions are counted from"),
        Feature(
            "a sink",
            lambda c: c.sink is not None,
            "the sink, or how often it counts",
            ("ROCm/rocm-libraries#12227",),
        ),
        Feature(
            "H_q > H_kv",
            lambda c: c.group > 1,
            "head mapping",
            ("ekzhang/jax-js#180", "onnx/onnx#7274"),
        ),
        Feature(
            "N_q ≠ N_k",
            lambda c: c.N_q != c.N_k,
            "alignment or sizes of queries and keys mixed up",
            CAUSAL,
        ),
        Feature("N_q > N_k", lambda c: c.N_q > c.N_k, "rows before the first key", CAUSAL),
        Feature("N_q = 1", lambda c: c.N_q == 1, "a single query", ()),
        Feature("B > 1", lambda c: c.B > 1, "the batch's offset", ()),
        Feature("H_kv > 1", lambda c: c.H_kv > 1, "the head's offset", ()),
        Feature(
            f"N_k not a multiple of {B_c}",
            lambda c: c.N_k % B_c != 0,
            "the tail of the last block",
            TAIL,
        ),
        Feature(
            f"N_q not a multiple of {B_r}",
            lambda c: c.N_q % B_r != 0,
            "the tail of the last rows",
            TAIL,
        ),
        Feature(
            f"N_k > {B_c}",
            lambda c: c.N_k > B_c,
            "rescaling from block to block",
            ("deepseek-ai/FlashMLA#177",),
        ),
        Feature(f"N_q > {B_r}", lambda c: c.N_q > B_r, "the second block of rows", ()),
        Feature("N_k > 256", lambda c: c.N_k > 256, "sums over long rows", ("sonos/tract#2586",)),
        Feature("N_q > 256", lambda c: c.N_q > 256, "many rows", ()),
        Feature(
            "arrays that are not contiguous",
            lambda c: c.strides != "contiguous",
            "strides ignored",
            STRIDES,
        ),
        Feature(
            "8-bit inputs", lambda c: c.dtype in FP8, "scales, or saturated weights", (FA + "2577",)
        ),
        Feature(
            "16-bit inputs",
            lambda c: c.dtype in ("float16", "bfloat16"),
            "sums kept in 16 bits",
            ("sonos/tract#2586",),
        ),
        Feature(
            "d_v ≠ d",
            lambda c: c.d_v not in (None, c.d),
            "a width mixed up",
            ("tenstorrent/tt-metal#42891",),
        ),
        Feature(
            "`scale` given",
            lambda c: c.scale is not None,
            "the scale",
            ("huggingface/transformers#38290",),
        ),
        Feature(
            "dropout",
            lambda c: c.dropout_p > 0,
            "dropout",
            ("aws-neuron/nki-samples#81", "NVIDIA/apex#816"),
        ),
    ]
    for name, hint in (
        ("dtype", "one dtype"),
        ("mask", "one kind of mask"),
        ("strides", "one layout in memory"),
    ):
        values = {str(getattr(case, name)) for case in cases} - {"None", "contiguous"}
        found += [Feature(f"{name} {value}", _is(name, value), hint) for value in sorted(values)]
    hints = {
        "massive": "overflow of the exponential",
        "negative": "a maximum or a sentinel that wins over low scores",
        "rising": "rescaling from block to block",
        "falling": "rescaling from block to block",
    }
    regimes = sorted({case.regime for case in cases})
    return found + [
        Feature(f"regime {r}", _is("regime", r), hints.get(r, "its numbers")) for r in regimes
    ]


def _is(name: str, value: str) -> Callable[[Case], bool]:
    return lambda case: str(getattr(case, name)) == value


def _by_shape(cases: Sequence[Case]) -> list[list[int]]:
    """Return the numbers of the cases, grouped by shape."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, case in enumerate(cases):
        found.setdefault(
            (case.B, case.H_kv, case.group, case.N_q, case.N_k, case.d, case.d_v), []
        ).append(number)
    return list(found.values())


def in_common(spec: Spec, verdicts: Sequence[tuple[Case, bool]]) -> list[Suspicion]:
    """Return one or two features that all failing cases have and few others, unless that may be
    an accident.
    """
    cases = [case for case, _ in verdicts]
    failed = np.array([not passed for _, passed in verdicts], bool)
    n_failed = int(failed.sum())
    n_passed = int((~failed).sum())
    if n_failed < 5 or n_passed < 5:
        return []
    features = _features(spec, cases)
    rows: list[tuple[tuple[Feature, ...], Array]] = []
    for feature in features:
        has = np.array([feature.has(case) for case in cases])
        if has[failed].all() and not has.all():
            rows.append(((feature,), has))
    rows += [((*one, *other), a & b) for (one, a), (other, b) in combinations(rows, 2)]
    telling = []
    by_shape = _by_shape(cases)
    for features_, has in rows:
        passing = int(has[~failed].sum())
        of = n_failed
        share = has.mean()
        by_shape_alone = all(has[same].all() or not has[same].any() for same in by_shape)
        if by_shape_alone:  # few shapes are drawn, each of them often
            of = sum(bool(failed[same].any()) for same in by_shape)
            share = np.mean([has[same[0]] for same in by_shape])
        # the logarithm of the chance that it is an accident
        chance = of * math.log(max(share, 1e-9)) + len(features_) * math.log(40)
        if chance < math.log(0.01) and passing <= n_passed / 2:
            telling.append(
                (passing + (len(features_) - 1) * max(2, n_passed // 20), features_, has)
            )
    if not telling:
        return []
    _, chosen, has = min(telling, key=lambda t: t[0])
    words = " and ".join(f.words for f in chosen)
    hints = ", or ".join(dict.fromkeys(f.hint for f in chosen))
    threads = tuple(dict.fromkeys(thread for f in chosen for thread in f.threads))
    evidence = (
        f"fails in {n_failed} of {int(has.sum())} cases with {words}, and in 0 of "
        f"{int((~has).sum())} others"
    )
    return [Suspicion(f"It fails only with {words}: {hints}?", threads, evidence)]
