"""Exercise 4: the running maximum and sum."""

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.checks import check_results, expect
from flashsim.learn.exercises.submission import Submission

NUMBER = 4
TITLE = "the online softmax"
TEXT = '''
Softmax in one pass, though the maximum is known only at the end. For the
scores seen so far, keep

    m = their maximum                     at first -infinity
    l = the sum of exp(score - m)         at first 0

A new block of scores s, (rows, keys), comes. Its maximum may be above m. Then
the m that l was summed with is too small, and each term exp(score - m) of l is
too large by the same factor. So one multiplication mends l.

Write the step from (m, l) to the new (m, l). After each block, they must be
what they would be for all the scores so far.
"""

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def step(m, l, s):
    m_new = ...
    l_new = ...
    return m_new, l_new
'''
HINTS = (
    "m_new looks at the old m and at the block: maximum(a, b) is the larger, element by element.",
    "l_new has two terms: the old l, mended by a factor, and the sum of the block's own weights.",
    "The factor is exp(m - m_new): 1 where the maximum stayed, less where it rose.",
    "m_new = maximum(m, rowmax(s));  l_new = exp(m - m_new) * l + rowsum(exp(s - m_new))",
)


def grade(submission: Submission) -> str:
    step = submission.function("step")
    offsets = np.array([0, 3, -2, 5, 1])[:, None, None]
    blocks = np.random.default_rng(0).normal(size=(5, 3, 4)) * 2 + offsets
    m = np.full((3, 1), -np.inf)
    l = np.zeros((3, 1))
    for j, s in enumerate(blocks):
        scores = np.concatenate(blocks[: j + 1], axis=1)
        right_m = scores.max(1, keepdims=True)
        right_l = _sum_against(right_m, scores)
        result = step(m.copy(), l.copy(), s.copy())
        m_new, l_new = check_results("step", result, "m_new, l_new")
        block_m = s.max(1, keepdims=True)
        mistakes = {
            (
                "This is the block's maximum. m is that of all the scores so far: compare with the "
                "old m, too."
            ): block_m,
            "This is the smaller of the two maxima.": np.minimum(m, block_m),
            "m is one number for each row: rowmax, not max of the whole block.": np.full_like(
                right_m, s.max()
            ),
            "m stays as it was. Where does the block come in?": m,
        }
        expect(f"After block {j}, m", m_new, right_m, mistakes)
        with np.errstate(all="ignore"):
            factor = np.exp(m - right_m)
            block_l = _sum_against(right_m, s)
            mistakes = {
                (
                    "The old l is not rescaled. Where the maximum rose, its terms are too large, "
                    "by exp(m_new - m)."
                ): l + block_l,
                (
                    "The old l is rescaled by the inverse: exp(m_new - m) where it should be exp(m "
                    "- m_new)."
                ): l / factor + block_l,
                (
                    "The block's weights are taken against its own maximum; they must be against "
                    "m_new, as the old ones are."
                ): factor * l + _sum_against(block_m, s),
                "The block's weights are taken against the old m, which may be too small.": (
                    factor * l + _sum_against(m, s)
                ),
                "This is the block's sum alone. Where is the old l?": block_l,
                f"The factor multiplies both terms. {ONLY}": factor * (l + block_l),
            }
        expect(f"After block {j}, l", l_new, right_l, mistakes)
        m = np.asarray(m_new)
        l = np.asarray(l_new)
    return (
        "after each of 5 blocks, maxima rising and falling, m and l are those of all scores so far"
    )


def _sum_against(m: Array, scores: Array) -> Array:
    """Return each row's sum of exp(score - m), a column."""
    return np.asarray(np.exp(scores - m).sum(1, keepdims=True))


ONLY = "Only the old l needs it: the block's weights are against m_new already."
