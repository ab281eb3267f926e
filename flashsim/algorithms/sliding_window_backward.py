"""The backward pass of `sliding_window`: `q_outer`'s, whose blocks of keys meet only
the row blocks whose windows reach them.
"""

from dataclasses import replace

from flashsim.algorithms import q_outer_backward

ALGORITHM = replace(
    q_outer_backward.ALGORITHM,
    name="sliding_window",
    title="Sliding window, backward",
    module=__name__,
    loops=None,
)
