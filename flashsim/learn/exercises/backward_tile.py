"""Exercise 10: one tile of Algorithm 4."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.checks import as_numbers, check_results, expect
from flashsim.learn.exercises.submission import Submission

NUMBER = 10
TITLE = "a tile of the backward pass"
TEXT = '''
The backward pass, Algorithm 4, for one tile, without mask and dropout. P_ij is
not kept from the forward pass: it is computed again, from l_i and m_i.

11  S_ij = tau Q_i K_j^T
13  P_ij = exp(S_ij - m_i) / l_i
16  dV_j gains P_ij^T dO_i
17  dP_ij = dO_i V_j^T
19  D_i = rowsum(dO_i * O_i), element by element: a column
20  dS_ij = P_ij * (dP_ij - D_i), element by element
21  dQ_i gains tau dS_ij K_j
22  dK_j gains tau dS_ij^T Q_i

Return the three gains. They are judged as Algorithm 4 sums them: dV_j and dK_j
after each block i of queries, dQ_i after each block j of keys.
"""

from flashsim.algorithms.notation import exp, rowsum


def tile(Q_i, K_j, V_j, O_i, dO_i, l_i, m_i, tau):
    S = tau * (Q_i @ K_j.T)  # line 11
    P = ...  # line 13
    dV = ...  # line 16
    dP = ...  # line 17
    D = ...  # line 19
    dS = ...  # line 20
    dQ = ...  # line 21
    dK = ...  # line 22
    return dQ, dK, dV
