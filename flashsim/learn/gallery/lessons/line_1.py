"""Algorithm 1’s own block sizes fill M, and leave no room for S, ℓ and m."""

from flashsim.learn.gallery.trace_queries import first_step
from flashsim.simulate.api import count
from flashsim.tracing import Trace

TITLE = "Line 1’s blocks, and M"
ORDER = 35
RUN = {"algorithm": "flash_basic", "N": 8, "d": 4, "M": 64, "sizing": "paper"}


def teach(trace: Trace) -> str:
    about = trace.about
    M = about.M
    d = about.shape.d
    B_r = about.blocks.B_r
    B_c = about.blocks.B_c
    full = first_step(trace, "line 8")
    over = first_step(trace, "line 9")
    fullest = next(s for s in trace.steps if trace.events[s.last].occupancy == about.peak)
    held = {
        array: rows * d for array, rows in (("K_j", B_c), ("V_j", B_c), ("Q_i", B_r), ("O_i", B_r))
    }
    used = trace.events[over.last].occupancy
    fit = count("flash_basic", N=about.shape.N_q, d=d, M=M, dtype=about.stored, sizing="fit")
    return f"""
        Line 1 sets B_c = ⌈M/4d⌉ and B_r = min(⌈M/4d⌉, d): for M = {M} and d = {d}, blocks of {B_c}
        and {B_r} rows.

        » Four of them, K_j, V_j, Q_i and O_i, take {" + ".join(map(str, held.values()))} =
        {sum(held.values())} elements. This is all of M. The paper leaves out constants, and so also
        ℓ, m, and the tile S_ij itself.

        Watch SRAM’s bar pass the dashed line at M, in red stripes, from line 8 on. At its fullest
        it holds {about.peak} elements, {round(100 * about.peak / M, 1):g}% of M. So flashsim
        reports this peak, and does not refuse the run. By default the commands take the largest
        blocks of line 1’s shape for which everything fits, here {fit.blocks.B_r} ×
        {fit.blocks.B_c}, and enforce M, and so do the other lessons. The asymptotic claims stay
        true, because only a constant divides M.

        [read Q @ line 8] K, V, Q, O, ℓ, m are loaded: {trace.events[full.last].occupancy} elements
        on a chip for {M}.
        [over M @ line 9] S_ij is made, and {used} elements are on a chip for {M}: {used - M} too
        many.
        [{fullest.label} @ {fullest.number}] The peak: {about.peak} elements.
        [last step] The result is right all the same. With blocks that fit it costs
        {fit.hbm.accesses:,} accesses.

        [asks @ line 9] Line 1 says B_c = ⌈M/4d⌉. How much of M do K_j, V_j, Q_i and O_i take?
        [choices] half | three quarters | all of it
        [right] { {2: "half", 3: "three quarters", 4: "all of it"}[sum(held.values()) * 4 // M] }
        [because] 4 blocks of ⌈M/4d⌉ rows and d columns: 4 · {B_c} · {d} = {sum(held.values())}.
        """
