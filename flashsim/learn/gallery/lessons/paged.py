"""Keys and values in pages: a table is read, word by word, to find them."""

import numpy as np

from flashsim import serving, tracing
from flashsim.learn.gallery.trace_queries import accesses, find_steps
from flashsim.tracing import Trace

TITLE = "Pages: a cache that a table names"
ORDER = 82


def record() -> Trace:
    rng = np.random.default_rng(3)
    Q = [rng.normal(size=(2, 1, 4)) for _ in range(2)]
    K, V = rng.normal(size=(2, 1, 12, 4))
    table = [[4, 1, 2], [5, 0, -1]]
    lengths = [5, 3]
    return tracing.trace(serving.paged, Q, K, V, table, lengths, page=2, M=100, blocks=(2, 2))


def teach(trace: Trace) -> str:
    reads = find_steps(trace, "read K")
    pages = [step.cols[0] // 2 for step in reads if step.cols is not None]
    partial = [step for step in reads if step.cols is not None and step.cols[1] - step.cols[0] == 1]
    words = accesses(trace, "table")
    keys = accesses(trace, "K") // 4
    second = next(step for step in reads if dict(step.loops)["s"] == 1)
    real = serving.count(
        "paged", queries=1, keys=[2048], d=128, dtype="float16", page=16, M=10**6
    ).hbm.by_array
    share = real["table"].bytes / (real["K"].bytes + real["V"].bytes)
    return f"""
        A server does not know how long an answer will be. Room for the longest one would mostly
        stay empty. So keys and values lie in pages; here one pool has the pages of
        {accesses(trace, "lengths")} sequences. A table says which sequence has which pages. The
        program reads the table through the same memory, and this is counted.

        » The order of pages in the pool means nothing. The first sequence reads pages
        {", ".join(map(str, pages[:3]))}, in this order; page 3 belongs to no sequence. The table’s
        column gives the position of a key, not the place of the page: the mask and the softmax see
        keys 0, 1, 2 … as before.

        Each row block reads a word for each page, {words} in all, and {keys} rows of K and as many
        of V. With pages of 16 rows of 128 numbers in float16 the table is {share:.2%} of the bytes
        of K and V. So if a paged kernel is slower, the table’s bytes are not the reason.

        The last page is seldom full. Only the filled rows are loaded here. A kernel that loads the
        whole page must mask the rest, whatever it holds, because NaN · 0 is NaN.

        [line 3] n: how many keys the sequence has. It is a word of HBM, too.
        [line 7] b, the page’s number. If it were −1 or beyond the pool, the run would end here with
        an error that names the sequence.
        [read K @ {reads[0].number}] Rows {2 * pages[0]} and {2 * pages[0] + 1} of the pool: page
        {pages[0]}.
        [read K @ {partial[0].number}] One row: the page has two, and the sequence has no key for
        the other.
        [write O] The first sequence is done.
        [read K @ {second.number}] The second one begins, on page {pages[3]}.
        [last step] {accesses(trace)} accesses, of which {words + accesses(trace, "lengths")} are words of
        table and lengths.

        [asks @ {partial[0].number}] Another server gives the first sequence other pages. What
        changes in O?
        [choices] the order in which keys are summed | nothing, not one bit | the last digits
        [right] nothing, not one bit
        [because] Keys come in the order of the table’s columns. Where a page lies in the pool
        changes no number.
        """
