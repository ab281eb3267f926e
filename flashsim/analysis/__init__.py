"""What users study with: sweeps over many points, the best blocks, proofs, optima of small
problems, and the ledger of checked claims.
"""
