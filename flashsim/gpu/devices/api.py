"""What users call: a process's part of attention over several GPUs, and of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flashsim.attention.arguments import check_choice
from flashsim.attention.problem import Problem
from flashsim.devices.api import share_out
from flashsim.devices.share import Share
from flashsim.gpu.devices import ring, ulysses
from flashsim.gpu.devices.links import Links
from flashsim.memory.device import LinkError

PROGRAMS = ("ring", "ulysses")
DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Part:
    """One process's part: O (H_q, n, d) of own rows, in the inputs' type, and lse, float32.

    lse    (H_q, n) of own rows; of Ulysses, (own heads, N)
    share  which rows each process has
    saved  what the backward pass needs
    """

    name: str
    O: Any
    lse: Any
    share: Share
    links: Links
    saved: tuple[Any, ...]


def forward(
    name: str,
    q: Any,
    k: Any,
    v: Any,
    *,
    links: Links,
    layout: str | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Part:
    """Compute attention over all processes' rows. q (H_q, n, d), k and v (H_kv, n, d) are this
    process's rows: tensors on its GPU.

    name    "ring", or "ulysses", whose devices need as many KV heads each
    layout  which rows a process has, in order: "contiguous", "striped" or "zigzag", the ring's own;
            Ulysses' is contiguous
    scale   None: 1/√d

    Float16 or bfloat16. A batch may be among the heads: (B·H, n, d). Work is queued on PyTorch's
    current stream. All processes make the same calls in the same order. Raises ValueError for
    arguments that make no sense, and `LinkError` if processes have different arguments: the first
    call of a kind compares them.
    """
    share = share_of(name, q, k, v, links=links, layout=layout, causal=causal, scale=scale)
    q, k, v = (X.contiguous() for X in (q, k, v))
    if name == "ring":
        O, L = ring.ring(links, share, q, k, v)
        return Part(name, O, L, share, links, (q, k, v))
    O, heads = ulysses.ulysses(links, share, q, k, v)
    return Part(name, O, heads.L, share, links, (heads,))


def backward(part: Part, do: Any) -> tuple[Any, Any, Any]:
    """Return dq, dk, dv of own rows, for do (H_q, n, d), the gradient of part.O."""
    if do.shape != part.O.shape or do.dtype != part.O.dtype:
        raise ValueError(
            f"do is {tuple(do.shape)}, {do.dtype}; expected as part.O, {tuple(part.O.shape)}, "
            f"{part.O.dtype}"
        )
    do = do.contiguous()
    if part.name == "ring":
        q, k, v = part.saved
        return ring.ring_backward(part.links, part.share, q, k, v, part.O, part.lse, do)
    (heads,) = part.saved
    dq, dk, dv = ulysses.ulysses_backward(part.links, part.share, heads, do)
    return dq, dk, dv


def share_of(
    name: str,
    q: Any,
    k: Any,
    v: Any,
    *,
    links: Links,
    layout: Any = None,
    causal: Any = False,
    scale: Any = None,
) -> Share:
    """Return how rows are shared out, by which the theory counts; arguments and errors as
    `forward`.
    """
    word = _word(name, q, k, v, layout, causal, scale)
    if word not in links.shares:
        links.shares[word] = _agreed(links, word)
    return links.shares[word]


def _word(*values: Any) -> tuple[Any, ...]:
    name, q, k, v, layout, causal, scale = values
    return (
        name,
        tuple(q.shape),
        tuple(k.shape),
        tuple(v.shape),
        q.dtype,
        k.dtype,
        v.dtype,
        layout,
        causal,
        scale,
    )


def _agreed(links: Links, word: tuple[Any, ...]) -> Share:
    """Return the share of what all processes ask for, or raise in all of them."""
    error: Exception | None = None
    try:
        _check(*word)
    except ValueError as found:
        error = found
    words = links.engine.everyone_s(
        (*word[:4], str(word[4]), *word[7:], str(error) if error else "")
    )
    if error:
        raise error
    if failed := [f"rank {rank}: {answer[-1]}" for rank, answer in enumerate(words) if answer[-1]]:
        raise LinkError(f"other processes were given what makes no sense: {'; '.join(failed)}")
    if len({(answer[0], answer[1][::2], answer[2][::2], *answer[4:]) for answer in words}) > 1:
        raise LinkError(
            f"the processes were asked for different things: {'; '.join(map(str, words))}"
        )
    name, q, k, _, dtype, layout, causal, scale, _ = words[links.rank]
    rows = [answer[1][1] for answer in words]
    problem = Problem.of(
        N=sum(rows),
        d=q[2],
        heads=q[0],
        kv_heads=k[0],
        dtype=dtype.removeprefix("torch."),
        causal=causal,
        scale=scale,
    )
    _, share, _ = share_out(name, "forward", problem, links.size, layout, None, None)
    expected = [share.rows(rank) for rank in range(links.size)]
    if rows != expected:
        raise ValueError(
            f"processes have {rows} rows; expected {expected}, as {sum(rows):,} rows are shared out"
        )
    if name == "ulysses":
        ulysses.check(share, layout)
    return share


def _check(name: Any, q: Any, k: Any, v: Any, *others: Any) -> None:
    """Raise ValueError for what makes no sense whatever other processes have."""
    check_choice("name", name, PROGRAMS)
    dtypes = others[:3]
    if any(len(shape) != 3 for shape in (q, k, v)):
        raise ValueError(
            f"q, k, v have shapes {q}, {k}, {v}; expected three axes each, (heads, rows, d)"
        )
    if k != v or q[1:] != k[1:] or q[0] % k[0]:
        raise ValueError(
            f"q, k, v have shapes {q}, {k}, {v}; expected (H_q, n, d) and twice (H_kv, n, d), H_kv "
            "| H_q"
        )
    if len(set(dtypes)) > 1 or str(dtypes[0]).removeprefix("torch.") not in DTYPES:
        raise ValueError(
            f"q, k, v have dtypes {', '.join(map(str, dtypes))}; expected all "
            f"{' or all '.join(DTYPES)}"
        )
