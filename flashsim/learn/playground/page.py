"""The playground's page: one file that loads nothing, under the same policy as the player's."""

import html
import json
from functools import partial
from typing import Any

from flashsim.algorithms import PASSES
from flashsim.algorithms.record import Algorithm
from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.learn.playground.javascript import Script, expression, traced
from flashsim.theory import exact, form_of
from flashsim.theory.form import Form
from flashsim.theory.formulas import common_symbols
from flashsim.theory.live import _clipped
from flashsim.theory.measured import A100_M, FACTOR
from flashsim.tracing.page import fill, minify, policy, read
from flashsim.tracing.typeset import named, typeset

OUTER = {"K": "columns", "Q": "rows"}
FIRST = ("flash", "q_outer", "standard")
"""The algorithms that the list begins with; Algorithm 1 moves what Algorithm 2 does, and so do
others that are left out.
"""


SHARE = A100_M / REFERENCE_D**2
STEPS = 26
"""M/d² of the paper's Figure 2, an A100's 192 KB of float16 at d = 64; and the steps of the
slider that ends there.
"""


def page() -> str:
    """Return the page."""
    passes = [(algorithm, form_of(algorithm.name, algorithm.direction)) for algorithm in _shown()]
    css = f"\n{read('typeset.css')}{_read('playground.css')}\n"
    js = (
        "\n"
        f"{minify(script(passes) + read('magnify.js') + read('elements.js') + _read('playground.js'))}\n"  # noqa: E501
    )
    parts = {
        "css": css,
        "js": js,
        "policy": policy(css, js),
        "algorithms": _choices(passes),
        "steps": str(STEPS),
        "typeset": _symbols(passes),
    }
    return fill(_read("playground.html"), parts)


def _shown() -> list[Algorithm]:
    """Return the passes without an option or a symbol of their own, each closed form once, in
    the order of the list.
    """
    found: list[Algorithm] = []
    for passes in PASSES.values():
        seen = set()
        for algorithm in sorted(
            passes.values(), key=lambda a: (*(a.name != name for name in FIRST), a.name)
        ):
            form = form_of(algorithm.name, algorithm.direction)
            moves = tuple(sorted(form.formulas.items())), form.peak, _skips(form)
            if (
                moves not in seen
                and form.symbols is None
                and all(option.name != "window" for option in form.options)
            ):
                seen.add(moves)
                found.append(algorithm)
    return found


def _skips(form: Form) -> bool:
    """Say whether it leaves out empty tiles: always, or with block_mask="live", as here."""
    return form.live or any(option.name == "block_mask" for option in form.options)


def _masking(form: Form) -> dict[str, tuple[int, int]]:
    """Return by array how many more N_q × N_k reads and writes there are with a mask that
    positions decide.
    """
    sizes: dict[str, Any] = {
        "N_q": 5,
        "N_k": 7,
        "d": 2,
        "M": 64,
        "blocks": (5, 7),
        "direction": form.direction,
    }
    plain, masked = (exact(form, **sizes, causal=causal).hbm.by_array for causal in (False, True))
    more = {
        name: (a.reads - plain[name].reads, a.writes - plain[name].writes)
        for name, a in masked.items()
    }
    return {
        name: (reads // 35, writes // 35)
        for name, (reads, writes) in more.items()
        if reads or writes
    }


def script(passes: list[tuple[Algorithm, Form]]) -> str:
    """Return the closed forms of these passes as JavaScript: `FORMS`, and `symbolsOf`."""
    translated = Script()
    entries = []
    for algorithm, form in passes:
        options = {option.name: option.default for option in form.options}
        functions = {
            name: translated.of(getattr(form, name), options) for name in ("line_1", "rows", "peak")
        }
        arrays = ", ".join(
            f"{name}: [(s) => {expression(reads, 's')}, (s) => {expression(writes, 's')}]"
            for name, (reads, writes) in form.formulas.items()
        )
        live = traced(form).items() if _skips(form) else ()
        skipping = ", ".join(
            f"{name}: [(s) => {reads}, (s) => {writes}]" for name, (reads, writes) in live
        )
        masking = ", ".join(
            f"{name}: [{reads}n, {writes}n]" for name, (reads, writes) in _masking(form).items()
        )
        about = json.dumps(
            {
                "name": form.name,
                "direction": form.direction,
                "outer": "columns"
                if form.name == "block_sparse"
                else OUTER.get((algorithm.loops or "")[:1], ""),
                "skips": _skips(form),
                "texts": {
                    name: [text.replace(" * ", " · ") for text in pair]
                    for name, pair in form.formulas.items()
                },
            },
            ensure_ascii=False,
        )[1:-1]
        called = ", ".join(f"{k}: {v}" for k, v in functions.items())
        own = f"arrays: {{{arrays}}}, live: {{{skipping}}}, masking: {{{masking}}}"
        entries.append(f"{{{about}, {own}, {called}}}")
    name = translated.of(common_symbols)
    clipped = translated.of(_clipped)
    listed = ",\n  ".join(entries)
    M = check_M(None, float_dtype(DEFAULT_DTYPE).itemsize)
    reference = {"N_q": REFERENCE_N, "N_k": REFERENCE_N, "d": REFERENCE_D, "M": M}
    sizes = ", ".join(f"{size}: {value}n" for size, value in reference.items())
    measured = (
        "the paper’s Figure 2, an A100’s 192 KB of float16: with mask, dropout and backward pass "
        "it measured"
    )
    figure = json.dumps(
        {"share": SHARE, "steps": STEPS, "said": f"{measured} {FACTOR:.1f} times."},
        ensure_ascii=False,
    )
    given = f"const REFERENCE = {{ {sizes} }}, FIGURE_2 = {figure};"
    constants = (
        f"{given}\nconst symbolsOf = {name}, clippedSum = {clipped};\nconst FORMS = [\n  "
        f"{listed},\n];"
    )
    return f'"use strict";\n{_read("runtime.js")}\n{translated.text}\n{constants}'


def _choices(passes: list[tuple[Algorithm, Form]]) -> str:
    groups: dict[str, list[str]] = {}
    for number, (algorithm, _) in enumerate(passes):
        loops = f": {algorithm.loops}" if algorithm.loops and algorithm.name in FIRST[:2] else ""
        loops = ": no empty tile" if algorithm.name == "block_sparse" else loops
        option = f'<option value="{number}">{html.escape(algorithm.title + loops)}</option>'
        groups.setdefault(algorithm.direction, []).append(option)
    return "".join(
        f'<optgroup label="{name}">{"".join(options)}</optgroup>'
        for name, options in groups.items()
    )


def _symbols(passes: list[tuple[Algorithm, Form]]) -> str:
    texts = {name: named(name) for _, form in passes for name in form.formulas}
    for _, form in passes:
        for formula in (
            text.replace(" * ", " · ") for pair in form.formulas.values() for text in pair
        ):
            texts[formula] = typeset(formula)
    return "".join(
        f'<span data-text="{html.escape(text)}">{set_}</span>' for text, set_ in texts.items()
    )


_read = partial(read, package="flashsim.learn.playground")
