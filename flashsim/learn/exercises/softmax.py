"""Exercise 3: softmax of one tile, safely."""

import numpy as np

from flashsim.learn.exercises.checks import expect
from flashsim.learn.exercises.submission import Submission

NUMBER = 3
TITLE = "softmax, safely"
TEXT = '''
Softmax of each row of a tile of scores S, a NumPy array (rows, keys):

    m = the largest score of each row
    P = exp(S - m)
    l = the sum of each row of P
    softmax = P / l

exp(1000) is infinite, and infinity / infinity is NaN. With its row's largest
score subtracted, each exponent is at most 0, and the result is the same: the
factor exp(-m) is in P and in l.

m and l are columns, (rows, 1), so that S - m takes each row's own m.
"""

from flashsim.algorithms.notation import exp, rowmax, rowsum


def softmax(S):
    m = ...
    P = ...
    l = ...
    return ...
'''
HINTS = (
    "rowmax(S) and rowsum(P) are columns already.",
    "P is exp of a difference; m and l are each one call.",
    "m = rowmax(S);  P = exp(S - m);  l = rowsum(P);  return P / l",
)


def grade(submission: Submission) -> str:
    softmax = submission.function("softmax")
    S = np.random.default_rng(0).normal(size=(3, 4))
    shape = (
        "m and l must be columns, (rows, 1). NumPy's max and sum drop the axis unless "
        "keepdims=True."
    )
    when = {"broadcast": shape}
    m = S.max(1, keepdims=True)
    P = np.exp(S - m)
    l = P.sum(1, keepdims=True)
    right = P / l
    axis = (
        "The columns sum to 1, and not the rows: the axis is wrong. A row has one query's scores: "
        "axis=1."
    )
    P_of_columns = np.exp(S - S.max(0))
    mistakes = {
        "This is P, not divided by l. Each row of the result must sum to 1.": P,
        axis: P_of_columns / P_of_columns.sum(0),
        f"{axis} ": P / P.sum(0),
        "This is divided by l twice.": P / l**2,
        "It is divided by the sum of all of P. Each row has its own l.": P / P.sum(),
    }
    expect("softmax(S)", softmax(S.copy(), when=when), right, mistakes)
    # for a square tile, a row of maxima broadcasts, and does not raise
    square = np.random.default_rng(1).normal(size=(3, 3))
    P_square = np.exp(square - square.max(1, keepdims=True))
    right_square = P_square / P_square.sum(1, keepdims=True)
    P_of_rows = np.exp(square - square.max(1))
    mistakes = {shape: P_of_rows / P_of_rows.sum(1)}
    expect("For a square tile, softmax(S)", softmax(square), right_square, mistakes)
    hint = "exp overflows: subtract each row's largest score before exp, not after it."
    mistakes = {hint: np.full_like(S, np.nan)}
    expect("With 1000 added to S, softmax(S)", softmax(S + 1000), right, mistakes)
    one_low_row = S + np.array([[0.0], [-2000.0], [0.0]])
    hint = (
        "The second row's scores are 2000 less, and all of them became 0: subtract each row's own "
        "maximum, not the tile's."
    )
    mistakes = {hint: np.where(np.arange(3)[:, None] == 1, np.nan, right)}
    result = softmax(one_low_row)
    expect("With a row that is 2000 less, softmax(S)", result, right, mistakes)
    return "each row sums to 1, at scores near 1, near 1000, and with rows 2000 apart"
