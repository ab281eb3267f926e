"""Online attention, one key at a time: the running m and s of online softmax, and o, which is corrected along with s.

In flashsim: Algorithm 1, lines 9 to 12, with blocks of one row and one key. Line 12 divides O_i by ℓ_i at every step; here
o stays undivided until the last key is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashsim.learn.examples.prefill import Row, update
from flashsim.learn.examples.text import (
    NEW_MAXIMUM,
    ROUNDED,
    Slip,
    factor,
    number,
    paragraph,
    slips_lines,
    tiny,
    vector,
)
from flashsim.problem.inputs import Array
from flashsim.reference import attention

q = (1.0, 0.0)
K = ((0.5, 0.3), (0.8, -0.2), (0.1, 0.7))
V = ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5))


@dataclass(frozen=True, eq=False)
class OnlineAttention:
    """A query, its keys and values, the score and the step of each, the output; and the same by standard attention."""

    q: Array
    K: Array
    V: Array
    scores: Array
    steps: tuple[Row, ...]
    output: Array
    softmax: Array
    naive: Array
    slips: tuple[Slip, ...] = ()


def online_attention(query: Any, keys: Any, values: Any) -> OnlineAttention:
    """Return attention of one query, unscaled, in one pass over the keys and values."""
    query, keys, values = (np.asarray(a, np.float64) for a in (query, keys, values))
    scores = keys @ query
    m, s, o, steps = np.float64(-np.inf), np.float64(0), np.zeros(values.shape[1]), []
    for j in range(len(keys)):
        steps.append(update(0, m, s, o, scores[j : j + 1], values[j : j + 1]))
        m, s, o = steps[-1].m, steps[-1].s, steps[-1].O
    weights = np.exp(scores - scores.max())
    naive = attention(query[None], keys, values, scale=1.0)[0]
    return OnlineAttention(query, keys, values, scores, tuple(steps), o / s, weights / weights.sum(), naive)


def compute() -> OnlineAttention:
    """Run the chapter's example."""
    run = online_attention(q, K, V)
    share, out = run.softmax[1], run.output[1]
    shares = [f"{p:.4f}" for p in run.softmax]
    slips = (
        Slip(
            "the check by standard attention, second weight",
            "0.4470",
            f"{share:.4f}",
            f"It is {run.steps[1].weights[0]:.4f} / {run.steps[-1].s:.4f} = {share:.6f}. (The "
            f"rounded weights {', '.join(shares)} add up to {sum(map(float, shares)):.4f}; 0.4470 hides that.)",
        ),
        Slip(
            "the check by standard attention, second element of the output",
            "0.5580",
            f"{out:.4f}",
            f"It is {out:.6f}, as the online computation says. The wrong digit comes from 0.4470, and the chapter's "
            "0.5579 and 0.5580, said to match, differ.",
        ),
    )
    return replace(run, slips=slips)


def lines(run: OnlineAttention) -> Iterator[str]:
    """Yield the steps as text."""
    yield f"Online attention of q = {vector(run.q)} over {len(run.K)} keys"
    yield from paragraph(
        "For each key: m_new = max(m, score), correction = exp(m − m_new), o = o · correction, s = s · correction, "
        "weight = exp(score − m_new), o = o + weight · V[j], s = s + weight. At the end, output = o / s. "
        "Scores are not scaled by 1/√d here. " + ROUNDED
    )
    yield ""
    for j, (key, value) in enumerate(zip(run.K, run.V, strict=True)):
        terms = " + ".join(f"{factor(a)}·{factor(b)}" for a, b in zip(run.q, key, strict=True))
        score = f"q·K[{j}] = {terms} = {number(run.scores[j])}"
        yield f"  K[{j}] = [{', '.join(f'{number(x):>4}' for x in key)}]   V[{j}] = {vector(value)}   {score}"
    yield f"\nStep 0: m = −∞, s = 0, o = {vector(np.zeros(run.V.shape[1]))}"
    for j, at in enumerate(run.steps):
        m_old, m, score, weight = (number(x) for x in (at.m_old, at.m, run.scores[j], at.weights[0]))
        yield f"\nStep {j + 1}: key {j}, score {score}"
        yield f"  m_new = max({m_old}, {score}) = {m}" + (NEW_MAXIMUM if at.new_maximum else "")
        yield f"  correction = exp({m_old} − {m}) = {number(at.correction)}"
        yield f"  o = {vector(at.O_old)} · {number(at.correction)} = {vector(at.O_corrected)}"
        yield f"  s = {number(at.s_old)} · {number(at.correction)} = {number(at.s_corrected)}"
        yield f"  weight = exp({score} − {m}) = {weight}"
        yield f"  o = {vector(at.O_corrected)} + {weight} · {vector(run.V[j])} = {vector(at.O)}"
        yield f"  s = {number(at.s_corrected)} + {weight} = {number(at.s)}"
    last = run.steps[-1]
    ratios = ", ".join(f"{number(x)} / {number(last.s)}" for x in last.O)
    yield f"\nOutput = o / s = [{ratios}] = {vector(run.output)}"
    weights = np.exp(run.scores - last.m)
    yield "\nCheck by standard attention, all scores at once:"
    yield f"  softmax = exp({vector(run.scores)} − {number(last.m)}) / sum"
    yield f"          = {vector(weights)} / {number(weights.sum())} = {vector(run.softmax)}"
    yield "  output  = " + " + ".join(f"{number(p)}·{vector(v)}" for p, v in zip(run.softmax, run.V, strict=True))
    yield "          = " + " + ".join(vector(p * v) for p, v in zip(run.softmax, run.V, strict=True))
    difference = abs(run.naive - run.output).max()
    yield f"          = {vector(run.naive)}, the same to within {tiny(difference)}"
    yield from slips_lines(run.slips)
