"""The player's page: a trace, or two, with the script that plays them, in one file that loads
nothing.
"""

import base64
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from flashsim import theory
from flashsim.attention.inputs import DEFAULT_DTYPE, REFERENCE_D, REFERENCE_N, check_M, float_dtype
from flashsim.attention.masks.patterns import butterfly
from flashsim.tracing.data import MAXIMUM, STANDARD
from flashsim.tracing.lesson import Lesson
from flashsim.tracing.listing import label_of
from flashsim.tracing.spelled import spelled
from flashsim.tracing.steps import Recording, quantity
from flashsim.tracing.typeset import named, plain, typeset
from flashsim.tracing.writing import as_json, zipped

LARGEST_PAGE = 2_000_000  # bytes
MOST_STEPS = 2_000
SCRIPTS = (
    *("model", "alignment", "magnify", "elements", "pens", "formula"),
    *(
        "telling",
        "layout",
        "legend",
        "stage",
        "lanes",
        "sparks",
        "memory",
        "values",
        "view",
        "lesson",
        "controls",
    ),
)
ANY_LENGTH: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "block_mask butterfly": {"block_mask": butterfly},
}
"""Options, as a page says them, that name the same mask at any length."""
OF_STEPS = ("first", "last", "turn", "rows", "cols", "tile", "moved", "rescaled")
PHRASES = (
    "N_q",
    "N_k",
    "d",
    "d_v",
    "M",
    "B_r",
    "B_c",
    "T_r",
    "T_c",
    f"e^{{{MAXIMUM} − {MAXIMUM}_new}}",
)


def page_of(
    trace: Recording, versus: Recording | None = None, lesson: Lesson | None = None
) -> tuple[str, str]:
    """Return the page, and why values were left out of it, or "". ValueError for a lesson that
    goes beyond the last step.
    """
    traces = [trace] if versus is None else [trace, versus]
    steps = max(len(t.steps) for t in traces)
    if lesson is not None:
        stops = [moment.step for moment in lesson.moments] + [stop.step for stop in lesson.stops]
        if not all(0 <= step < steps for step in stops):
            raise ValueError(
                f"lesson has moments and stops {stops}; expected steps from 0 to {steps - 1}"
            )
    page = _page(traces, lesson)
    if steps > MOST_STEPS:
        reason = f"{steps:,} steps are more than {MOST_STEPS:,}"
    elif len(page) > LARGEST_PAGE:
        reason = (
            f"with them this page would take {len(page) / 1e6:.1f} MB, more than "
            f"{LARGEST_PAGE / 1e6:.0f}"
        )
    else:
        return page, ""
    note = f"Values of tiles are left out: {reason}. Counters are complete."
    return _page(traces, lesson, note), note


def _page(traces: Sequence[Recording], lesson: Lesson | None, left_out: str = "") -> str:
    title = " and ".join(trace.about.title for trace in traces) if lesson is None else lesson.title
    above = ""
    if lesson is not None:
        above = (
            f'<section aria-label="Lesson">{lesson.way}'
            f'<details id="lesson" open><summary>{html.escape(title)}</summary>\n{lesson.html()}\n'
            "</details>"
            f"{lesson.questions}</section>\n"
        )
    data = [_for_page(trace, left_out) for trace in traces]
    for one, trace, other in zip(data, traces, reversed(traces), strict=True):
        about = trace.about
        beside = other.about
        if about.direction == beside.direction and about.algorithm != STANDARD == beside.algorithm:
            # the run beside it, in place of the closed form at the same M
            one["about"]["standard"] = other.events[-1].reads, other.events[-1].writes
    parts = {
        "title": html.escape(title),
        "css": f"\n{read('typeset.css')}{read('player.css')}\n",
        "js": "\n" + minify("\n".join(read(f"{name}.js") for name in SCRIPTS)) + "\n",
        "typeset": "".join(
            f'<span data-text="{html.escape(text)}">{symbols}</span>'
            for text, symbols in _typeset_texts(traces).items()
        ),
        "trace": base64.b64encode(zipped(data)).decode("ascii"),
        "lesson": above,
    }
    parts["policy"] = policy(parts["css"], parts["js"])
    return fill(read("page.html"), parts)


