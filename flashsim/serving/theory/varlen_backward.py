"""Packed batches, backward: q_outer_two_pass's, a sequence at a time. A row block meets ⌈e_i/B_c⌉
tiles.

With A = Σ b_i·⌈e_i/B_c⌉, the rows of live tiles, and C = Σ cover(e_i, B_c), their keys; T, T_c =
blocks that are there:

    reads   O: R·d_v   dO: (2R + A)d_v   Q: (R + A)d   L, D: R + A   K: (n + C)d   V: (n + C)d_v
            cu_q: 4b·⌈max R_s/B_r⌉ + 2·ΣT_c words   cu_k: 2b·⌈max n/B_c⌉ + 2·ΣT
    writes  D: R   dQ: R·d   dK: n·d   dV: n·d_v
    peak    4 words, and 2c·w + b(w + 2) + 2b·c for dK and dV, c·w + b(2d + d_v + 2) + 2b·c for dQ;
            w = d + d_v
"""

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import BatchForm, Moved, sequences, whole


def traffic(p: Batch) -> dict[str, Moved]:
    every = [*sequences(p)]
    R = p.group * sum(p.queries)
    n = sum(p.keys)
    d = p.d
    d_v = p.d_v
    A = sum(whole(s.b * -(-s.e // p.B_c)) for s in every)
    C = sum(whole(s.cover(p.B_c)) for s in every)
    T = [len(s.b) for s in every]
    T_c = [-(-s.n // p.B_c) for s in every]
    return {
        "Q": Moved((R + A) * d),
        "K": Moved((n + C) * d),
        "V": Moved((n + C) * d_v),
        "cu_q": Moved(4 * len(T) * max(T) + 2 * sum(T_c)),
        "cu_k": Moved(2 * len(T) * max(T_c) + 2 * sum(T)),
        "O": Moved(R * d_v),
        "dO": Moved((2 * R + A) * d_v),
        "L": Moved(R + A, chip=True),
        "D": Moved(R + A, R, ("Q", 1), chip=True),
        "dQ": Moved(0, R * d, ("Q", d), role="output"),
        "dK": Moved(0, n * d, ("K", d), role="output"),
        "dV": Moved(0, n * d_v, ("K", d_v), role="output"),
    }


def peak(p: Batch) -> int:
    """The most of the three passes; where blocks meet, the first row block that sees a key block
    is the largest, or the only.
    """
    w = p.d + p.d_v
    tops = [0]
    if max(p.queries):
        tops.append(2)
    if max(p.keys):
        tops.append(2)
    for s in sequences(p):
        tops += [b * (2 * p.d_v + 1) + 2 for b in s.b.tolist()]
        for j in range(0, s.n, p.B_c):
            c = min(p.B_c, s.n - j)
            live = s.b[s.e > j]
            top = live.max(initial=0)
            tops.append(int(2 * c * w + top * (w + 2) + 2 * top * c + 4))
        first = s.first(p.B_c)
        tops += (s.b * (2 * p.d + p.d_v + 2) + first * w + 2 * s.b * first + 4).tolist()
    return max(tops)


FORM = BatchForm(name="varlen", direction="backward", traffic=traffic, peak=peak)
