"""What tests/gpu/test_gpu_devices.py starts: the last process ends, and the others must say so in time,
whatever they wait for.

# and rank 1
RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python tests/helpers/dying_gpus.py nccl graph
"""

import os
import sys
import time
from threading import Timer
from typing import Any

import numpy as np
import torch

from flashsim.devices import LinkError, distributed
from flashsim.gpu.devices import Captured, Links, backward, forward, tiles
from tests.helpers import over_gpus


def main() -> None:
    name, what = sys.argv[1:]
    engine: Any = distributed.engine(name, timeout=6)
    if name != "nccl":
        tiles.attend, tiles.gradients, tiles.merge = (
            over_gpus.attend,
            over_gpus.gradients,
            over_gpus.merge,
        )
        tiles.pause = lambda device: None
    links, X = Links(engine), np.ones((64, 8))
    q, k, v, do = (
        torch.randn(2, 256, 64, device=engine.device, dtype=torch.float16) for _ in range(4)
    )

    def both() -> Any:
        part = forward("ring", q, k, v, links=links, causal=True)
        return part.O, *backward(part, do)

    step: Any = Captured(both) if "graph" in what else both
    run: Any = (
        step if what != "program" else lambda: distributed.forward("ring", X, X, X, engine=engine)
    )
    run()
    links.finish()
    print("once", flush=True)
    engine.everyone_s("done")
    if engine.rank == engine.size - 1:
        if "many" in what:
            Timer(1.5, os._exit, [3]).start()
        elif what == "program":
            engine.post = lambda *_: os._exit(3)
        else:
            os._exit(3)
    time.sleep(1)
    began = time.monotonic()
    for _ in range(10**6 if "many" in what else 1):
        try:
            run()
            links.finish()
        except LinkError as error:
            print(f"LinkError after {time.monotonic() - began:.1f} s: {error}", flush=True)
            break
    else:
        print("finished", flush=True)
    try:
        step()
        links.finish()
        print("once more", flush=True)
    except LinkError as error:
        print(f"and again: {error}", flush=True)
    if name == "nccl":
        print(f"the GPU is free: {float(torch.ones(8, device=engine.device).sum()):g}", flush=True)


if __name__ == "__main__":
    main()
