"""What torchrun starts in tests/gpu/test_gpu_devices.py: attention over processes, compared with the
whole; rank 0 prints JSON.

torchrun --standalone --nproc-per-node 2 tests/helpers/over_gpus.py nccl       # a GPU a process
# gloo, and PyTorch's arithmetic in the kernels' place
torchrun --standalone --nproc-per-node 3 tests/helpers/over_gpus.py torch
"""

import json
import sys
from typing import Any

import numpy as np
import torch

from flashsim import devices
from flashsim.devices import distributed, theory
from flashsim.gpu.devices import Captured, Links, backward, forward, share_of, tiles
from flashsim.testing import Spec, check_attention

CASES: list[dict[str, Any]] = [
    {"name": "ring", "N": 512, "heads": (4, 2), "causal": True},
    {
        "name": "ring",
        "N": 389,
        "heads": (4, 4),
        "causal": True,
        "layout": "striped",
        "dtype": "bfloat16",
    },
    {"name": "ring", "N": 389, "heads": (2, 1), "causal": True, "layout": "contiguous"},
    {"name": "ring", "N": 301, "heads": (2, 2), "causal": True, "overlap": False},
    {"name": "ring", "N": 256, "heads": (2, 2), "scale": 0.3},
    {"name": "ring", "N": 3, "heads": (2, 2), "causal": True},
    {"name": "ulysses", "N": 389, "heads": (12, 6), "causal": True},
    {"name": "ulysses", "N": 256, "heads": (6, 6), "dtype": "bfloat16"},
]


