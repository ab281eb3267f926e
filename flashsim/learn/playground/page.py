"""The playground's page: one file that loads nothing. Its content policy is that of the player."""

import html
import json
from functools import partial
from typing import Any

from flashsim.algorithms import PASSES
from flashsim.algorithms.record import Algorithm
from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.learn.playground.javascript import Script, expression, formulas_of
from flashsim.theory import exact, form_of
from flashsim.theory.form import Form
from flashsim.theory.formulas import common_symbols
from flashsim.theory.live import _clipped
from flashsim.theory.measured import A100_M, FACTOR
from flashsim.tracing.page import fill, minify, policy, read
from flashsim.tracing.typeset import named, typeset

OUTER = {"K": "columns", "Q": "rows"}
FIRST = ("flash", "q_outer", "standard")
"""The first algorithms of the list. Algorithms with the same accesses are left out, such as
Algorithm 1, which has those of Algorithm 2.
"""

SHARE = A100_M / REFERENCE_D**2
"""M/d² of the paper's Figure 2: an A100's 192 KB of float16 at d = 64."""
STEPS = 26
"""Steps of the slider that ends there."""


def page() -> str:
    """Return the page."""
    passes = [
        (algorithm, form_of(algorithm.name, algorithm.direction)) for algorithm in _algorithms()
    ]
    css = f"\n{read('typeset.css')}{_read('playground.css')}\n"
    scripts = [script(passes), read("magnify.js"), read("elements.js"), _read("playground.js")]
    js = f"\n{minify(''.join(scripts))}\n"
    parts = {
        "css": css,
        "js": js,
        "policy": policy(css, js),
        "algorithms": _choices(passes),
        "steps": str(STEPS),
        "typeset": _symbols(passes),
    }
    return fill(_read("playground.html"), parts)


def _algorithms() -> list[Algorithm]:
    """Return the algorithms whose closed forms have neither a window nor symbols of their own, in
    the order of the list; of those with the same accesses, the first.
    """
    algorithms: list[Algorithm] = []
    for passes in PASSES.values():
        known = set()
        for algorithm in sorted(passes.values(), key=_place):
            form = form_of(algorithm.name, algorithm.direction)
            if form.symbols is not None or any(option.name == "window" for option in form.options):
                continue
            costs = (tuple(sorted(form.formulas.items())), form.peak, _skips(form))
            if costs not in known:
                known.add(costs)
                algorithms.append(algorithm)
    return algorithms


def _place(algorithm: Algorithm) -> tuple[bool | str, ...]:
    """Return a key that sorts algorithms: those of `FIRST`, then by name."""
    return *(algorithm.name != name for name in FIRST), algorithm.name


def _skips(form: Form) -> bool:
    """Return whether a form skips empty tiles: always, or with block_mask="live", as the page."""
    return form.live or any(option.name == "block_mask" for option in form.options)


