"""Fifty honest algorithms of one's own, as variations of two: each keeps to the memory, in a way
that a user might write.
"""

KEYS_INSIDE = """
from collections import namedtuple
from functools import lru_cache, partial
import numpy as np
from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum

TABLE = {"low": -np.inf}
SCALES = np.linspace(1.0, 2.0, 64)
# GLOBAL

def mine(hbm, sram, Q, K, V, blocks):
    on_chip = sram.on_chip
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    N_q, N_k = Q.shape[0], K.shape[0]
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    # BEFORE
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        m_i, l_i = sram.full((Q_i.shape[0], 1), -np.inf), sram.full((Q_i.shape[0], 1), 0.0)
        O_i = sram.full(O[i].shape, 0.0)
        # ROW
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            S = on_chip(Q_i @ K_j.T)
            # TILE
            m_new = on_chip(maximum(m_i, rowmax(S)))
            P = on_chip(exp(S - m_new), over=S)
            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(P), over=l_i)
            O_i = on_chip(exp(m_i - m_new) * O_i + P @ V_j, over=O_i)
            m_i = on_chip(m_new, over=m_i)
            # END
        O_i = on_chip(O_i / l_i, over=O_i)
        sram.store(O[i], O_i)
        # STORED
    # AFTER
    return O
"""

S = "            S = on_chip(Q_i @ K_j.T)\n"
P = "            P = on_chip(exp(S - m_new), over=S)\n"
L = "            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(P), over=l_i)\n"
A = "            O_i = on_chip(exp(m_i - m_new) * O_i + P @ V_j, over=O_i)\n"
LOAD = "            K_j, V_j = sram.load(K[j], V[j])\n"
END = "        O_i = on_chip(O_i / l_i, over=O_i)\n"
NEW = "            m_new = on_chip(maximum(m_i, rowmax(S)))\n"


def changed(line: str, *changes: str) -> dict[str, str]:
    """Return a change of one of the lines above: text, what takes its place, text, …"""
    after = line
    for before, instead in zip(changes[::2], changes[1::2], strict=True):
        assert before in after, (before, after)
        after = after.replace(before, instead)
    return {line: after}


