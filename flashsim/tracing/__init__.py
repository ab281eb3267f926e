"""The trace of a run: every event of the memory with its state, in a file or in a page on which a
person steps through it.

trace = flashsim.trace("flash", Q, K, V, blocks=(3, 4))
trace = flashsim.trace("flash", Q, K, V, dO=dO, M=64)       # its backward pass
# the player; or .json.gz, which load_trace reads
trace.save("run.html")
flashsim.load_trace("run.json.gz")                          # `flashsim.tracing.loading`
"""

from flashsim.tracing.about import traced
from flashsim.tracing.data import About, Counts, TraceEvent
from flashsim.tracing.lesson import Lesson, Moment, Stop
from flashsim.tracing.recording import Recorder
from flashsim.tracing.steps import Step
from flashsim.tracing.tracer import trace
from flashsim.tracing.traces import Trace

__all__ = [
    "About",
    "Counts",
    "Lesson",
    "Moment",
    "Recorder",
    "Step",
    "Stop",
    "Trace",
    "TraceEvent",
    "trace",
    "traced",
]
