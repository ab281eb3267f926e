"""The two memories, HBM and SRAM, and what they count. What is computed on them, they do not
know.
"""

from flashsim.machine.memory import HBM as HBM
from flashsim.machine.memory import SRAM as SRAM
from flashsim.machine.memory import MemoryModelError as MemoryModelError
from flashsim.machine.memory import NotOnChip as NotOnChip
from flashsim.machine.memory import SramOverflow as SramOverflow
