"""Algorithm 5's backward pass. It moves what Algorithm 4 does, for the tiles that are computed."""

from dataclasses import replace

from flashsim.attention.arguments import check_block_mask
from flashsim.attention.options import Option
from flashsim.theory import algorithm_4_flash_backward

FORM = replace(
    algorithm_4_flash_backward.FORM,
    name="block_sparse",
    options=(Option("block_mask", None, check_block_mask),),
)
