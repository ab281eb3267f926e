"""Attention over several GPUs, one a process: the ring and Ulysses, with the ladder's kernels, over
torch.distributed (NCCL).

# in each process that torchrun has started
engine = flashsim.devices.distributed.engine("nccl")
links = Links(engine)
# own rows, on the GPU; part.O, part.lse
part = forward("ring", q, k, v, links=links, causal=True)
dq, dk, dv = backward(part, do)
# a CUDA graph: step() runs it again
step = Captured(lambda: forward("ring", q, k, v, links=links))
engine.close()
"""

from __future__ import annotations

from flashsim.gpu.devices.api import Part, backward, forward, share_of
from flashsim.gpu.devices.capturing import Captured
from flashsim.gpu.devices.links import Links

__all__ = ["Captured", "Links", "Part", "backward", "forward", "share_of"]
