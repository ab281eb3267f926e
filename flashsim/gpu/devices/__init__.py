"""Attention over several GPUs, one a process: the ring and Ulysses, with the ladder's kernels, over
torch.distributed (NCCL).

engine = flashsim.devices.distributed.engine("nccl")                 # in each process that torchrun
                                                                     has started
links = Links(engine)
part = forward("ring", q, k, v, links=links, causal=True)            # own rows, on the GPU; part.O,
                                                                     part.lse
dq, dk, dv = backward(part, do)
step = Captured(lambda: forward("ring", q, k, v, links=links))       # a CUDA graph: step() runs it
                                                                     again
engine.close()
"""

from __future__ import annotations

from flashsim.gpu.devices.api import Part, backward, forward, share_of
from flashsim.gpu.devices.capturing import Captured
from flashsim.gpu.devices.links import Links

__all__ = ["Captured", "Links", "Part", "backward", "forward", "share_of"]
