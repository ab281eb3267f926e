"""Three passes, with the N × N matrices S and P in HBM."""

from flashsim.learn.gallery.trace_queries import accesses
from flashsim.tracing import Trace

TITLE = "Algorithm 0: standard attention"
ORDER = 20
RUN = {"algorithm": "standard", "N": 12, "d": 4, "M": 64}


def teach(trace: Trace) -> str:
    N_q = trace.about.shape.N_q
    N_k = trace.about.shape.N_k
    sums = accesses(trace)
    both = accesses(trace, "S", "P")
    K = trace.about.arrays[1]
    groups = {"Q, K and V": "QKV", "S and P": "SP", "O": "O"}
    return f"""
        Standard attention is three passes: S = QKᵀ, P = softmax(S), O = PV. Between them the N × N
        matrices S and P go to HBM and come back. Watch the table of HBM accesses: S is written,
        {N_q * N_k} elements, then read; P is written, then read. A question on the way asks what
        share of all accesses this is. Each pass visits a tile of the grid once, so the tile is
        “done in part” until the last pass has visited it.

        The rows of K are loaded again for each block of rows of Q,
        {K.reads // (K.shape[0] * K.shape[1])} times in all. This is the cost of products that are
        too large for the chip, and it is counted here.

        [write S] The first tile of S leaves for HBM.
        [read S] The second pass begins: row block by row block, all {N_q * N_k} elements of S come
        back.
        [write P] The rows’ softmax leaves for HBM.
        [read P] The third pass begins: P comes back, to be multiplied by V.
        [last step] {both:,} of {sums:,} accesses were to S and P, {both / sums:.0%}.

        [asks @ read S] In the whole run, which arrays are accessed most? Guess.
        [choices] Q, K and V | S and P | O
        [right] {max(groups, key=lambda names: accesses(trace, *groups[names]))}
        [because] S and P: {both:,} accesses; Q, K and V: {accesses(trace, "Q", "K", "V"):,}; O:
        {accesses(trace, "O"):,}. S and P are N × N, the others N × d.
        """
