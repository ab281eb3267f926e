"""Exercise 9: two parts of the keys, merged."""

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.checks import check_results, expect
from flashsim.learn.exercises.inner_loop import state_over
from flashsim.learn.exercises.submission import Submission

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
    m, l, O = state_over(Q, K, V)
    return O, m + np.log(l)


def grade(submission: Submission) -> str:
    merge = submission.function("merge")
    for size, cut in ((1.0, 3), (1.5, 8), (60.0, 5)):
        rng = np.random.default_rng(cut)
        Q = size * rng.normal(size=(3, 4))
        K = size * rng.normal(size=(10, 4))
        V = rng.normal(size=(10, 2))
        O_a, L_a = part(Q, K[:cut], V[:cut])
        O_b, L_b = part(Q, K[cut:], V[cut:])
        right_O, right_L = part(Q, K, V)
        result = merge(O_a.copy(), L_a.copy(), O_b.copy(), L_b.copy())
        O, L = check_results("merge", result, "O, L")
        label = f"{cut} and {10 - cut} keys, scores near {size * size:g}"
        with np.errstate(all="ignore"):
            # weights with the larger L subtracted, and without
            m = np.maximum(L_a, L_b)
            w_a = np.exp(L_a - m)
            w_b = np.exp(L_b - m)
            large_a = np.exp(L_a)
            large_b = np.exp(L_b)
            overflow = "exp(L) overflows. Subtract the larger of L_a and L_b first: exp(L_a - m)."
            O_mistakes = {
                "The parts count equally. A part counts by the sum of its exponentials, exp(L).": (
                    (O_a + O_b) / 2
                ),
                "The weights are L itself, and not exp(L): L is a logarithm.": (
                    (L_a * O_a + L_b * O_b) / (L_a + L_b)
                ),
                "It is not divided by the sum of the weights: O_a and O_b are means, and so is O.": (
                    w_a * O_a + w_b * O_b
                ),
                "This is O_a + O_b: but both are means already.": O_a + O_b,
                "The weights are exchanged: w_a belongs to O_a.": (
                    (w_b * O_a + w_a * O_b) / (w_a + w_b)
                ),
                "The parts count by how many keys they have. They count by exp(L).": (
                    (cut * O_a + (10 - cut) * O_b) / 10
                ),
                overflow: (large_a * O_a + large_b * O_b) / (large_a + large_b),
            }
            L_mistakes = {
                (
                    "L is not the sum of logarithms; it is the logarithm of the sum of exp(L_a) "
                    "and exp(L_b)."
                ): L_a + L_b,
                "This is the larger of the two. Both parts count: add log(w_a + w_b).": m,
                "This is log(w_a + w_b), and m is missing: it was subtracted before exp.": (
                    np.log(w_a + w_b)
                ),
                "This is the sum of weights; L is its logarithm.": large_a + large_b,
                "m is subtracted here, where it is to be added.": np.log(w_a + w_b) - m,
                overflow: np.log(large_a + large_b),
            }
        expect(f"{label}: O", O, right_O, O_mistakes)
        expect(f"{label}: L", L, right_L, L_mistakes)
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 4))
    K = rng.normal(size=(9, 4))
    V = rng.normal(size=(9, 2))
    a = part(Q, K[:2], V[:2])
    b = part(Q, K[2:3], V[2:3])
    c = part(Q, K[3:], V[3:])
    right_O, _ = part(Q, K, V)
    O, _ = merge(*merge(*a, *b), *c)
    expect("Three parts, (a, b) first: O", O, right_O, {})
    O, _ = merge(*a, *merge(*b, *c))
    expect("Three parts, (b, c) first: O", O, right_O, {})
    return (
        "two parts, unequal and with scores in the thousands, and three parts in either order, "
        "give attention over all keys"
    )
