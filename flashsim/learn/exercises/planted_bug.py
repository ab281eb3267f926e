"""Exercise 13: a bug planted in Algorithm 1's text."""

import inspect

from flashsim.algorithms.algorithm_1_flash_basic import flash_basic
from flashsim.learn.exercises import inner_loop
from flashsim.learn.exercises.submission import Mistake, Submission
from flashsim.tracing.planting import changed, pattern_of

NUMBER = 13
TITLE = "find the planted bug"
ALGORITHM = inner_loop.ALGORITHM
as_algorithm = inner_loop.as_algorithm
BUG = (
    "l_i * exp(m_i - m_i_new) * O_i",
    "l_i * exp(m_tilde_ij - m_i_new) * O_i",
)
"""(before, after) in line 12."""


def _function() -> str:
    """Return the text of a function with lines 5 to 14 of Algorithm 1, and the bug. `inner_loop`
    calls it.
    """
    source = inspect.getsource(flash_basic)
    loops = source[source.index("    for j in sram.loop") : source.index("    # line 15")]
    head = "def flash(hbm, sram, Q, K, V, O, l, m, blocks):\n    on_chip = sram.on_chip\n"
    return head + changed(loops, [BUG], "Algorithm 1")


TEXT = f'''
This is flashsim's Algorithm 1, lines 5 to 15, with one bug. It runs, its
counts are right, and with a single block of keys so is O. Find the bug, and
mend it; nothing else is to be changed.

{inner_loop.LINES}

The check says in which turn of the loops something is wrong first, and whether
it is m, l or O. Which line made it, and from what?
"""

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


{_function()}'''
HINTS = (
    (
        "Run the check: the first matrix that is wrong narrows it down to one line, since m, l and "
        "O are made in that order."
    ),
    (
        "m and l are right, O is not, and in the first turns O is right too. So it is what is "
        "multiplied with the old O_i."
    ),
    (
        "The old O_i was summed against the old maximum, m_i. Compare its factor with the paper's, "
        "letter by letter."
    ),
)


def grade(submission: Submission) -> str:
    flash = submission.function("flash")
    try:
        turns = sum(inner_loop.run(flash, problem) for problem in inner_loop.PROBLEMS)
    except Mistake as mistake:
        has_bug = pattern_of(BUG[1]).search(submission.path.read_text(encoding="utf-8"))
        hint = HAS_BUG if has_bug else mistake.hint or OTHER_BUG
        raise Mistake(mistake.message, hint) from None
    return (
        f"m, l and O are right after each of {turns} inner turns, and the counts are what they were"
    )


HAS_BUG = (
    "The bug is still there. m and l are right in this turn, and with j = 1 so was O. What counts "
    "only later?"
)
OTHER_BUG = "The planted bug is gone, but this change makes another. The paper's lines are above."
