"""Algorithm 5: block-sparse FlashAttention, forward. It moves what Algorithm 2 does, for the
tiles that are computed.
"""

from dataclasses import replace

from flashsim.attention.arguments import check_block_mask
from flashsim.attention.options import Option
from flashsim.theory import algorithm_2_flash

FORM = replace(
    algorithm_2_flash.FORM,
    name="block_sparse",
    options=(Option("block_mask", None, check_block_mask),),
    theta=None,
)
