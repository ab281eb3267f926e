"""The one way from a problem to a result: a plan, `simulate`, an outcome.

plan.py       what a plan, a launch and an operand are
pipeline.py   `simulate`: for each launch a memory, its operands in HBM, the program's function
outcome.py    what launches leave, and what they cost

attention.py  attention as a plan; planning.py makes it; tile_masks.py, live_tiles.py,
              interleaving.py are its parts
sums.py       the passes that follow: gradients that heads have in parts are summed up
stacking.py   results of heads become arrays
matrices.py   a program on matrices of given sizes as a plan
api.py        `forward`, `backward`, `count`

shadow.py, following.py, rehearsal.py, least.py
              what is done to trust a function of the user's own: it is tried by a copy that nobody
              notices, followed line by line, run on small numbers, compared with a lower bound
"""
