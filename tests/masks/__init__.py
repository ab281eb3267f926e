"""Masks as the general tests take them, a file each: `mask(rng, N_q, N_k)` returns one, and what
it must mean as booleans.
"""
