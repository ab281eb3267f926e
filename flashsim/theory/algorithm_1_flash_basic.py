"""Algorithm 1: FlashAttention, forward. It moves what Algorithm 2 does."""

from dataclasses import replace

from flashsim.theory import algorithm_2_flash

FORM = replace(algorithm_2_flash.FORM, name="flash_basic", plain=True, sink=None)
