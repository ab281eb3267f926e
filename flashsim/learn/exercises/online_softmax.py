"""Exercise 4: the running maximum and sum."""

import numpy as np

from flashsim.learn.exercises.judging import expect, pair
from flashsim.learn.exercises.work import Work

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


def grade(work: Work) -> str:
    step = work.function("step")
    blocks = [
        *(
            np.random.default_rng(0).normal(size=(5, 3, 4)) * 2
            + np.array([0, 3, -2, 5, 1])[:, None, None]
        )
    ]
    m = np.full((3, 1), -np.inf)
    l = np.zeros((3, 1))
    for j, s in enumerate(blocks):
        seen = np.concatenate(blocks[: j + 1], axis=1)
        top = seen.max(1, keepdims=True)
        want = np.exp(seen - top).sum(1, keepdims=True)
        m_got, l_got = pair("step", step(m.copy(), l.copy(), s.copy()), "m_new, l_new")
        own = s.max(1, keepdims=True)
        mistakes = {
            (
                "This is the block's maximum. m is that of all the scores so far: compare with the "
                "old m, too."
            ): own,
            "This is the smaller of the two maxima.": np.minimum(m, own),
            "m is one number for each row: rowmax, not max of the whole block.": np.full_like(
                top, s.max()
            ),
            "m stays as it was. Where does the block come in?": m,
        }
        expect(f"After block {j}, m", m_got, top, mistakes)
        with np.errstate(all="ignore"):
            factor = np.exp(m - top)
            new, of_own, of_old = (np.exp(s - most).sum(1, keepdims=True) for most in (top, own, m))
            mistakes = {
                (
                    "The old l is not rescaled. Where the maximum rose, its terms are too large, "
                    "by exp(m_new - m)."
                ): l + new,
                (
                    "The old l is rescaled by the inverse: exp(m_new - m) where it should be exp(m "
                    "- m_new)."
                ): l / factor + new,
                (
                    "The block's weights are taken against its own maximum; they must be against "
                    "m_new, as the old ones are."
                ): (factor * l + of_own),
                "The block's weights are taken against the old m, which may be too small.": factor
                * l
                + of_old,
                "This is the block's sum alone. Where is the old l?": new,
                f"The factor multiplies both terms. {ONLY}": factor * (l + new),
            }
        expect(f"After block {j}, l", l_got, want, mistakes)
        m = np.asarray(m_got)
        l = np.asarray(l_got)
    return (
        "after each of 5 blocks, maxima rising and falling, m and l are those of all scores so far"
    )


ONLY = "Only the old l needs it: the block's weights are against m_new already."
