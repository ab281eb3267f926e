"""Sliding-window attention, backward. What it moves for the tiles of the window is what the
loops exchanged move for theirs.
"""

from dataclasses import replace

from flashsim.theory import q_outer_backward
from flashsim.theory.sliding_window import WINDOW

FORM = replace(q_outer_backward.FORM, name="sliding_window", options=(WINDOW,))
