"""Causal linear attention, decoded a token at a time: keys and values wait in a buffer, and the state is written rarely.

    Require: Q, K (N×d), V (N×e) in HBM, on-chip SRAM of size M.
    1  Set the buffer's rows C as large as C(C − 1)(d + e) ≤ 2d·e allows.
    2  Divide Q, K, V, O into N rows, and these into T = ⌈N/C⌉ chunks of C; S (d×e) in HBM is the state.
    3  for 1 ≤ i ≤ T do
    4    for each row t of chunk i do
    5      Load q_t from HBM to on-chip SRAM. o_t = (0)_e on SRAM.
    6      If i > 1: load S, o_t ← q_t S. Otherwise, if t is the last of its chunk and i < T, S = (0)_{d×e} on SRAM.
    7      for each row s ≤ t of chunk i do
    8        Load k_s, v_s. o_t ← o_t + (q_t · k_s) v_s. If t is the last of its chunk and i < T, S ← S + k_sᵀ v_s.
    9      end for
    10     Write o_t to HBM. If t is the last of its chunk and i < T, write S.
    11   end for
    12 end for
    13 Return O.

Between two tokens nothing stays on chip: others are served. The listing is ours; the buffer is that of L. Zhong and L. Zou,
"KVBuffer: IO-aware Serving for Linear Attention" (arXiv 2605.19049). C = 1 is the usual recurrence, which reads and writes S for
each token, 2d·e. With a buffer a token moves d·e + d·e/C + (C + 1)(d + e)/2 of state, keys and values; line 1's C makes this
least. While all tokens are in the first chunk, S is not needed at all.
"""

from math import isqrt

from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.linear_chunks import CHUNKED
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def line_1(rows: int, sizes: Sizes) -> tuple[int]:
    """Return (C,), at most `rows`."""
    return (min((1 + isqrt(1 + 8 * sizes.d * sizes.e // (sizes.d + sizes.e))) // 2, rows),)


def linear_attention_buffered(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Sizes) -> Matrix:
    """Run on Q, K (N, d), V (N, e); return O (N, e), in HBM."""
    on_chip = sram.on_chip
    C, (N, d), e = blocks.C, Q.shape, V.shape[1]  # line 1
    T = -(-N // C)  # line 2
    O = hbm.empty("O", V.shape, V.dtype, "output").divide(1)  # line 2
    state = hbm.empty("S", (d, e), sram.dtype)  # line 2
    Q, K, V = Q.divide(1), K.divide(1), V.divide(1)  # line 2
    for i in sram.loop(range(T)):  # line 3
        rows = min(C, N - i * C)  # line 4
        for c in sram.loop(rows, alike=range(rows)):  # line 4
            t, folds = i * C + c, c == C - 1 and i < T - 1  # line 4
            q_t = sram.load(Q[t])  # line 5
            o_t = sram.full((1, e), 0.0)  # line 5
            if i > 0:  # line 6
                S = sram.load(state[0])  # line 6
                o_t = on_chip(q_t @ S, over=o_t)  # line 6
            elif folds:  # line 6
                S = sram.full((d, e), 0.0)  # line 6
            for s in sram.loop(c + 1):  # line 7
                k_s, v_s = sram.load(K[i * C + s], V[i * C + s])  # line 8
                o_t = on_chip(o_t + (q_t @ k_s.T) @ v_s, over=o_t)  # line 8
                if folds:  # line 8
                    S = on_chip(S + k_s.T @ v_s, over=S)  # line 8
            # line 9: end for
            sram.store(O[t], o_t)  # line 10
            if folds:  # line 10
                sram.store(state[0], S)  # line 10
        # line 11: end for
    # line 12: end for
    return O  # line 13


PROGRAM = Program(
    **{**CHUNKED, "source": "Zhong and Zou 2026", "line_1": line_1},
    title="Linear attention, decoded, keys and values buffered", run=linear_attention_buffered,
    extras={"S": Kind("d", "e", "chip")}, rows=lambda M, sizes: sizes.N,
    bugs=(
        Bug("the state transposed", "k_s.T @ v_s", "v_s.T @ k_s"),
        Bug("the state twice", "q_t @ S, over", "2 * q_t @ S, over"),
        Bug("the state is written for each token", "c, c == C - 1 and i < T - 1", "c, i < T - 1"),
        Bug("the state is not written", "sram.store(state[0], S)", "pass"),
        Bug("the state keeps the last key alone", "S = on_chip(S + k_s.T", "S = on_chip(0 * S + k_s.T"),
        Bug("a token does not attend to itself", "sram.loop(c + 1)", "sram.loop(c)"),
        Bug("keys of the first chunk", "K[i * C + s], V[i * C + s]", "K[s], V[s]"),
    ),
)