def scores(q: Any, k: Any, causal: bool, scale: float) -> Any:
    """Scores of q (H_q, n, d) and k (H_kv, m, d), −∞ where the last query's being the last key's
    forbids.
    """
    S = scale * q.double() @ k.double().repeat_interleave(len(q) // len(k), 0).transpose(1, 2)
    n, m = S.shape[1:]
    return (
        S.masked_fill(~torch.ones(n, m, dtype=torch.bool, device=S.device).tril(m - n), -torch.inf)
        if causal
        else S
    )


def attend(q: Any, k: Any, v: Any, *, causal: bool, scale: float) -> tuple[Any, Any]:
    S = scores(q, k, causal, scale)
    O = S.softmax(-1) @ v.double().repeat_interleave(len(q) // len(v), 0)
    return O.to(q.dtype), S.logsumexp(-1).float()


def gradients(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, *, causal: bool, scale: float
) -> tuple[Any, ...]:
    g = len(q) // len(k)
    P = (scores(q, k, causal, scale) - lse.double()[..., None]).exp()
    dP = do.double() @ v.double().repeat_interleave(g, 0).transpose(1, 2)
    dS = scale * P * (dP - (o.double() * do.double()).sum(-1, keepdim=True))
    dq = dS @ k.double().repeat_interleave(g, 0)
    dk, dv = (
        X.reshape(-1, g, *k.shape[1:]).sum(1) for X in (dS.mT @ q.double(), P.mT @ do.double())
    )
    return tuple(X.to(q.dtype) for X in (dq, dk, dv))


def merge(O: Any, L: Any, first: int, o: Any, lse: Any) -> None:
    own = slice(first, first + o.shape[1])
    total = torch.logaddexp(L[:, own], lse)
    weights = ((X - total).exp()[..., None] for X in (L[:, own], lse))
    O[:, own] = sum(w * X for w, X in zip(weights, (O[:, own], o), strict=True)).to(O.dtype)
    L[:, own] = total


def error(result: Any, right: Any) -> float:
    return float((result.double() - right.double()).norm() / right.double().norm())


def gathered(engine: Any, X: Any, share: Any) -> Any:
    """(heads, N, …) of each process's own rows."""
    parts = engine.everyone_s(X.cpu())
    whole = torch.cat(parts, 1)
    whole[:, np.concatenate([*share.where])] = whole.clone()
    return whole


def tried(engine: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Errors of O, L and gradients, relative to float64's of the same inputs, and whether words
    and bytes are the model's.
    """
    options: dict[str, Any] = {
        "dtype": "float16",
        "causal": False,
        "scale": None,
        "overlap": True,
        "layout": None,
    } | case
    (H_q, H_kv), N, d, P = options["heads"], options["N"], 64, engine.size
    rng = np.random.default_rng(0)
    whole = [
        torch.tensor(rng.normal(size=(H, N, d))).to(getattr(torch, options["dtype"]))
        for H in (H_q, H_kv, H_kv, H_q)
    ]
    default = "contiguous" if options["name"] == "ulysses" else "zigzag"
    rows = devices.positions(options["layout"] or default, N, P)[engine.rank]
    q, k, v, do = (X[:, rows].to(engine.device) for X in whole)
    links = Links(engine, overlap=options["overlap"])
    before = engine.handed
    how = {name: options[name] for name in ("layout", "causal", "scale")}
    part = forward(options["name"], q, k, v, links=links, **how)
    share = part.share
    words = [links.words]
    grads = backward(part, do)
    words.append(links.words - words[0])
    model = [
        (theory.ring_words(share, engine.rank), theory.ring_words(share, engine.rank, passes=2))
        if options["name"] == "ring"
        else (
            theory.ulysses_words(share, engine.rank),
            theory.ulysses_kept_backward_words(share, engine.rank),
        )
    ]
    there = 2 * sum(words)
    if options["name"] == "ring":  # dK and dV travel in float32
        there += 2 * (words[1] - words[0])
    Q, K, V, dO = (X.double() for X in whole)
    O, lse = attend(Q, K, V, causal=options["causal"], scale=share.tau)
    right = gradients(Q, K, V, O, lse, dO, causal=options["causal"], scale=share.tau)
    result = {"O": (gathered(engine, part.O, share), O)}
    if options["name"] == "ring":
        result["lse"] = gathered(engine, part.lse, share), lse
    for name, X, Y in zip(("dQ", "dK", "dV"), grads, right, strict=True):
        result[name] = gathered(engine, X, share), Y
    agree = engine.everyone_s(
        (tuple(words) == model[0], there == engine.handed - before == links.bytes)
    )
    return {
        "case": case,
        "errors": {name: error(*both) for name, both in result.items()},
        "agree": agree,
    }


def kit(engine: Any, examples: int) -> dict[str, Any]:
    """The kit on the ring: each process runs it on the same cases, and all give their rows to
    all.
    """
    links = Links(engine)

    def run(q: Any, k: Any, v: Any, do: Any = None, **how: Any) -> Any:
        B, _, N, d = q.shape
        rows = devices.positions("zigzag", N, engine.size)[engine.rank]
        own = [torch.tensor(X.reshape(-1, N, d)[:, rows]).to(engine.device) for X in (q, k, v)]
        part = forward("ring", *own, links=links, **how)
        result = [part.O, part.lse]
        if do is not None:
            result = [
                *backward(part, torch.tensor(do.reshape(-1, N, d)[:, rows]).to(engine.device))
            ]
        whole = [gathered(engine, X, part.share).numpy() for X in result]
        return tuple(X.reshape(B, -1, *X.shape[1:]) for X in whole)

    spec = Spec(
        dtypes=("float16",),
        block=(64, 64),
        causal="bottom_right",
        lse="natural",
        gqa=True,
        scale=True,
        head_dims=(64,),
        cross=False,
        strides="contiguous",
        stores="output_per_block",
        deterministic=False,
    )
    report = check_attention(run, spec, max_examples=examples, backward=run, on_fail="return")
    return {"ok": report.ok, "said": str(report)}


def same_bits(engine: Any) -> bool:
    """Whether the program of the simulation, its blocks sent between GPUs, gives the
    simulation's bits, and bytes.
    """
    rng = np.random.default_rng(1)
    Q, K, V = (rng.normal(size=(H, 70, 8)).astype("float32") for H in (4, 2, 2))
    simulated = devices.forward("ring", Q, K, V, P=engine.size, causal=True)
    before = engine.handed
    part = distributed.forward("ring", Q, K, V, engine=engine, causal=True)
    rows = simulated.share.queries[engine.rank]
    costs = simulated.devices[engine.rank]
    modelled = sum(link.bytes for link in costs.links.values())
    return bool(np.array_equal(part.O, simulated.O[:, rows])) and engine.handed - before == modelled


def captured(engine: Any) -> bool:
    """Whether a graph of both passes, run twice after its inputs changed, gives what calls give."""
    n = 256
    q, k, v, do = (
        torch.randn(4, n, 64, device=engine.device, dtype=torch.float16) for _ in range(4)
    )
    links = Links(engine)

    def step() -> Any:
        part = forward("ring", q, k, v, links=links, causal=True)
        return part.O, *backward(part, do)

    graph = Captured(step)
    q.copy_(torch.randn_like(q))
    graph()
    result = [X.clone() for X in graph()]
    return all(error(X, Y) < 1e-3 for X, Y in zip(result, step(), strict=True))


def refused(engine: Any) -> list[str]:
    """What is said of arguments that make no sense, or not together."""
    links = Links(engine)
    text = []
    q = torch.zeros(4, 8 + engine.rank, 64, device=engine.device, dtype=torch.float16)
    for name, *inputs, how in (
        ("mesh", q, q, q, {}),
        ("ring", q, q[:3], q[:3], {}),
        ("ring", q.double(), q, q, {}),
        ("ring", q, q, q, {}),
        ("ring", q, q, q, {"causal": bool(engine.rank)}),
        ("ulysses", q, q[:1], q[:1], {}),
    ):
        try:
            share_of(name, *inputs, links=links, **how)
        except ValueError as error:
            text.append(str(error))
        except devices.LinkError as error:
            text.append(str(error))
    return text


def main() -> None:
    engine: Any = distributed.engine(sys.argv[1])
    real = engine.device.type == "cuda"
    if not real:
        tiles.attend = attend
        tiles.gradients = gradients
        tiles.merge = merge
        tiles.pause = lambda device: None
        torch.set_num_threads(1)
    result: dict[str, Any] = {
        "cases": [
            tried(engine, case)
            for case in CASES
            if case["heads"][1] % engine.size == 0 or case["name"] == "ring"
        ]
    }
    result["refused"] = refused(engine)
    result["kit"] = kit(engine, int(sys.argv[2]))
    if real:
        result["same bits"] = engine.everyone_s(same_bits(engine))
        result["captured"] = engine.everyone_s(captured(engine))
    if engine.rank == 0:
        print("FOUND", json.dumps(result), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