DOT = "Q_i @ K_j.T"
VARIATIONS: dict[str, dict[str, str]] = {
    "as it stands": {},
    "a constant before the loops": {
        "# BEFORE": "zero = np.zeros((64, 64))",
        **changed(S, ".T)", ".T + zero[: Q_i.shape[0], : K_j.shape[0]])"),
    },
    "a mask of booleans before the loops": {
        "# BEFORE": "whole = np.ones((N_q, N_k), bool)",
        "# ROW": "rows = whole[i * blocks.B_r :][: Q_i.shape[0]]",
        **changed(
            S, DOT, "np.where(rows[:, j * blocks.B_c :][:, : K_j.shape[0]], Q_i @ K_j.T, -np.inf)"
        ),
    },
    "a mask of floats before the loops": {
        "# BEFORE": "bias = np.where(np.arange(N_k) < N_k, 0.0, -np.inf)[None, :]",
        **changed(S, ".T)", ".T + bias[:, j * blocks.B_c :][:, : K_j.shape[0]])"),
    },
    "a global constant": changed(S, ".T)", ".T * SCALES[0])"),
    "a global array": {"# GLOBAL": "ONE = np.ones((1, 1))", **changed(S, ".T)", ".T * ONE)")},
    "a constant between a loop and the next": {
        "# ROW": "one = np.ones((1, 1))",
        **changed(S, ".T)", ".T * one)"),
    },
    "a mask made in each turn": {
        "# TILE": "rows, cols = np.arange(S.shape[0])[:, None], np.arange(S.shape[1])\n"
        "            S = on_chip(np.where(rows + cols >= 0, S, -np.inf), over=S)"
    },
    "a mask kept from the first turn on": {
        "# BEFORE": "masks = {}",
        "# TILE": "if S.shape not in masks:\n"
        "                rows, columns = map(np.arange, S.shape)\n"
        "                masks[S.shape] = rows[:, None] >= -columns\n"
        "            S = on_chip(np.where(masks[S.shape], S, -np.inf), over=S)",
    },
    "indices kept from the first turn on": {
        "# BEFORE": "columns = {}",
        "# TILE": "index = columns.setdefault(S.shape[1], np.arange(S.shape[1]))\n"
        "            S = on_chip(np.where(index >= 0, S, -np.inf), over=S)",
    },
    "a constant kept from the first turn on": {
        "# BEFORE": "ones = {}",
        "# TILE": "one = ones.setdefault(S.shape[1], np.ones((S.shape[1], 1)))",
        **changed(L, "rowsum(P)", "P @ one"),
    },
    "a mask of floats kept from the first turn on": {
        "# BEFORE": "masks = {}",
        "# TILE": "if S.shape not in masks:\n"
        "                masks[S.shape] = np.where(np.tri(*S.shape) >= 0, 0.0, -np.inf)\n"
        "            S = on_chip(S + masks[S.shape], over=S)",
    },
    "random numbers of a generator": {
        "# BEFORE": "generator = np.random.default_rng(0)",
        "# TILE": "S = on_chip(np.where(generator.random(S.shape) < 2, S, -np.inf), over=S)",
    },
    "numbers of a generator, one by one": {
        "# ROW": "generator = np.random.default_rng(0)",
        "# TILE": (
            "scale = 1.0 if generator.random() < 2 else 0.0\n            S = on_chip(S * scale, "
            "over=S)"
        ),
    },
    "what the turn before left is overwritten": {"# TILE": "left = S * 1"},
    "a text is left over": {"# TILE": "text = f'{S.shape} {i} {j}'"},
    "whole numbers are left over": {"# TILE": "order = np.array([3, 1, 2])"},
    "random bits are left over": {
        "# TILE": "bits = np.random.default_rng(0).random(S.shape) < 0.5"
    },
    "copies within a turn": changed(S, "K_j.T", "(K_j.T * 1)"),
    "a list of tiles": {
        LOAD: LOAD + "            tiles = [K_j, V_j]\n",
        **changed(A, "V_j", "tiles[1]"),
    },
    "a dict of tiles": {
        LOAD: LOAD + "            tiles = {'K': K_j, 'V': V_j}\n",
        **changed(A, "V_j", "tiles['V']"),
    },
    "a named tuple of tiles": {
        "# GLOBAL": "Pair = namedtuple('Pair', 'K V')",
        LOAD: LOAD + "            pair = Pair(K_j, V_j)\n",
        **changed(A, "V_j", "pair.V"),
    },
    "an object that holds the statistics": {
        "# GLOBAL": "class Row:\n    pass",
        "# ROW": "row = Row()\n        row.l = l_i",
        **changed(L, "l_i =", "row.l = l_i =", "over=l_i", "over=row.l", "* l_i", "* row.l"),
    },
    "a helper": {
        "# GLOBAL": "def scores(q, k):\n    return q @ k.T",
        **changed(S, DOT, "scores(Q_i, K_j)"),
    },
    "a helper that puts on chip": {
        "# GLOBAL": "def scores(sram, q, k):\n    return sram.on_chip(q @ k.T)",
        **changed(S, f"on_chip({DOT})", "scores(sram, Q_i, K_j)"),
    },
    "a helper in the function": {
        "# BEFORE": "def scores(q, k):\n        return on_chip(q @ k.T)",
        **changed(S, f"on_chip({DOT})", "scores(Q_i, K_j)"),
    },
    "a lambda": {
        "# BEFORE": "scores = lambda q, k: q @ k.T",
        **changed(S, DOT, "scores(Q_i, K_j)"),
    },
    "partial": {"# BEFORE": "put = partial(sram.on_chip)", **changed(S, "on_chip(", "put(")},
    "a cached helper": {
        "# GLOBAL": "@lru_cache\ndef ones(n):\n    return np.ones((n, 1), bool)",
        **changed(S, DOT, f"np.where(ones(Q_i.shape[0]), {DOT}, -np.inf)"),
    },
    "np.where": changed(P, "exp(S - m_new)", "np.where(S > -np.inf, exp(S - m_new), 0.0)"),
    "turns are counted": {"# BEFORE": "turns = []", "# END": "turns.append((i, j))"},
    "peaks are noted": {"# BEFORE": "peaks = {}", "# END": "peaks[i, j] = sram.peak"},
    "a log": {"# BEFORE": "lines = []", "# END": "lines.append(f'{i} {j}')"},
    "a register": {"# BEFORE": "most = 0.0", "# END": "most = most + 1.0"},
    "names of tiles": {"# BEFORE": "names = set()", "# END": "names.add(f'S_{i}{j}')"},
    "a tile is freed": {A: A + "            sram.evict(V_j)\n"},
    "tiles are freed": {"# END": "sram.evict(K_j, V_j, P)"},
    "the row block is freed": {"# STORED": "sram.evict(Q_i)"},
    "enumerate": {"for j in sram.loop(blocks.T_c)": "for _, j in enumerate(sram.loop(blocks.T_c))"},
    "zip": {"for j in sram.loop(blocks.T_c)": "for j, _ in zip(sram.loop(blocks.T_c), range(99))"},
    "a generator of tiles": {
        "for j in sram.loop(blocks.T_c)": "for K_j, V_j in tiles()",
        LOAD: "",
        "# ROW": (
            "def tiles():\n            for j in sram.loop(blocks.T_c):\n                yield "
            "sram.load(K[j], V[j])"
        ),
    },
    "V is loaded late": {
        **changed(LOAD, "K_j, V_j", "K_j", ", V[j]", ""),
        A: "            V_j = sram.load(V[j])\n" + A,
    },
    "K is loaded within the expression": {
        **changed(LOAD, "K_j, V_j", "V_j", "K[j], ", ""),
        **changed(S, "K_j.T", "sram.load(K[j]).T"),
    },
    "V takes the place of K": {
        **changed(LOAD, "K_j, V_j", "K_j", ", V[j]", ""),
        A: "            same = K_j.shape == V[j].shape\n"
        "            V_j = sram.load(V[j], over=K_j) if same else sram.load(V[j])\n" + A,
    },
    "in place, on a tile": {"# TILE": "if type(S) is np.ndarray:\n                S += 0.0"},
    "out=": {"# TILE": "S = on_chip(np.add(S, 0.0, out=S))"},
    "a scratch array": {
        "# BEFORE": "scratch = np.empty((blocks.B_r, blocks.B_c))",
        P: "            if type(S) is np.ndarray:\n"
        "                part = scratch[: S.shape[0], : S.shape[1]]\n"
        "                S = on_chip(np.subtract(S, m_new, out=part), over=S)\n"
        "            else:\n"
        "                S = on_chip(S - m_new, over=S)\n" + P.replace("S - m_new", "S"),
    },
    "views": {LOAD: LOAD + "            K_T = K_j.T\n", **changed(S, "K_j.T", "K_T")},
    "a view is kept": {"# BEFORE": "views = []", LOAD: LOAD + "            views.append(K_j.T)\n"},
    "evicted tiles are kept": {"# BEFORE": "gone = []", "# END": "gone.append(K_j)"},
    "columns one after another": {
        S: "            S = sram.full((Q_i.shape[0], K_j.shape[0]), 0.0)\n"
        "            for c in sram.loop(Q_i.shape[1]):\n"
        "                S = on_chip(S + Q_i[:, c : c + 1] * K_j[:, c : c + 1].T, over=S)\n"
    },
    "keys by a range": {"sram.loop(blocks.T_c)": "sram.loop(range(blocks.T_c))"},
    "an index table": {
        "# BEFORE": (
            "order = np.arange(blocks.T_c)[:, None]\n    order = hbm.place('order', order, "
            "index=True).divide(1, 1)"
        ),
        LOAD: "            b = sram.word(order[j, 0])\n" + LOAD.replace("[j]", "[b]"),
    },
    "a table that is placed late": {
        "# ROW": (
            "if i == 0:\n            order = hbm.place('order', np.arange(blocks.T_c)[:, None], "
            "index=True)"
        )
    },
    "a factor of its own": {
        NEW: NEW + "            alpha = on_chip(exp(m_i - m_new))\n",
        **changed(L, "exp(m_i - m_new)", "alpha"),
        **changed(A, "exp(m_i - m_new)", "alpha"),
    },
    "a number is left over": {"# END": "low = float('-inf')"},
}


