"""Features that failing cases have in common: for failures that no known bug explains."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.bug_models import FA
from flashsim.testing.case import Case
from flashsim.testing.diagnosis.experiments import STRIDES
from flashsim.testing.diagnosis.kernel_results import Suspicion
from flashsim.testing.spec import FP8, Spec

CAUSAL = (FA + "282", FA + "402", "NVIDIA/cutlass#2336")
TAIL = ("jax-ml/jax#27224", "NVIDIA/cutlass#2428")
MASKING = ("pytorch/pytorch#103963", FA + "2082")


class Feature(NamedTuple):
    """Something that a case may have.

    words    what it is called
    has      whether a case has it
    hint     what the bug may be if only such cases fail
    threads  public threads about such bugs
    """

    words: str
    has: Callable[[Case], bool]
    hint: str
    threads: tuple[str, ...] = ()


def _features(spec: Spec, cases: Sequence[Case]) -> list[Feature]:
    B_r, B_c = spec.block
    features = [
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
        for value in sorted(values):
            features.append(Feature(f"{name} {value}", partial(_has_value, name, value), hint))
    hints = {
        "massive": "overflow of the exponential",
        "negative": "a maximum or a sentinel that wins over low scores",
        "rising": "rescaling from block to block",
        "falling": "rescaling from block to block",
    }
    for regime in sorted({case.regime for case in cases}):
        hint = hints.get(regime, "its numbers")
        features.append(Feature(f"regime {regime}", partial(_has_value, "regime", regime), hint))
    return features


def _has_value(name: str, value: str, case: Case) -> bool:
    return str(getattr(case, name)) == value


def _by_shape(cases: Sequence[Case]) -> list[list[int]]:
    """Return the numbers of the cases, grouped by shape."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, case in enumerate(cases):
        shape = (case.B, case.H_kv, case.group, case.N_q, case.N_k, case.d, case.d_v)
        groups.setdefault(shape, []).append(number)
    return list(groups.values())


class Candidate(NamedTuple):
    """One or two features, and which cases have all of them."""

    features: tuple[Feature, ...]
    has: Array


def in_common(spec: Spec, verdicts: Sequence[tuple[Case, bool]]) -> list[Suspicion]:
    """Return one or two features that all failing cases have, and few passing ones; nothing if
    that may be chance.

    verdicts  the check's cases, with whether each passed
    """
    cases = [case for case, _ in verdicts]
    failed = np.array([not passed for _, passed in verdicts], bool)
    n_failed = int(failed.sum())
    n_passed = int((~failed).sum())
    if n_failed < 5 or n_passed < 5:
        return []
    best: Candidate | None = None
    least = math.inf
    by_shape = _by_shape(cases)
    for candidate in _candidates(_features(spec, cases), cases, failed):
        has = candidate.has
        passing = int(has[~failed].sum())
        more_features = len(candidate.features) - 1
        if _log_chance(candidate, failed, by_shape) >= math.log(0.01) or passing > n_passed / 2:
            continue
        penalty = passing + more_features * max(2, n_passed // 20)
        if penalty < least:
            best = candidate
            least = penalty
    if best is None:
        return []
    words = " and ".join(feature.words for feature in best.features)
    hints = ", or ".join(dict.fromkeys(feature.hint for feature in best.features))
    threads: dict[str, None] = {}
    for feature in best.features:
        threads |= dict.fromkeys(feature.threads)
    evidence = (
        f"fails in {n_failed} of {int(best.has.sum())} cases with {words}, and in 0 of "
        f"{int((~best.has).sum())} others"
    )
    return [Suspicion(f"It fails only with {words}: {hints}?", tuple(threads), evidence)]


def _candidates(
    features: Sequence[Feature], cases: Sequence[Case], failed: Array
) -> list[Candidate]:
    """Return the features, and pairs of them, that all failing cases have, but not all cases."""
    singles = []
    for feature in features:
        has = np.array([feature.has(case) for case in cases])
        if has[failed].all() and not has.all():
            singles.append(Candidate((feature,), has))
    pairs = []
    for first, second in combinations(singles, 2):
        pairs.append(Candidate(first.features + second.features, first.has & second.has))
    return singles + pairs


def _log_chance(candidate: Candidate, failed: Array, by_shape: Sequence[list[int]]) -> float:
    """Return the logarithm of the probability that all failing cases have the features by
    chance.
    """
    has = candidate.has
    draws = int(failed.sum())
    share = float(has.mean())
    depends_on_shape = all(has[same].all() or not has[same].any() for same in by_shape)
    if depends_on_shape:  # few shapes are drawn, each of them often
        draws = sum(bool(failed[same].any()) for same in by_shape)
        share = float(np.mean([has[same[0]] for same in by_shape]))
    choices = len(candidate.features) * math.log(40)  # of some 40 features
    return draws * math.log(max(share, 1e-9)) + choices
