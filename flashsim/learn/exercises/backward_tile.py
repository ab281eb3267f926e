"""Exercise 10: one tile of Algorithm 4."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.judging import expect, numbers, pair
from flashsim.learn.exercises.work import Work

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


def grade(work: Work) -> str:
    tile = work.function("tile")
    when = {
        "matmul": (
            "The shapes of a product must meet: rows of queries, columns of keys. Which factor is "
            "to be transposed?"
        )
    }
    rng = np.random.default_rng(0)
    N_q = 6
    N_k = 8
    d = 4
    d_v = 4
    B_r = 2
    B_c = 4
    tau = 0.5
    Q, K, V, dO = (rng.normal(size=(n, w)) for n, w in ((N_q, d), (N_k, d), (N_k, d_v), (N_q, d_v)))
    S = tau * Q @ K.T
    m = S.max(1, keepdims=True)
    l = np.exp(S - m).sum(1, keepdims=True)
    O = np.exp(S - m) / l @ V
    right, theirs = (
        {"dQ": np.zeros(Q.shape), "dK": np.zeros(K.shape), "dV": np.zeros(V.shape)}
        for _ in range(2)
    )
    for j in range(0, N_k, B_c):
        for i in range(0, N_q, B_r):
            r = slice(i, i + B_r)
            c = slice(j, j + B_c)
            given = (Q[r], K[c], V[c], O[r], dO[r], l[r], m[r])
            gains = pair("tile", tile(*(a.copy() for a in given), tau, when=when), "dQ, dK, dV")
            said = f"After tile j = {j // B_c + 1}, i = {i // B_r + 1}"
            wanted, wrongs = _gains(given, tau)
            for name, letter, block, n in (("dV", "j", c, 2), ("dQ", "i", r, 0), ("dK", "j", c, 1)):
                before = right[name][block]
                fitting = {
                    hint: wrong[n]
                    for hint, wrong in wrongs.items()
                    if np.shape(wrong[n]) == before.shape
                }
                gain = numbers(gains[n])
                if gain is None or gain.shape != before.shape:
                    expect(f"{said}, the gain of {name}", gains[n], wanted[n], {})
                mistakes = {hint: before + wrong for hint, wrong in fitting.items()}
                expect(f"{said}, {name}_{letter}", before + gains[n], before + wanted[n], mistakes)
            for sums, parts in ((right, wanted), (theirs, gains)):
                for name, at, part in zip(sums, (r, c, c), parts, strict=True):
                    sums[name][at] += part
    P = np.exp(S - m) / l
    dS = P * (dO @ V.T - (dO * O).sum(1, keepdims=True))
    for name, whole in (("dQ", tau * dS @ K), ("dK", tau * dS.T @ Q), ("dV", P.T @ dO)):
        expect(name, theirs[name], whole, {})
    return (
        "dV_j, dK_j and dQ_i were right after each of 6 tiles, and the gradients are those of "
        "attention"
    )


Gains = tuple[Any, Any, Any]


def _gains(given: Sequence[Array], tau: float) -> tuple[Gains, dict[str, Gains]]:
    """Return a tile's dQ, dK, dV, and those that each mistake leads to."""
    Q, K, V, O, dO, l, m = given
    S = tau * Q @ K.T
    dP = dO @ V.T
    own = np.exp(S - m)
    rows = dO * O
    P, D = own / l, rows.sum(1, keepdims=True)
    dS = P * (dP - D)

    def of(P: Array = P, D: Array = D, dS: Array | None = None) -> Gains:
        dS = P * (dP - D) if dS is None else dS
        return tau * (dS @ K), tau * (dS.T @ Q), P.T @ dO

    right = dQ, dK, dV = of()
    return right, {
        "P is not divided by l_i: its rows must sum to 1 over all keys.": of(P=own),
        "m_i is not subtracted in P.": of(P=np.exp(S) / l),
        (
            "This tile's own maximum was subtracted. m_i, from the forward pass, is that over all "
            "keys."
        ): (of(P=np.exp(S - S.max(1, keepdims=True)) / l)),
        "P is divided by this tile's sum. l_i, from the forward pass, is that over all keys.": (
            of(P=own / own.sum(1, keepdims=True))
        ),
        "D_i is missing in dS: line 20 subtracts it from dP.": of(dS=P * dP),
        "D_i is added, and it should be subtracted.": of(dS=P * (dP + D)),
        "dS is the product P * (dP - D), and P is missing.": of(dS=dP - D),
        f"{ROW}: one number for each query. Here the whole tile was summed.": of(D=rows.sum()),
        f"{ROW}, as a column; here the sum is along each column.": of(D=rows.sum(0)),
        "P * dP was summed over this tile's keys alone. rowsum(dO_i * O_i) has all keys in it.": (
            of(D=(P * dP).sum(1, keepdims=True))
        ),
        "tau is missing in dQ.": (dS @ K, dK, dV),
        "tau is missing in dK.": (dQ, dS.T @ Q, dV),
        "dQ is dS K_j; P was used for dS.": (tau * (P @ K), dK, dV),
        "dK is dS^T Q_i; P was used for dS.": (dQ, tau * (P.T @ Q), dV),
        "dV is P^T dO_i; O_i was used for dO_i.": (dQ, dK, P.T @ O),
        "dV has no tau: V is not in the scores.": (dQ, dK, tau * (P.T @ dO)),
        "dV is P^T dO_i; S was used for P.": (dQ, dK, S.T @ dO),
    }


ROW = "D_i is the sum of dO_i * O_i along each row"
