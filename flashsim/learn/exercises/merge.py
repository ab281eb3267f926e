"""Exercise 9: two parts of the keys, merged."""

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.inner_loop import over
from flashsim.learn.exercises.judging import expect, pair
from flashsim.learn.exercises.work import Work

NUMBER = 9
TITLE = "split the keys, and merge"
TEXT = '''
In decoding there is one query and a long cache of keys. FlashDecoding splits
the keys into parts, computes attention over each part at the same time, and
merges. Of each part it keeps

    O = attention over the part's keys, (rows, d)
    L = log(sum of exp(scores)), the log-sum-exp, a column (rows, 1)

exp(L) is the part's weight: the denominator of its softmax. Merge two parts
into the O and L of both. exp(L) may overflow: subtract the larger L before
exp, as in the softmax, and add it again to the logarithm.
"""

from flashsim.algorithms.notation import exp, log, maximum


def merge(O_a, L_a, O_b, L_b):
    m = ...  # the larger L
    w_a, w_b = ..., ...  # weights, safe from overflow
    O = ...
    L = ...
    return O, L
'''
HINTS = (
    (
        "O is the mean of O_a and O_b, weighted by exp(L_a) and exp(L_b): divided by the sum of "
        "the weights."
    ),
    "m = maximum(L_a, L_b);  w_a, w_b = exp(L_a - m), exp(L_b - m)",
    "O = (w_a * O_a + w_b * O_b) / (w_a + w_b);  L = m + log(w_a + w_b)",
)


def part(Q: Array, K: Array, V: Array) -> tuple[Array, Array]:
    """Return O and L of attention over these keys."""
    m, l, O = over(Q, K, V)
    return O, m + np.log(l)


def grade(work: Work) -> str:
    merge = work.function("merge")
    for size, cut in ((1.0, 3), (1.5, 8), (60.0, 5)):
        rng = np.random.default_rng(cut)
        Q = size * rng.normal(size=(3, 4))
        K = size * rng.normal(size=(10, 4))
        V = rng.normal(size=(10, 2))
        a = part(Q, K[:cut], V[:cut])
        b = part(Q, K[cut:], V[cut:])
        want = part(Q, K, V)
        (O_a, L_a), (O_b, L_b) = a, b
        O, L = pair("merge", merge(O_a.copy(), L_a.copy(), O_b.copy(), L_b.copy()), "O, L")
        with np.errstate(all="ignore"):
            w_a = np.exp(L_a)
            w_b = np.exp(L_b)
            m = np.maximum(L_a, L_b)
            e_a = np.exp(L_a - m)
            e_b = np.exp(L_b - m)
            overflow = "exp(L) overflows. Subtract the larger of L_a and L_b first: exp(L_a - m)."
            mistakes = {
                "The parts count equally. A part counts by the sum of its exponentials, exp(L).": (
                    O_a + O_b
                )
                / 2,
                "The weights are L itself, and not exp(L): L is a logarithm.": (
                    L_a * O_a + L_b * O_b
                )
                / (L_a + L_b),
                "It is not divided by the sum of the weights: O_a and O_b are means, and so is O.": e_a
                * O_a
                + e_b * O_b,
                "This is O_a + O_b: but both are means already.": O_a + O_b,
                "The weights are exchanged: w_a belongs to O_a.": (e_b * O_a + e_a * O_b)
                / (e_a + e_b),
                "The parts count by how many keys they have. They count by exp(L).": (
                    cut * O_a + (10 - cut) * O_b
                )
                / 10,
                overflow: (w_a * O_a + w_b * O_b) / (w_a + w_b),
            }
            expect(
                f"{cut} and {10 - cut} keys, scores near {size * size:g}: O", O, want[0], mistakes
            )
            logs = {
                (
                    "L is not the sum of logarithms; it is the logarithm of the sum of exp(L_a) "
                    "and exp(L_b)."
                ): L_a + L_b,
                "This is the larger of the two. Both parts count: add log(w_a + w_b).": m,
                "This is log(w_a + w_b), and m is missing: it was subtracted before exp.": np.log(
                    e_a + e_b
                ),
                "This is the sum of weights; L is its logarithm.": w_a + w_b,
                "m is subtracted here, where it is to be added.": np.log(e_a + e_b) - m,
                overflow: np.log(w_a + w_b),
            }
            expect(f"{cut} and {10 - cut} keys, scores near {size * size:g}: L", L, want[1], logs)
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 4))
    K = rng.normal(size=(9, 4))
    V = rng.normal(size=(9, 2))
    a, b, c = (part(Q, K[s], V[s]) for s in (slice(0, 2), slice(2, 3), slice(3, 9)))
    expect("Three parts, (a, b) first: O", merge(*merge(*a, *b), *c)[0], part(Q, K, V)[0], {})
    expect("Three parts, (b, c) first: O", merge(*a, *merge(*b, *c))[0], part(Q, K, V)[0], {})
    return (
        "two parts, unequal and with scores in the thousands, and three parts in either order, "
        "give attention over all keys"
    )