def _for_page(trace: Recording, left_out: str) -> dict[str, Any]:
    """Return the trace's JSON with what the page does not work out itself: steps, and what names
    are called.
    """
    data = as_json(trace, values=not left_out)
    numbers = {
        id(event.value): number
        for event, number in zip(trace.events, data["events"]["value"], strict=True)
    }
    steps = trace.steps

    def values(name: str, which: int) -> list[int]:
        return [
            numbers.get(id(s.pairs[name][which]), -1) if name in s.pairs and not left_out else -1
            for s in steps
        ]

    data["steps"] = {
        **{name: [getattr(s, name) for s in steps] for name in OF_STEPS},
        "pairs": {name: [values(name, 0), values(name, 1)] for name, _ in trace.about.follows},
    }
    data["wins"] = _wins(trace)
    data["turns"] = _turns(trace)
    data["spelled"] = [] if left_out else list(spelled(trace.about.source))
    data["maximum"] = MAXIMUM
    data["quantities"] = [quantity(name) for name in data["names"]]
    data["plain"] = [plain(name) for name in data["names"]]
    data["follows"] = [
        {"name": name, "plain": plain(name), "byKey": rows == "N_k", "narrow": cols == "1"}
        for name, (rows, cols) in trace.about.follows
    ]
    data["listing"] = [[label_of(line), *_indented(line)] for line in trace.about.listing]
    if left_out:
        data["about"]["notes"] = [*data["about"]["notes"], left_out]
    return data


def _wins(trace: Recording) -> str:
    """Say what standard attention makes at the reference, and, where this run saves nothing,
    why; "" if there is no form.
    """
    about = trace.about
    N = REFERENCE_N
    d = REFERENCE_D
    options = ANY_LENGTH.get(about.options)
    M = check_M(None, float_dtype(DEFAULT_DTYPE).itemsize)
    if about.standard is None or any(array.exact is None for array in about.arrays):
        return ""
    try:
        how: dict[str, Any] = {"N": N, "d": d, "M": M, "direction": about.direction}
        accesses = theory.exact(about.algorithm, sizing="fit", **how, **(options or {})).accesses
        standard = theory.exact(STANDARD, sizing="fit", **how).accesses
    except ValueError:
        return ""
    small = (
        f": with M = {about.M:,} blocks are small, and travel often"
        if trace.events[-1].reads + trace.events[-1].writes >= sum(about.standard)
        else ""
    )
    mask = f"{'without' if options is None else 'with'} {about.options} " if about.options else ""
    return (
        f"{small}; at N = {N:,}, d = {d}, M = {M:,} {mask}it is {standard / accesses:.2f} times. "
        "The factor follows M/d²"
    )


def _turns(trace: Recording) -> dict[str, dict[str, int]]:
    turns: dict[str, dict[str, int]] = {}
    for event in trace.events:
        most = turns.setdefault(event.label, {})
        for variable, index in event.loops:
            most[variable] = max(most.get(variable, 0), index + 1)
    return turns


def _indented(line: str) -> tuple[str, int, str]:
    mark, space, text = re.fullmatch(r"(\(?\d+\)?|)(\s*)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    return mark, max(0, len(mark + space) - 3), text


def _typeset_texts(traces: Iterable[Recording]) -> dict[str, str]:
    texts = {phrase: typeset(phrase) for phrase in PHRASES}
    for trace in traces:
        texts |= {
            text: typeset(text) for line in trace.about.listing for *_, text in [_indented(line)]
        }
        variables = dict.fromkeys(variable for event in trace.events for variable, _ in event.loops)
        texts |= {variable: typeset(variable) for variable in variables}
        texts |= {symbol: typeset(symbol) for symbol, _ in (*trace.about.sizes, *trace.about.cuts)}
        names = {event.name for event in trace.events} | {name for name, _ in trace.about.follows}
        names |= {array.name for array in trace.about.arrays}
        texts |= {name: named(name) for name in sorted({name.partition("[")[0] for name in names})}
    return texts


def minify(script: str) -> str:
    """Return a script without indentation, and without lines that are comments: 6/7 of its size."""
    return re.sub(r"(?m)^\s*(?://|/?\*).*\n|^[ \t]+", "", script)


def read(name: str, package: str = "flashsim.tracing.player") -> str:
    """Return a file of a package, by default of the player: a part of a page."""
    return (files(package) / name).read_text(encoding="utf-8")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Return a page: each $name of the template is the part of that name. Parts are HTML."""
    return Template(template).substitute(parts)


def policy(css: str, js: str) -> str:
    """Return a page's Content-Security-Policy: it runs this script, uses these styles, and loads,
    sends and embeds nothing.

    Not even its own script can make HTML of a text: `innerHTML` is refused by browsers that know
    trusted types.
    """
    hashed = {"script-src": js, "style-src": css}
    rules = [
        f"{kind} 'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
        for kind, text in hashed.items()
    ]
    rules += [
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return "; ".join(["default-src 'none'", *rules])
