"""Exercise 11: the largest blocks that fit M."""

from collections.abc import Callable

from flashsim.attention.arguments import short_repr
from flashsim.learn.exercises.checks import WHOLE, check_results, common_mistake, is_whole
from flashsim.learn.exercises.submission import Mistake, Submission
from flashsim.memory.errors import SramOverflow
from flashsim.simulate.api import count

NUMBER = 11
TITLE = "choose blocks for this M"
TEXT = '''
Algorithm 1 reads Q and O once for each of the T_c blocks of keys: the larger
B_c, the fewer accesses. But what is on chip at once must fit. At line 12 it is
this:

    K_j, V_j                            B_c x d each
    Q_i, O_i                            B_r x d each
    S_ij, overwritten by P~_ij          B_r x B_c
    l_i, m_i, m~_ij, l~_ij, m_i_new, l_i_new    a column of B_r each

The paper's line 1 says B_c = M / 4d, B_r = min(M / 4d, d), rounded up. That
fills M with the first four alone, and does not fit.

Return (B_r, B_c) with B_r = min(B_c, d), and the largest B_c such that all of
it fits in M elements. A memory that refuses what does not fit tries them.
"""


def blocks(M, d):
    B_c = 1
    ...  # let B_c grow while the next one fits
    return min(B_c, d), B_c
'''
HINTS = (
    (
        "Write a function that returns the elements of the table for a given B_c, with B_r = "
        "min(B_c, d)."
    ),
    "2·B_c·d + 2·B_r·d + B_r·B_c + 6·B_r elements must be at most M.",
    "while elements(B_c + 1) <= M: B_c += 1",
)
CASES = ((296, 4), (1000, 8), (5000, 16), (25600, 64))


def elements(B_c: int, d: int) -> int:
    """Return how many elements Algorithm 1 has on chip, with B_r = min(B_c, d)."""
    B_r = min(B_c, d)
    return 2 * d * (B_c + B_r) + B_r * B_c + 6 * B_r


def largest(M: int, elements_of: Callable[[int], int]) -> int:
    """Return the largest B_c with elements_of(B_c) ≤ M."""
    B_c = 1
    while elements_of(B_c + 1) <= M:
        B_c += 1
    return B_c


def grade(submission: Submission) -> str:
    blocks = submission.function("blocks")
    answers = {}
    for M, d in CASES:
        sides = check_results("blocks", blocks(M, d), "B_r, B_c")
        if not all(is_whole(n) and 0 < n < 10**18 for n in sides):
            raise Mistake(
                f"M = {M:,}, d = {d}: blocks {short_repr(sides)}; expected two whole numbers, from 1 to "
                "10¹⁸.",
                WHOLE,
            )
        answers[M, d] = sides
    hint = common_mistake((B_c, _mistakes(M, d)) for (M, d), (_, B_c) in answers.items())
    for (M, d), (B_r, B_c) in answers.items():
        _check_blocks(M, d, B_r, B_c, hint)
    return (
        f"for {len(CASES)} pairs (M, d) the blocks fit, and no larger ones do: the accesses are "
        "the least, =="
    )


def _check_blocks(M: int, d: int, B_r: int, B_c: int, hint: str) -> None:
    label = f"M = {M:,}, d = {d}: blocks ({B_r}, {B_c})"
    if B_r != min(B_c, d):
        raise Mistake(f"{label}: B_r is {B_r}; expected min(B_c, d) = {min(B_c, d)}.")
    best = largest(M, lambda n: elements(n, d))
    N = 4 * best  # a smaller B_c makes more blocks of it
    try:
        accesses = count("flash_basic", N=N, d=d, M=M, blocks=(B_r, B_c)).hbm.accesses
    except SramOverflow as error:
        reason = str(error).partition(" Take a larger")[0]
        raise Mistake(f"{label} do not fit. {reason}", hint) from None
    least = count("flash_basic", N=N, d=d, M=M, blocks=(min(best, d), best)).hbm.accesses
    if accesses != least:
        raise Mistake(
            f"{label} fit, with {elements(B_c, d):,} elements, and move {accesses:,} elements at N "
            f"= {N:,}; a larger B_c fits too, and moves {least:,}.",
            hint,
        )


def _mistakes(M: int, d: int) -> dict[str, int]:
    """Return hints, each with the B_c that a mistake leads to."""
    best = largest(M, lambda n: elements(n, d))
    return {
        "This is the paper's line 1. It leaves no room for S_ij and the columns.": -(-M // (4 * d)),
        "This is the paper's line 1, rounded down. S_ij and the columns need room too.": (
            M // (4 * d)
        ),
        "The columns need room too: l_i, m_i, m~_ij, l~_ij and the new m and l, 6 B_r.": (
            largest(M, lambda n: elements(n, d) - 6 * min(n, d))
        ),
        "Only l_i and m_i are counted; m~_ij, l~_ij, m_i_new and l_i_new are columns as well.": (
            largest(M, lambda n: elements(n, d) - 4 * min(n, d))
        ),
        "S_ij needs room too, B_r B_c.": largest(M, lambda n: elements(n, d) - min(n, d) * n),
        "P~_ij was given room of its own: it overwrites S_ij.": (
            largest(M, lambda n: elements(n, d) + min(n, d) * n)
        ),
        "The next one fits too: M itself may be used, so <= and not <.": (
            largest(M - 1, lambda n: elements(n, d))
        ),
        "One too many: the test is whether B_c fits, but B_c + 1 is taken.": best + 1,
        "B_c did not grow.": 1,
    }
