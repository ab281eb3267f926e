"""A kernel's parameters that no check tries, since its spec does not declare them, or no spec
can.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flashsim.testing.mismatches import flag
from flashsim.testing.probe import FEATURES, fits, parameters, plain
from flashsim.testing.problem import DESCALES
from flashsim.testing.subject import Subject
from flashsim.testing.wrapping import Wrapped

# Kernels' names for parameters that the kit never gives.
NO_WORD: Mapping[tuple[str, ...], str] = {
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


def undeclared(subject: Subject) -> dict[str, tuple[Any, ...]]:
    """Return keywords of the kit that the function has and the spec does not declare, each with
    the values that fit.
    """
    named = _open(subject.fn)
    spec = subject.spec
    found = {}
    for feature in FEATURES:
        field = feature.field
        keyword = feature.keyword
        if keyword not in named or keyword in spec.unchecked or getattr(spec, field):
            continue
        declared = {value: replace(spec, **{field: value}) for value in feature.values}
        found[keyword] = tuple(
            value
            for value, there in declared.items()
            if fits(subject.fn, there, feature.put_into(plain(there)))
        )
    return found


def at_their_defaults(subject: Subject) -> list[str]:
    """Return the other parameters, which the kit never gives, each with the kit's name for it if
    there is one.
    """
    given = {feature.keyword for feature in FEATURES} | set(subject.spec.unchecked)
    given |= set(DESCALES) if subject.spec.scales else set()
    given |= set() if subject.keep_mask is None else {"dropout_p", "seed"}
    ours = {
        alias: f" (the kit's name is {feature.keyword})"
        for feature in FEATURES
        for alias in feature.aliases
    }
    ours |= {
        name: " (no spec can declare it, see flashsim check --list)"
        for names in NO_WORD
        for name in names
    }
    return [f"{name}{ours.get(name, '')}" for name in _open(subject.fn)[3:] if name not in given]


def _open(fn: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters that no functools.partial gives."""
    inner = fn.fn if isinstance(fn, Wrapped) else fn
    bound = inner.keywords if isinstance(inner, partial) else {}
    return [name for name in parameters(fn) if name not in bound]


def incomplete(name: str, keywords: Mapping[str, Sequence[Any]], defaulted: Sequence[str]) -> str:
    """Say what no check tried, and which options would; "" if everything was tried."""
    said = []
    if keywords:
        them = "it" if len(keywords) == 1 else "them"
        said.append(f"{name} takes {_keywords(keywords)}, and the spec does not declare {them}.")
        if wrong := [keyword for keyword, values in keywords.items() if not values]:
            said.append(f"A call with {_keywords(wrong)} gives a wrong answer, or fails.")
        said.append(f"Give {_to_declare(keywords)}.")
    if defaulted:
        said.append(f"Only the default of {', '.join(defaulted)} is tried.")
    if said:
        left = (*keywords, *(each.partition(" ")[0] for each in defaulted))
        give = f"give --unchecked {' '.join(left)}, or in Python Spec(unchecked={left!r})"
        said.append(f"If they stay at their defaults on purpose, {give}.")
    return f"INCOMPLETE: {' '.join(said)}" if said else ""


def _keywords(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(f"{name}=" for name in names)


def _to_declare(keywords: Mapping[str, Sequence[Any]]) -> str:
    """Return how keywords are declared, on the command line and in Python."""
    given = [
        (each.field, keywords[each.keyword] or each.values)
        for each in FEATURES
        if each.keyword in keywords
    ]
    flags = (
        " or ".join([flag(field, values[0]), *map(str, values[1:])]) for field, values in given
    )
    python = ", ".join(f"{field}={values[0]!r}" for field, values in given)
    return f"{' '.join(flags)}, or in Python Spec({python})"


def without_words() -> str:
    """Return what a spec cannot declare, a line each, as text."""
    lines = [
        f"  {names[0]}{', …' if len(names) > 1 else ''}: {what}" for names, what in NO_WORD.items()
    ]
    return "\n".join(["No spec can declare these, and no check tries them:", *lines])
