"""A trace in Chrome's trace event format, for ui.perfetto.dev: a slice for each step, and counters for HBM and SRAM."""

from typing import Any

from flashsim.tracing.listing import label_of, short
from flashsim.tracing.steps import Recording

LOGICAL_TIME = "logical time: one step of the algorithm = 1 µs; not performance"


def as_perfetto(trace: Recording) -> dict[str, Any]:
    """Return the trace as what JSON can hold."""
    process = {"name": f"{trace.about.title} ({LOGICAL_TIME})"}
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": process},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "lines of the algorithm"}},
    ]
    listing = {label_of(line): line.strip() for line in trace.about.listing}
    for step in trace.steps:
        last = trace.events[step.last]
        about = {"loops": ", ".join(f"{variable} = {index}" for variable, index in step.loops)}
        about |= {"line": listing.get(step.label, ""), "source": f"{short(last.site[0])}:{last.site[1]}"}
        about["events"] = ", ".join(f"{e.kind} {e.name}" for e in trace.of(step))
        common = {"pid": 1, "ts": step.number}
        found.append({**common, "ph": "X", "tid": 1, "dur": 1, "name": step.label, "args": about})
        for name, value in (("reads", last.reads), ("writes", last.writes)):
            counter = f"HBM {name} so far, elements"
            found.append({**common, "ph": "C", "name": counter, "args": {name: value}})
        found.append({**common, "ph": "C", "name": "SRAM in use, elements", "args": {"elements": last.occupancy}})
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {"time": LOGICAL_TIME, "M": trace.about.M}}
