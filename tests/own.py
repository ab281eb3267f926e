"""Algorithms of one's own, as a user would write them: a file's text, for the command line, and the function in it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

TWO_SWEEPS = '''"""Sweep the keys twice: for ℓ and m, then for O, which is never rescaled."""

import numpy as np

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def two_sweeps(hbm, sram, Q, K, V, blocks):
    on_chip = sram.on_chip
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        m_i, l_i = sram.full((Q_i.shape[0], 1), -np.inf), sram.full((Q_i.shape[0], 1), 0.0)
        for j in sram.loop(blocks.T_c):
            S_ij = on_chip(Q_i @ sram.load(K[j]).T)
            m_new = on_chip(maximum(m_i, rowmax(S_ij)))
            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(exp(S_ij - m_new)), over=l_i)
            m_i = on_chip(m_new, over=m_i)
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            O_i = on_chip(O_i + on_chip(exp(Q_i @ K_j.T - m_i) / l_i) @ V_j, over=O_i)
        sram.store(O[i], O_i)
    return O
'''
FORM = """
from flashsim.theory import Form


def traffic(p, blocks, tiles):
    return {
        **p.array("Q", "input", reads=p.N_q * p.d),
        **p.array("K", "input", reads=2 * blocks.T_r * p.N_k * p.d),
        **p.array("V", "input", reads=blocks.T_r * p.N_k * p.d_v),
        **p.array("O", "output", writes=p.N_q * p.d_v),
    }


def peak(p, blocks, tiles):
    w = p.d + p.d_v
    return tiles.most(lambda r, c: max(r * p.d + c * p.d + r * c + 3 * r, (r + c) * w + r * c + 2 * r))


FORM = Form(
    name="two_sweeps",
    direction="forward",
    proportions=lambda rows, d: (min(rows, d), rows),
    traffic=traffic,
    peak=peak,
    products=(2, 1),
    extra="0",
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("2 * T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
    },
    plain=True,
)
"""


def module_of(text: str, file: Path) -> ModuleType:
    """Write a file and run it."""
    file.write_text(text, encoding="utf-8")
    module = ModuleType(file.stem)
    exec(compile(text, str(file), "exec"), module.__dict__)
    return module


def two_sweeps(file: Path) -> Any:
    """Return the function, from a file."""
    return module_of(TWO_SWEEPS, file).two_sweeps
