"""Sliding-window attention, forward: `q_outer`, whose row blocks load only the blocks
of keys that their windows reach.

The window is that of Longformer (I. Beltagy, M. E. Peters, A. Cohan, 2020) and of
FlashAttention's `window_size`. It is a mask, `flashsim.SlidingWindow`, which joins the
run's: a tile is live where block j has a key from p − w_left to p + w_right for a
position p of block i, and query i is at position p = i + N_k − N_q. A row block reaches
B_r + w_left + w_right keys, so it loads that many and less than 2B_c more: K and V are
read about (B_r + w_left + w_right)/B_r times, whatever N is.

The option `window` is (left, right), or `left` alone, with right = 0; −1: no limit on
that side. Default: no window.
"""

from flashsim.algorithms.blocks import q_outer_blocks
from flashsim.algorithms.q_outer import q_outer
from flashsim.algorithms.record import Algorithm
from flashsim.attention.masks.rules import SlidingWindow
from flashsim.attention.options import Option

ALGORITHM = Algorithm(
    name="sliding_window",
    title="Sliding window",
    module=__name__,
    run=q_outer,
    line_1=q_outer_blocks,
    returns=("O", "L"),
    saves=("R",),
    options=(
        Option(
            "window",
            None,
            SlidingWindow.of,
            "LEFT,RIGHT, or LEFT with RIGHT = 0: how many keys before and after its "
            "own position a "
            "query attends to; "
            "-1 means all. Default: all",
            examples=((0, 0), (3, 1), (5, -1), (-1, 4)),
        ),
    ),
)
