"""Property tests for anyone's attention kernel: declare what it takes (`Spec`), and let Hypothesis find and shrink its bugs.

from flashsim.testing import Spec, check_attention
check_attention(my_attention, Spec(causal="bottom_right", masks=True), max_examples=300)
"""