TWO_PASS = """
import numpy as np
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum

def mine(hbm, sram, Q, K, V, blocks):
    on_chip = sram.on_chip
    N, d_v = Q.shape[0], V.shape[1]
    O = hbm.empty("O", (N, d_v), V.dtype, "output").divide(blocks.B_r)
    M = hbm.full("m", (N, 1), -np.inf, sram.dtype).divide(blocks.B_r)
    L = hbm.full("l", (N, 1), 0.0, sram.dtype).divide(blocks.B_r)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    for j in sram.loop(blocks.T_c):
        K_j = sram.load(K[j])
        for i in sram.loop(blocks.T_r):
            Q_i, m_i, l_i = sram.load(Q[i], M[i], L[i])
            S = on_chip(Q_i @ K_j.T)
            m_new = on_chip(maximum(m_i, rowmax(S)))
            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(exp(S - m_new)), over=l_i)
            sram.store(L[i], l_i)
            sram.store(M[i], m_new)
    ones = np.ones((1, 1))
    kept = [np.arange(3.0), "between the loops"]
    for i in sram.loop(blocks.T_r):
        Q_i, m_i, l_i = sram.load(Q[i], M[i], L[i])
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            P = on_chip(exp(Q_i @ K_j.T - m_i) / l_i * ones * kept[0][1])
            O_i = on_chip(O_i + P @ V_j, over=O_i)
        sram.store(O[i], O_i)
    return O
"""

