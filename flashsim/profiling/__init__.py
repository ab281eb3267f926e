"""What the kernels and operators that people have move: counted on a CPU, beside closed forms and
bounds.

profile = flashsim.profiling.count(attention, q, k, v, causal=True)
profile.by_array["K"].reads      # elements
profile.nearest                  # flashsim's program with the nearest accesses
profile.over_bound()             # accesses ÷ the fewest that any schedule makes
profile.findings                 # what moves without need, with the line

flashsim.profiling.law(attention, problem).traffic(1_048_576)   # from counts at short lengths
"""

from flashsim.profiling.calls import count, count_attention
from flashsim.profiling.errors import OutsideArrays, ProfilingError
from flashsim.profiling.findings import Finding
from flashsim.profiling.laws import Law, law
from flashsim.profiling.operators import fused
from flashsim.profiling.profile import Profile

__all__ = [
    "Finding",
    "Law",
    "OutsideArrays",
    "Profile",
    "ProfilingError",
    "count",
    "count_attention",
    "fused",
    "law",
]
