"""What is best: the tuner, proofs of what no schedule can beat, the optimum of small problems."""