PINNED = """
import numpy as np
from flashsim.algorithms.notation import exp, rowsum

def mine(hbm, sram, Q, K, V, blocks):
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    keys = [sram.load(K[j], V[j]) for j in range(blocks.T_c)]
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        l_i, O_i = sram.full((Q_i.shape[0], 1), 0.0), sram.full(O[i].shape, 0.0)
        for K_j, V_j in keys:
            P = sram.on_chip(exp(Q_i @ K_j.T))
            l_i = sram.on_chip(l_i + rowsum(P), over=l_i)
            O_i = sram.on_chip(O_i + P @ V_j, over=O_i)
            sram.evict(P)
        sram.store(O[i], sram.on_chip(O_i / l_i, over=O_i))
    return O
"""

BUFFERED = """
import numpy as np
from flashsim.algorithms.notation import exp, rowsum

def mine(hbm, sram, Q, K, V, blocks):
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    for i in sram.loop(blocks.T_r):
        Q_i, k, v = sram.load(Q[i], K[0], V[0])
        l_i, O_i = sram.full((Q_i.shape[0], 1), 0.0), sram.full(O[i].shape, 0.0)
        for j in range(blocks.T_c):
            K_j = k if j == 0 else sram.load(K[j], over=k)
            V_j = v if j == 0 else sram.load(V[j], over=v)
            P = sram.on_chip(exp(Q_i @ K_j.T))
            l_i = sram.on_chip(l_i + rowsum(P), over=l_i)
            O_i = sram.on_chip(O_i + P @ V_j, over=O_i)
            sram.evict(P)
        sram.store(O[i], sram.on_chip(O_i / l_i, over=O_i))
    return O
"""

SPLIT = """
import numpy as np
from flashsim.algorithms.notation import exp, rowsum

def mine(hbm, sram, Q, K, V, blocks):
    N, d_v = Q.shape[0], V.shape[1]
    O = hbm.empty("O", (N, d_v), V.dtype, "output").divide(blocks.B_r)
    parts = [hbm.empty(f"O{s}", (N, d_v), sram.dtype).divide(blocks.B_r) for s in range(2)]
    sums = [hbm.empty(f"l{s}", (N, 1), sram.dtype).divide(blocks.B_r) for s in range(2)]
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    for s in range(2):
        for i in sram.loop(blocks.T_r):
            Q_i = sram.load(Q[i])
            l_i, O_i = sram.full((Q_i.shape[0], 1), 0.0), sram.full(O[i].shape, 0.0)
            for j in sram.loop(blocks.T_c, where=np.arange(blocks.T_c) % 2 == s):
                K_j, V_j = sram.load(K[j], V[j])
                P = sram.on_chip(exp(Q_i @ K_j.T))
                l_i = sram.on_chip(l_i + rowsum(P), over=l_i)
                O_i = sram.on_chip(O_i + P @ V_j, over=O_i)
            sram.store(parts[s][i], O_i)
            sram.store(sums[s][i], l_i)
    for i in sram.loop(blocks.T_r):
        a, b = sram.load(parts[0][i], sums[0][i])
        c, e = sram.load(parts[1][i], sums[1][i])
        sram.store(O[i], sram.on_chip((a + c) / (b + e)))
    return O
"""


def honest() -> dict[str, str]:
    """Return the text of each, by what it does."""
    texts = {
        "two passes": TWO_PASS,
        "all keys stay on chip": PINNED,
        "one buffer for keys": BUFFERED,
        "split keys": SPLIT,
    }
    for name, changes in VARIATIONS.items():
        text = KEYS_INSIDE
        for before, after in changes.items():
            assert before in text, (name, before)
            text = text.replace(before, after)
        texts[name] = text
    return texts
