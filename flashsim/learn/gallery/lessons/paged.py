"""Keys and values in pages: a table is read, word by word, to find them."""

from __future__ import annotations

import numpy as np

import flashsim
from flashsim import serving
from flashsim.learn.gallery.looking import every, moved
from flashsim.tracing import Trace

TITLE, ORDER = "Pages: a cache that a table names", 82


def record() -> tuple[Trace, ...]:
    """Record two sequences of 5 and 3 keys, on five pages of a pool of six."""
    rng = np.random.default_rng(3)
    Q = [rng.normal(size=(2, 1, 4)) for _ in range(2)]
    K, V = rng.normal(size=(2, 1, 12, 4))
    table, lengths = [[4, 1, 2], [5, 0, -1]], [5, 3]
    trace = flashsim.trace(serving.paged, Q, K, V, table, lengths, page=2, M=100, blocks=(2, 2))
    return (trace,)


def teach(trace: Trace) -> str:
    reads = every(trace, "read K")
    pages = [step.cols[0] // 2 for step in reads if step.cols is not None]
    partial = [step for step in reads if step.cols is not None and step.cols[1] - step.cols[0] == 1]
    words, keys = moved(trace, "table"), moved(trace, "K") // 4
    second = next(step for step in reads if dict(step.loops)["s"] == 1)
    real = serving.count("paged", queries=1, keys=[2048], d=128, dtype="float16", page=16, M=10**6).hbm.by_array
    share = real["table"].bytes / (real["K"].bytes + real["V"].bytes)
    return f"""
        A server does not know how long an answer will be. Room for the longest one would mostly stay empty. So keys and
        values lie in pages, {moved(trace, "lengths")} sequences’ in one pool here, and a table says which pages are
        whose: it is read on the way, through the same memory, and counted.

        » The pool’s order means nothing. The first sequence
        reads pages {", ".join(map(str, pages[:3]))}, in this order; page 3 is nobody’s. Positions come from the table’s
        column, not from where a page lies: the mask and the softmax see keys 0, 1, 2 … as ever.

        Each row block reads a word for each page, {words} in all, against {keys} rows of K and as many of V. At pages of
        16 rows of 128 numbers in float16 the table is {share:.2%} of the traffic. Whoever finds paged kernels slower has
        to look elsewhere than at the table’s bytes.

        The last page is seldom full. Only the rows that are filled are loaded here; a kernel that loads the whole page
        must mask the rest, whatever it holds, and NaN · 0 is NaN.

        [line 3] n: how many keys the sequence has. It is a word of HBM, too.
        [line 7] b, the page’s number. Were it none, or beyond the pool, the run would end here, and name the sequence.
        [read K @ {reads[0].number}] Rows {2 * pages[0]} and {2 * pages[0] + 1} of the pool: page {pages[0]}.
        [read K @ {partial[0].number}] One row: the page has two, and the sequence has no key for the other.
        [write O] The first sequence is done.
        [read K @ {second.number}] The second one begins, on page {pages[3]}.
        [last step] {moved(trace)} accesses, {words + moved(trace, "lengths")} of them words that say where to go.

        [asks @ {partial[0].number}] Another server gives the first sequence other pages. What changes in O?
        [choices] the order in which keys are summed | nothing, not one bit | the last digits
        [right] nothing, not one bit
        [because] Keys come in the order of the table’s columns. Where a page lies in the pool changes no number.
        """