def _masking(form: Form) -> dict[str, tuple[int, int]]:
    """Return by array how many more N_q × N_k reads and writes there are with a mask that depends
    on positions alone.
    """
    sizes: dict[str, Any] = {
        "N_q": 5,
        "N_k": 7,
        "d": 2,
        "M": 64,
        "blocks": (5, 7),
        "direction": form.direction,
    }
    plain = exact(form, **sizes, causal=False).hbm.by_array
    masked = exact(form, **sizes, causal=True).hbm.by_array
    scores = 5 * 7
    passes = {}
    for name, traffic in masked.items():
        reads = traffic.reads - plain[name].reads
        writes = traffic.writes - plain[name].writes
        if reads or writes:
            passes[name] = (reads // scores, writes // scores)
    return passes


def script(passes: list[tuple[Algorithm, Form]]) -> str:
    """Return the closed forms of these passes as JavaScript: `FORMS`, and `symbolsOf`."""
    functions = Script()
    entries = [_entry(algorithm, form, functions) for algorithm, form in passes]
    symbols = functions.of(common_symbols)
    clipped = functions.of(_clipped)
    M = check_M(None, float_dtype(DEFAULT_DTYPE).itemsize)
    reference = {"N_q": REFERENCE_N, "N_k": REFERENCE_N, "d": REFERENCE_D, "M": M}
    sizes = ", ".join(f"{size}: {value}n" for size, value in reference.items())
    measured = (
        "the paper’s Figure 2, an A100’s 192 KB of float16: with mask, dropout and backward pass "
        f"it measured {FACTOR:.1f} times."
    )
    figure = {"share": SHARE, "steps": STEPS, "measurement": measured}
    separator = ",\n  "
    lines = [
        '"use strict";',
        _read("runtime.js"),
        functions.text,
        f"const REFERENCE = {{ {sizes} }}, FIGURE_2 = {json.dumps(figure, ensure_ascii=False)};",
        f"const symbolsOf = {symbols}, clippedSum = {clipped};",
        f"const FORMS = [\n  {separator.join(entries)},\n];",
    ]
    return "\n".join(lines)


def _entry(algorithm: Algorithm, form: Form, functions: Script) -> str:
    """Return a closed form as an object of JavaScript. The functions that it calls are added to
    `functions`.
    """
    options = {option.name: option.default for option in form.options}
    methods = []
    for name in ("line_1", "rows", "peak"):
        methods.append(f"{name}: {functions.of(getattr(form, name), options)}")
    arrays = []
    texts = {}
    for name, (reads, writes) in form.formulas.items():
        formulas = f"[(s) => {expression(reads, 's')}, (s) => {expression(writes, 's')}]"
        arrays.append(f"{name}: {formulas}")
        texts[name] = [_with_dots(reads), _with_dots(writes)]
    live = []
    if _skips(form):
        for name, (reads, writes) in formulas_of(form).items():
            live.append(f"{name}: [(s) => {reads}, (s) => {writes}]")
    masking = []
    for name, (more_reads, more_writes) in _masking(form).items():
        masking.append(f"{name}: [{more_reads}n, {more_writes}n]")
    outer = OUTER.get((algorithm.loops or "")[:1], "")
    if form.name == "block_sparse":
        outer = "columns"
    about = {
        "name": form.name,
        "direction": form.direction,
        "outer": outer,
        "skips": _skips(form),
        "texts": texts,
    }
    fields = [
        json.dumps(about, ensure_ascii=False)[1:-1],
        f"arrays: {{{', '.join(arrays)}}}",
        f"live: {{{', '.join(live)}}}",
        f"masking: {{{', '.join(masking)}}}",
        *methods,
    ]
    return f"{{{', '.join(fields)}}}"


def _with_dots(formula: str) -> str:
    return formula.replace(" * ", " · ")


def _choices(passes: list[tuple[Algorithm, Form]]) -> str:
    groups: dict[str, list[str]] = {}
    for number, (algorithm, _) in enumerate(passes):
        remark = ""
        if algorithm.name == "block_sparse":
            remark = ": no empty tile"
        elif algorithm.loops and algorithm.name in FIRST[:2]:
            remark = f": {algorithm.loops}"
        option = f'<option value="{number}">{html.escape(algorithm.title + remark)}</option>'
        groups.setdefault(algorithm.direction, []).append(option)
    return "".join(
        f'<optgroup label="{name}">{"".join(options)}</optgroup>'
        for name, options in groups.items()
    )


def _symbols(passes: list[tuple[Algorithm, Form]]) -> str:
    texts = {}
    for _, form in passes:
        for name in form.formulas:
            texts[name] = named(name)
    for _, form in passes:
        for reads, writes in form.formulas.values():
            for formula in (_with_dots(reads), _with_dots(writes)):
                texts[formula] = typeset(formula)
    return "".join(
        f'<span data-text="{html.escape(text)}">{set_}</span>' for text, set_ in texts.items()
    )


_read = partial(read, package="flashsim.learn.playground")
