"""The two memories, HBM and SRAM, and what they count. What is computed on them, they do not
know.
"""

from flashsim.memory.errors import MemoryModelError as MemoryModelError
from flashsim.memory.errors import NotOnChip as NotOnChip
from flashsim.memory.errors import SramOverflow as SramOverflow
from flashsim.memory.hbm import HBM as HBM
from flashsim.memory.sram import SRAM as SRAM
