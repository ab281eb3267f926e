"""A result of a user's function that is computed with, but was not put on chip, is told at the
line that made it.
"""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.memory.errors import NotOnChip
from flashsim.reference import attention
from flashsim.simulate import following
from tests.helpers.own import module_of

rng = np.random.default_rng(0)
Q, K, V = rng.normal(size=(3, 9, 4))

MINE = """
import numpy as np
from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum

def mine(hbm, sram, Q, K, V, blocks):
    on_chip = sram.on_chip
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        m_i, l_i = sram.full((Q_i.shape[0], 1), -np.inf), sram.full((Q_i.shape[0], 1), 0.0)
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            SCORES
            m_new = on_chip(maximum(m_i, rowmax(S)))
            P = on_chip(exp(S - m_new))
            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(P), over=l_i)
            O_i = on_chip(exp(m_i - m_new) * O_i + P @ V_j, over=O_i)
            m_i = on_chip(m_new, over=m_i)
        O_i = on_chip(O_i / l_i, over=O_i)
        sram.store(O[i], O_i)
    return O
"""
SCORES = "S = on_chip(Q_i @ K_j.T)"

FORGOTTEN = {
    "scores": (SCORES, "S = Q_i @ K_j.T", "S (4×5)"),
    "of what is loaded within": (SCORES, "S = Q_i @ sram.load(K[j]).T", "S (4×5)"),
    "of nothing but what is loaded within": (
        "Q_i = sram.load(Q[i])",
        "Q_i = 1 * sram.load(Q[i])",
        "Q_i (4×4)",
    ),
    "over several lines": (SCORES, "S = (\n                Q_i @ K_j.T\n            )", "S (4×5)"),
    "a view of a result": (
        SCORES,
        "S = Q_i @ K_j.T\n            S = on_chip((1 * S).T.T)",
        "S (4×5)",
    ),
    "one of two": (SCORES, "S, left = Q_i @ K_j.T, j", "S (4×5)"),
    "changed in place": (
        SCORES,
        "S = Q_i @ K_j.T\n            S *= 1\n            S = on_chip(S)",
        "S (4×5)",
    ),
    "a copy": (SCORES, "K_T = K_j.T.copy()\n            S = on_chip(Q_i @ K_T)", "K_T (4×5)"),
    "a column": (
        "m_new = on_chip(maximum(m_i, rowmax(S)))",
        "m_new = maximum(m_i, rowmax(S))",
        "m_new (4×1)",
    ),
    "in the turn before": (
        "sram.load(K[j], V[j])",
        "sram.load(K[j], V[j]); X = 0 if i + j == 0 else X + Q_i",
        "X (4×4)",
    ),
    "after the loop": (
        "O_i = on_chip(O_i / l_i, over=O_i)",
        "x = O_i / l_i\n        O_i = on_chip(1 * x, over=O_i)",
        "x (4×4)",
    ),
}


@pytest.mark.parametrize(("right", "wrong", "message"), FORGOTTEN.values(), ids=list(FORGOTTEN))
def test_a_forgotten_on_chip_is_told_at_its_line(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    text = MINE.replace("SCORES", SCORES)
    assert right in text
    file = tmp_path / "mine.py"
    mine = module_of(text.replace(right, wrong), file).mine
    with pytest.raises(
        NotOnChip, match=re.escape(f"{message} was not put on chip, and line ")
    ) as caught:
        flashsim.forward(mine, Q, K, V, blocks=(4, 5), M=500)
    (note,) = caught.value.__notes__
    first_word = message.split()[0]
    line_with_it = next(line for line in wrong.splitlines() if first_word in line)
    line = re.escape(line_with_it.strip())
    assert re.fullmatch(rf"at line \d+ of {re.escape(str(file))}: .*{line}.*", note)
    assert sys.gettrace() is None


FINE = {
    "put there by the next statement": "S = Q_i @ K_j.T\n            repr(S)\n            S = sram.on_chip(S)",
    "never computed with": "other = Q_i @ K_j.T\n            S = on_chip(Q_i @ K_j.T)",
    "views": (
        "K_T = K_j.T\n            half = K_T.T.reshape(-1)[::2]\n            S = on_chip(Q_i @ K_T "
        "+ 0 * half.sum())"
    ),
    "of no tile": "near = 0.0 * np.arange(Q_i.shape[0])[:, None] - np.arange(len(K_j)) * 0.0\n"
    "            S = on_chip(Q_i @ K_j.T + near)",
    "booleans, indices, scalars": "S = on_chip(Q_i @ K_j.T)\n            keep, top = S > -np.inf, "
    "S.argmax(axis=1)\n"
    "            most = S.max()\n            S = on_chip(np.where(keep, S, most * top[0]), over=S)",
    "within the expression": "S = on_chip(np.log((lambda S: exp(S))(Q_i @ K_j.T)))",
    "by another name": "put = on_chip\n            S = put(Q_i @ K_j.T)",
    "the size of a view": "X = Q_i @ K_j.T\n            n = X.T.shape[0] + len(X.T)\n"
    "            S = on_chip(Q_i @ K_j.T + 0 * n)",
    "a view put there": "S_T = K_j @ Q_i.T\n            S = on_chip(S_T.T)",
    "a name of the expression's own": "X = Q_i @ K_j.T\n"
    "            S = on_chip(sum((lambda X: X / 2)(x) for x in [X for X in [Q_i @ K_j.T] * 2]))",
    "in a list": "tiles = [on_chip(Q_i @ K_j.T)]\n            S = tiles[0]",
}


@pytest.mark.parametrize("scores", FINE.values(), ids=list(FINE))
@pytest.mark.parametrize("blocks", [(4, 5), (1, 1)])
def test_what_is_right_is_not_refused(scores: str, blocks: tuple[int, int], tmp_path: Path) -> None:
    mine = module_of(MINE.replace("SCORES", scores), tmp_path / "mine.py").mine
    run = flashsim.forward(mine, Q, K, V, blocks=blocks, M=500)
    assert np.allclose(run.O, attention(Q, K, V))


def test_what_another_tracer_follows_is_left_to_it(tmp_path: Path) -> None:
    mine = module_of(MINE.replace("SCORES", "S = Q_i @ K_j.T"), tmp_path / "mine.py").mine

    def tracer(*_: Any) -> None:
        return None

    sys.settrace(tracer)
    try:
        flashsim.forward(mine, Q, K, V, blocks=(4, 5), M=500)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)


def test_flashsim_s_own_algorithms_forget_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PACKAGE", "/nowhere")
    for algorithm in FORWARD.values():
        run = flashsim.forward(algorithm, Q, K, V, blocks=(3, 4), M=500)
        for each in BACKWARD.values():
            if each.forward_pass == algorithm.name:
                flashsim.backward(each, run, Q)
