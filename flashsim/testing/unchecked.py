"""A kernel's parameters that no check tries, because its spec does not declare them, or no spec
can.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flashsim.testing.kernel import Kernel
from flashsim.testing.mismatches import flag
from flashsim.testing.probe import FEATURES, fits, parameters, plain
from flashsim.testing.problem import DESCALES
from flashsim.testing.wrapping import Wrapped

# Names of parameters that the kit never gives, and what to do about them.
NOT_IN_SPECS: Mapping[tuple[str, ...], str] = {
    (
        "cu_seqlens",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "cu_seqlens_kv",
        "max_seqlen_q",
        "max_seqlen_k",
        "seqused_k",
    ): ("sequences packed in one row: give varlen(your_kernel), of flashsim.testing"),
    (
        "block_table",
        "block_tables",
        "page_table",
        "cache_seqlens",
        "k_cache",
        "v_cache",
        "kv_indices",
    ): ("paged caches: give paged(your_kernel), of flashsim.testing"),
    (
        "segment_ids",
        "q_segment_ids",
        "document_ids",
    ): "segments: wrap your kernel in a function that takes mask=",
    ("score_mod", "mask_mod", "block_mask"): "functions of positions, as in FlexAttention",
    ("qv", "kv_lora_rank"): "latents (MLA): give mla(your_kernel), of flashsim.testing",
}


def undeclared(kernel: Kernel) -> dict[str, tuple[Any, ...]]:
    """Return keywords of the kit that the function has and the spec does not declare, each with
    the values of the spec's field with which a call is right.
    """
    names = _open_parameters(kernel.fn)
    spec = kernel.spec
    keywords = {}
    for feature in FEATURES:
        keyword = feature.keyword
        declared = getattr(spec, feature.field)
        if keyword not in names or keyword in spec.unchecked or declared:
            continue
        right = []
        for value in feature.values:
            with_feature = replace(spec, **{feature.field: value})
            if fits(kernel.fn, with_feature, feature.put_into(plain(with_feature))):
                right.append(value)
        keywords[keyword] = tuple(right)
    return keywords


def at_their_defaults(kernel: Kernel) -> list[str]:
    """Return the other parameters, which the kit never gives. In parentheses after each is the
    kit's name for it, if there is one.
    """
    tried = {feature.keyword for feature in FEATURES} | set(kernel.spec.unchecked)
    if kernel.spec.scales:
        tried |= set(DESCALES)
    if kernel.keep_mask is not None:
        tried |= {"dropout_p", "seed"}
    remarks = {}
    for feature in FEATURES:
        for alias in feature.aliases:
            remarks[alias] = f" (the kit's name is {feature.keyword})"
    for names in NOT_IN_SPECS:
        for name in names:
            remarks[name] = " (no spec can declare it, see flashsim check --list)"
    defaulted = []
    for name in _open_parameters(kernel.fn)[3:]:  # after q, k, v
        if name not in tried:
            defaulted.append(f"{name}{remarks.get(name, '')}")
    return defaulted


def _open_parameters(fn: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters that no functools.partial binds."""
    inner = fn.fn if isinstance(fn, Wrapped) else fn
    bound = inner.keywords if isinstance(inner, partial) else {}
    return [name for name in parameters(fn) if name not in bound]


def incomplete(name: str, keywords: Mapping[str, Sequence[Any]], defaulted: Sequence[str]) -> str:
    """Return sentences about what no check tried, and which options would; "" if everything was
    tried.
    """
    sentences = []
    if keywords:
        pronoun = "it" if len(keywords) == 1 else "them"
        sentences.append(
            f"{name} takes {_with_signs(keywords)}, and the spec does not declare {pronoun}."
        )
        wrong = [keyword for keyword, values in keywords.items() if not values]
        if wrong:
            sentences.append(f"A call with {_with_signs(wrong)} gives a wrong answer, or fails.")
        sentences.append(f"Give {_to_declare(keywords)}.")
    if defaulted:
        sentences.append(f"Only the default of {', '.join(defaulted)} is tried.")
    if not sentences:
        return ""
    names = (*keywords, *(text.partition(" ")[0] for text in defaulted))
    options = f"give --unchecked {' '.join(names)}, or in Python Spec(unchecked={names!r})"
    sentences.append(f"If they stay at their defaults on purpose, {options}.")
    return f"INCOMPLETE: {' '.join(sentences)}"


def _with_signs(keywords: Iterable[str]) -> str:
    return ", ".join(f"{keyword}=" for keyword in keywords)


def _to_declare(keywords: Mapping[str, Sequence[Any]]) -> str:
    """Return the options that declare keywords, on the command line and in Python."""
    options = []
    arguments = []
    for feature in FEATURES:
        if feature.keyword in keywords:
            values = keywords[feature.keyword] or feature.values
            alternatives = [flag(feature.field, values[0]), *map(str, values[1:])]
            options.append(" or ".join(alternatives))
            arguments.append(f"{feature.field}={values[0]!r}")
    return f"{' '.join(options)}, or in Python Spec({', '.join(arguments)})"


def without_words() -> str:
    """Return what a spec cannot declare, a line each, as text."""
    lines = ["No spec can declare these, and no check tries them:"]
    for names, advice in NOT_IN_SPECS.items():
        more = ", …" if len(names) > 1 else ""
        lines.append(f"  {names[0]}{more}: {advice}")
    return "\n".join(lines)