'''
HINTS = (
    "A product of matrices is @, an element by element one is *. X^T is X.T.",
    "P = exp(S - m_i) / l_i;  dV = P.T @ dO_i;  dP = dO_i @ V_j.T",
    "D = rowsum(dO_i * O_i);  dS = P * (dP - D)",
    "dQ = tau * (dS @ K_j);  dK = tau * (dS.T @ Q_i)",
)


def grade(submission: Submission) -> str:
    tile = submission.function("tile")
    when = {
        "matmul": (
            "The shapes of a product must meet: rows of queries, columns of keys. Which factor is "
            "to be transposed?"
        )
    }
    inputs = _inputs()
    right = {"dQ": np.zeros(inputs.Q.shape), "dK": np.zeros(inputs.K.shape)}
    right["dV"] = np.zeros(inputs.V.shape)
    student = {name: gradient.copy() for name, gradient in right.items()}
    for j in range(0, N_k, B_c):
        for i in range(0, N_q, B_r):
            part = inputs.tile(slice(i, i + B_r), slice(j, j + B_c))
            result = tile(*(a.copy() for a in part), TAU, when=when)
            gains = check_results("tile", result, "dQ, dK, dV")
            blocks = {"dQ": slice(i, i + B_r), "dK": slice(j, j + B_c), "dV": slice(j, j + B_c)}
            label = f"After tile j = {j // B_c + 1}, i = {i // B_r + 1}"
            before = {name: right[name][block] for name, block in blocks.items()}
            _check_gains(label, part, gains, before)
            right_gains = _gains(part)
            for n, (name, block) in enumerate(blocks.items()):
                right[name][block] += right_gains[n]
                student[name][block] += gains[n]
    P = np.exp(inputs.Q @ inputs.K.T * TAU - inputs.m) / inputs.l
    D = (inputs.dO * inputs.O).sum(1, keepdims=True)
    dS = P * (inputs.dO @ inputs.V.T - D)
    expect("dQ", student["dQ"], TAU * dS @ inputs.K, {})
    expect("dK", student["dK"], TAU * dS.T @ inputs.Q, {})
    expect("dV", student["dV"], P.T @ inputs.dO, {})
    return (
        "dV_j, dK_j and dQ_i were right after each of 6 tiles, and the gradients are those of "
        "attention"
    )


N_q = 6
N_k = 8
B_r = 2
B_c = 4
TAU = 0.5
Gains = tuple[Any, Any, Any]  # dQ, dK, dV


class Inputs(NamedTuple):
    """The arguments of `tile`: of a tile, or of all rows and keys."""

    Q: Array
    K: Array
    V: Array
    O: Array
    dO: Array
    l: Array
    m: Array

    def tile(self, rows: slice, keys: slice) -> Inputs:
        """Return those of a tile."""
        return Inputs(
            self.Q[rows],
            self.K[keys],
            self.V[keys],
            self.O[rows],
            self.dO[rows],
            self.l[rows],
            self.m[rows],
        )


def _inputs() -> Inputs:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(N_q, 4))
    K = rng.normal(size=(N_k, 4))
    V = rng.normal(size=(N_k, 4))
    dO = rng.normal(size=(N_q, 4))
    S = TAU * Q @ K.T
    m = S.max(1, keepdims=True)
    l = np.exp(S - m).sum(1, keepdims=True)
    O = np.exp(S - m) / l @ V
    return Inputs(Q, K, V, O, dO, l, m)


def _check_gains(
    label: str, part: Inputs, gains: tuple[Any, ...], before: dict[str, Array]
) -> None:
    """Check a tile's gains with the sums before them. Raises Mistake."""
    right = _gains(part)
    wrong_gains = _mistakes(part)
    for n, name, letter in ((2, "dV", "j"), (0, "dQ", "i"), (1, "dK", "j")):
        block = before[name]
        gain = as_numbers(gains[n])
        if gain is None or gain.shape != block.shape:
            expect(f"{label}, the gain of {name}", gains[n], right[n], {})
        mistakes = {}
        for hint, wrong in wrong_gains.items():
            if np.shape(wrong[n]) == block.shape:
                mistakes[hint] = block + wrong[n]
        expect(f"{label}, {name}_{letter}", block + gains[n], block + right[n], mistakes)


def _gains(part: Inputs) -> Gains:
    """Return a tile's dQ, dK, dV."""
    P = np.exp(TAU * part.Q @ part.K.T - part.m) / part.l
    D = (part.dO * part.O).sum(1, keepdims=True)
    return _gains_with(part, P, P * (part.dO @ part.V.T - D))


def _gains_with(part: Inputs, P: Array, dS: Array) -> Gains:
    return TAU * (dS @ part.K), TAU * (dS.T @ part.Q), P.T @ part.dO


def _mistakes(part: Inputs) -> dict[str, Gains]:
    """Return hints, each with the dQ, dK, dV that a mistake leads to."""
    Q, K, V, O, dO, l, m = part
    S = TAU * Q @ K.T
    dP = dO @ V.T
    weights = np.exp(S - m)  # not divided
    P = weights / l
    dO_O = dO * O
    D = dO_O.sum(1, keepdims=True)
    dQ, dK, dV = _gains(part)

    def with_P(P: Array) -> Gains:
        return _gains_with(part, P, P * (dP - D))

    def with_D(D: Array) -> Gains:
        return _gains_with(part, P, P * (dP - D))

    def with_dS(dS: Array) -> Gains:
        return _gains_with(part, P, dS)

    return {
        "P is not divided by l_i: its rows must sum to 1 over all keys.": with_P(weights),
        "m_i is not subtracted in P.": with_P(np.exp(S) / l),
        (
            "This tile's own maximum was subtracted. m_i, from the forward pass, is that over all "
            "keys."
        ): with_P(np.exp(S - S.max(1, keepdims=True)) / l),
        "P is divided by this tile's sum. l_i, from the forward pass, is that over all keys.": (
            with_P(weights / weights.sum(1, keepdims=True))
        ),
        "D_i is missing in dS: line 20 subtracts it from dP.": with_dS(P * dP),
        "D_i is added, and it should be subtracted.": with_dS(P * (dP + D)),
        "dS is the product P * (dP - D), and P is missing.": with_dS(dP - D),
        f"{ROW}: one number for each query. Here the whole tile was summed.": with_D(dO_O.sum()),
        f"{ROW}, as a column; here the sum is along each column.": with_D(dO_O.sum(0)),
        "P * dP was summed over this tile's keys alone. rowsum(dO_i * O_i) has all keys in it.": (
            with_D((P * dP).sum(1, keepdims=True))
        ),
        "tau is missing in dQ.": (dQ / TAU, dK, dV),
        "tau is missing in dK.": (dQ, dK / TAU, dV),
        "dQ is dS K_j; P was used for dS.": (TAU * (P @ K), dK, dV),
        "dK is dS^T Q_i; P was used for dS.": (dQ, TAU * (P.T @ Q), dV),
        "dV is P^T dO_i; O_i was used for dO_i.": (dQ, dK, P.T @ O),
        "dV has no tau: V is not in the scores.": (dQ, dK, TAU * (P.T @ dO)),
        "dV is P^T dO_i; S was used for P.": (dQ, dK, S.T @ dO),
    }


ROW = "D_i is the sum of dO_i * O_i along each row"
