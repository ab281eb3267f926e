"""Bugs met since the strategies were frozen, by authors who know the strategies. Each was written before it was checked."""

from __future__ import annotations

from flashsim.testing.mutants.mutant import Mutant

# fmt: off
SINCE: tuple[Mutant, ...] = (
    # the kit met it in a public kernel; there is no thread
    Mutant("causal_offset_flipped", "The causal diagonal is moved by N_q − N_k, not by N_k − N_q.", (), "tiled",
           (("shift = N_k - N_q  # causal", "shift = N_q - N_k  # causal"),
            ("shift = N_k - N_q  # as in", "shift = N_q - N_k  # as in"))),
    Mutant("causal_offset_unsigned",
           "The causal diagonal's offset N_k − N_q is kept without a sign: with more queries than keys nothing is masked.",
           ("pytorch/pytorch#193632",), "unfused",
           (("np.arange(N_q)[:, None] + N_k - N_q", "np.arange(N_q)[:, None] + (N_k - N_q) % 2**32"),)),
)
# fmt: on
