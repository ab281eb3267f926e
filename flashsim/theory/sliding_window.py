"""Sliding-window attention. What it moves for the tiles of the window is what the loops exchanged
move for theirs.

With w = w_left + w_right, a row block reaches B_r + w keys. So it loads less than B_r + w + 2B_c of
them, and K and V are read less than T_r(B_r + w + 2B_c) times d and d_v: O(N), where without a
window it is T_r·N_k.
"""

from dataclasses import replace

from flashsim.attention.masks.rules import SlidingWindow
from flashsim.attention.options import Option
from flashsim.theory import q_outer

WINDOW = Option("window", None, SlidingWindow.of)
FORM = replace(q_outer.FORM, name="sliding_window", options=(WINDOW,), theta=None)
