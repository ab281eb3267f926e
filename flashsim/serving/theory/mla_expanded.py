"""Latent attention, not absorbed. n keys in all, w = u + rope columns of C.

    reads   Q: R·d   C: 2n·w   W_UK: (d − rope)u   W_UV: d_v·u
            K: d·Σ cover(e_i, B_c)   V: d_v·Σ cover(e_i, B_c)
    writes  K: n·d   V: n·d_v   O: R·d_v   L: R
    peak    q_outer's; or making K, u(d − rope) + c(w + d), or V, u·d_v + c(w + d_v)

u is the option `latent`.
"""

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import BatchForm, Moved, moves, sequences, tile_peak, whole


def traffic(p: Batch, latent: int, rope: int) -> dict[str, Moved]:
    n = sum(p.keys)
    keys = sum(whole(blocks.cover(p.B_c)) for blocks in sequences(p))
    expanded = {X: Moved(keys * w, n * w, ("C", w)) for X, w in (("K", p.d), ("V", p.d_v))}
    return (
        moves(p, C=2 * n * (latent + rope), W_UK=(p.d - rope) * latent, W_UV=p.d_v * latent)
        | expanded
    )


def peak(p: Batch, latent: int, rope: int) -> int:
    """Making K, making V, or attention."""
    c = min(p.B_c, sum(p.keys))
    w = latent + rope
    making = max(latent * (p.d - rope) + c * (w + p.d), latent * p.d_v + c * (w + p.d_v))
    return max(making, *(tile_peak(p, blocks.b, blocks.first(p.B_c)) for blocks in sequences(p)))


FORM = BatchForm(name="mla_expanded", traffic=traffic, peak=peak)
