"""Sliding-window attention with a sink: `q_outer` with a sink, under a window."""

from dataclasses import replace

from flashsim.algorithms import sliding_window
from flashsim.algorithms.with_sink.q_outer import q_outer_with_sink

ALGORITHM = replace(
    sliding_window.ALGORITHM,
    title=f"{sliding_window.ALGORITHM.title}, with a sink",
    module=__name__,
    run=q_outer_with_sink,
    parts=(*sliding_window.ALGORITHM.parts, "sink"),
)
