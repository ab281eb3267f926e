"""Lower bounds: what no schedule can beat, with proofs and certificates.

forward      the forward pass of one KV head
backward     the backward pass
rows         operands that are read by whole rows
words        what devices must receive; words_backward, in a backward pass
certificate  a checker of bounds that imports nothing of flashsim; words_certificate, of devices'
"""

from flashsim.theory.bounds.backward import BackwardBound as BackwardBound
from flashsim.theory.bounds.backward import lower_bound_backward as lower_bound_backward
from flashsim.theory.bounds.forward import LowerBound as LowerBound
from flashsim.theory.bounds.forward import lower_bound as lower_bound
from flashsim.theory.bounds.rows import lower_bound_rows as lower_bound_rows
