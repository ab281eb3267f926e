"""Two layers fused: the hidden one stays on chip, and dead blocks of weights are never read."""

from typing import Any

import numpy as np

from flashsim import tracing
from flashsim.extensions import mlp
from flashsim.learn.gallery.trace_queries import accesses, first_step, short, tile_value
from flashsim.tracing import Trace

TITLE = "A sparse MLP in one pass"
ORDER = 110


def record() -> Trace:
    rng = np.random.default_rng(3)
    X, W1, W2 = (rng.integers(-2, 3, size=size) + 0.0 for size in ((4, 4), (4, 8), (8, 2)))
    mask1 = np.array([[1, 1, 0, 0], [1, 0, 0, 1]], bool)
    return tracing.trace(mlp.run, X, W1, W2, mask1, blocks=(2, 2, 2, 2), M=32)


def teach(trace: Trace) -> str:
    N, d, f, o = (size for _, size in trace.about.sizes)
    hidden = sorted({dict(s.loops)["j"] for s in trace.steps if "j" in dict(s.loops)})
    (dead,) = set(range(trace.about.blocks.T_c)) - set(hidden)
    relu = first_step(trace, "line 12")
    before = tile_value(trace, trace.steps[relu.number - 1], "H_ij")
    after = tile_value(trace, relu, "H_ij")
    passed = next(s for s in trace.steps if dict(s.loops).get("j", 0) > dead)
    Y = tile_value(trace, first_step(trace, "write Y"), "Y[0, 0]")
    mask1 = np.array([[1, 1, 0, 0], [1, 0, 0, 1]], bool)
    blocks = tuple(n for _, n in trace.about.cuts)
    unfused = mlp.exact(
        N=N, d=d, f=f, o=o, blocks=blocks, mask1=mask1, dtype=trace.about.stored, fused=False
    ).hbm
    M = 1024**2
    options: dict[str, dict[str, Any]] = {
        "fused": {},
        "square": {"fused": False, "tiles": "square"},
    }
    large = {}  # accesses for each element of the hidden layer
    for name in options:
        for size in (M // 9, M):
            count = mlp.exact(N=2048, d=1024, f=4096, M=size, **options[name])
            large[name, size] = count.hbm.accesses / (2048 * 4096)
    return f"""
        A perceptron of two layers, Y = relu(X W1) W2, follows each attention in a transformer. If
        one layer runs after the other, the hidden layer H, N × {f} here, is written to HBM and read
        again, like S and P in standard attention. The same loop avoids this: a tile of H is made,
        passed through relu, multiplied by its rows of W2, and forgotten. The tiles of the picture
        are tiles of H; none is ever in HBM.

        The weights come in blocks of 2 × 2, and half of W1’s are zeros, which are never loaded.
        This run moves {accesses(trace)} elements; with H in HBM and the same blocks it would be
        {unfused.accesses}.

        » Where a whole column of W1’s blocks is dead, line 6 leaves the tile out: {len(hidden)}
        tiles of H pass before Y_i is done.

        Fusing does not always save. Rows of X and of Y share the chip, so fewer of them fit, and
        the weights are read more often. A dense MLP 1,024 → 4,096 → 1,024 with M = d²/9 moves
        {large["fused", M // 9]:g} elements for each element of H if fused, and
        {large["square", M // 9]:g} in square tiles that write H. From M ≈ d² on fusing moves less,
        {large["fused", M]:g} instead of {large["square", M]:g}.

        [read W1] X_i is on chip, H_ij starts at 0, and the first live block of W1 comes.
        [line 12] relu: {int((before < 0).sum())} of {before.size} elements were below 0, the
        largest is {short(after.max())}. H_ij is complete, on chip and nowhere else.
        [read W2] W2’s rows for this tile. Nothing was written in between.
        [line 15] Y_i takes in H_ij W2_jk, and stays on chip.
        [line 7 @ {passed.number}] From tile {dead} to tile {dead + 2}: column {dead + 1} of W1’s
        blocks is dead.
        [write Y] Y_i is written once; its first element is {short(Y[0, 0])}.
        [last step] {accesses(trace)} accesses; H’s {N * f} elements were never among them.

        [asks @ {passed.number}] Column {dead + 1} of W1’s blocks is all zeros; row {dead + 1} of
        W2’s blocks is not. How often will that row be read?
        [choices] never | once for each row block | once
        [right] never
        [because] H is relu(0) = 0 there, which adds nothing, whatever W2 holds. With a bias it
        would be relu(b), and the row would be needed.
        """
