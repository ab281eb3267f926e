"""What attention over P devices costs by formula alone, also in time: quick for thousands of
devices.

Time is a model. A device does `flops` operations a second, 2(d + d_v) for each pair of a query
head's row and a key, and sends `link` bytes a second. All devices begin each step together. A step
of the ring takes as long as its arithmetic or its messages, whichever is longer; Ulysses and the
mesh wait for their messages before and after the arithmetic. HBM is assumed to be fast enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_choice, check_number
from flashsim.attention.masks.rules import Causal
from flashsim.attention.problem import EVERYTHING, Problem
from flashsim.devices.api import form_of, share_out
from flashsim.devices.bounds import lower_words, most_work
from flashsim.devices.share import Share
from flashsim.theory.bounds.words import WordsBound

PLANNED = ("ring", "ulysses", "mesh")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one program costs on P devices.

    words, most_words  that all send together, and one at most
    accesses           HBM accesses of the device with the most rows, or heads; None: a mask is not
                       counted here
    room               elements that such a device has in HBM, and M
    work, mean         pairs of heads' rows that the busiest device does, and a device on average
    bound              on words, for devices that do no more and have no more room
    compute, links, seconds  of arithmetic, of messages, and of both as they overlap; None without
                             speeds
    """

    name: str
    P: int
    columns: int
    layout: str
    words: int
    most_words: int
    accesses: int | None
    room: int
    work: int
    mean: float
    bound: WordsBound
    compute: float | None = None
    links: float | None = None
    seconds: float | None = None

    @property
    def over_bound(self) -> float | None:
        """Words ÷ bound; None where nothing need be sent."""
        return self.words / self.bound.words if self.bound.words else None


def plan(
    name: str,
    *,
    P: int,
    N: int,
    d: int,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: Any = "float32",
    M: Any = None,
    layout: str | None = None,
    columns: int | None = None,
    causal: bool = False,
    flops: float | None = None,
    link: float | None = None,
) -> Plan:
    """Return the costs of a forward pass under "ring", "ulysses" or "mesh", with no mask or a
    causal one.

    flops, link  operations, and bytes over all its links, that a device does and sends in a second;
                 None: no time
    Other arguments as in `flashsim.devices.count`. Raises ValueError.
    """
    check_choice("name", name, PLANNED)
    for key, value in (("flops", flops), ("link", link)):
        if value is not None:
            check_number(key, value, "a number above 0", lambda number: number > 0)
    fields = {
        "N": N,
        "d": d,
        "d_v": d_v,
        "M": M,
        "heads": heads,
        "kv_heads": kv_heads,
        "dtype": dtype,
    }
    problem = Problem.of(**fields, causal=causal)
    program, share, columns = share_out(name, "forward", problem, P, layout, columns, None)
    shape = problem.shape
    layout = layout or program.layout
    where = share.where
    if program.whole_heads and share.H_q < P:
        raise ValueError(
            f"P is {P}; expected at most {share.H_q} devices under Ulysses, one for each query head"
        )
    form = form_of(program)
    size_of = form.room
    assert size_of is not None
    words = [form.words(share, p, columns) for p in range(P)]
    largest = max(range(P), key=lambda p: size_of(share, p, columns))
    open_share = Share(Problem.of(**fields), where, where, share.B_r, share.B_c)
    hbm = form.device(open_share, largest, columns).hbm
    room = sum(array.size for array in hbm.by_array.values()) + problem.M
    work = most_work(program, share, columns)
    bound = lower_words(share, work, S=room)
    result = Plan(
        name=name,
        P=P,
        columns=columns,
        layout=layout,
        words=sum(words),
        most_words=max(words),
        accesses=None if causal else hbm.accesses,
        room=room,
        work=work,
        mean=bound.pairs * share.H_q / P,
        bound=bound,
    )
    if flops is None or link is None:
        return result
    each = 2 * (shape.d + shape.d_v) / flops
    size = problem.dtype.itemsize / link
    compute = work * each
    links = max(words) * size
    seconds = compute + links
    if name == "ring":
        steps = np.array(lock_step(share, layout)) * share.H_q * each
        hop = share.most_rows * share.H_kv * (shape.d + shape.d_v) * size
        compute = float(steps.sum())
        all_but_last = np.maximum(steps[:-1], hop)
        seconds = float(all_but_last.sum() + steps[-1])
    return Plan(**{**vars(result), "compute": compute, "links": links, "seconds": seconds})


def lock_step(share: Share, layout: str) -> list[int]:
    """Return the most pairs of one head that a device does in each step of the ring, with no
    mask or a causal one.
    """
    P = len(share.where)
    sizes = np.array([*map(len, share.where)])
    if share.problem.mask is EVERYTHING:
        pairs = [sizes * np.roll(sizes, s) for s in range(P)]
        return [int(each.max()) for each in pairs]
    if type(share.problem.mask) is not Causal:
        raise ValueError(f"mask is {share.problem.mask!r}; expected no mask or a causal one")
    equal = bool((sizes == sizes[0]).all())
    equal_chunks = equal and (layout != "zigzag" or sizes[0] % 2 == 0)
    if equal_chunks and P > 1:
        first = _causal_step(share, layout, 0)
        other = _causal_step(share, layout, 1)
        return [first] + [other] * (P - 1)
    return [_causal_step(share, layout, s) for s in range(P)]


def _causal_step(share: Share, layout: str, s: int) -> int:
    """Σ over rows a ≤ i < a + h of the keys b ≤ j < b + k with j ≤ i: T(a + h − b) − T(a − b),
    less those beyond b + k.
    """
    P = len(share.where)
    N = len(share)
    x = np.arange(P)
    y = (x - s) % P
    if layout == "striped":
        n = np.array([*map(len, share.where)])
        on_diagonal = n * (y <= x)
        pairs = n * (n - 1) // 2 + on_diagonal
        return int(pairs.max())
    if layout == "contiguous":
        chunk = -(-N // P)
        row_chunks = [x]
        key_chunks = [y]
    else:
        chunk = -(-N // (2 * P))
        row_chunks = [x, 2 * P - 1 - x]
        key_chunks = [y, 2 * P - 1 - y]
    met = np.zeros(P, np.int64)
    for rows in row_chunks:
        for keys in key_chunks:
            a = np.minimum(rows * chunk, N)
            b = np.minimum(keys * chunk, N)
            h = np.minimum(a + chunk, N) - a
            k = np.minimum(b + chunk, N) - b
            met += (
                _triangle(a + h - b)
                - _triangle(a - b)
                - _triangle(a + h - b - k)
                + _triangle(a - b - k)
            )
    return int(met.max())


def _triangle(m: Any) -> Any:
    m = np.maximum(m, 0)
    return m * (m + 1) // 2


def hidden_from(
    *,
    heads: int,
    kv_heads: int,
    itemsize: int,
    flops: float,
    link: float,
    causal: bool = False,
) -> float:
    """Return from how many rows a device a step's arithmetic takes longer than its messages:
    H_kv·bytes·F / (2·H_q·B).

    Under a causal mask with zigzag or striped rows, from twice as many, because each step has half
    of the pairs.
    """
    rows = kv_heads * itemsize * flops / (2 * heads * link)
    return 2 * rows if causal else rows


def star_trail(share: Share) -> tuple[int, int] | None:
    """Return (C, words of all devices) of StarTrail with the fewest words, C > 1 and C² | P; None
    if there is none.

    "StarTrail" (Liu et al., arXiv 2407.00611), as read here: a team of C devices gathers its rows
    of Q, K and V; its members begin at C places of the sequence, to which K and V of a team travel;
    then these go P/C² steps round a ring of their own; parts of O, with ℓ and m, are summed in the
    team.
    """
    P = len(share.where)
    N = len(share)
    w = share.problem.shape.d + share.problem.shape.d_v
    totals = {}
    for C in range(2, P + 1):
        if P % C**2 == 0:
            of_team = (C - 1) * (w + 2) * share.H_q
            of_keys = (P // C + C - 2) * w * share.H_kv
            totals[C] = N * (of_team + of_keys)
    if not totals:
        return None
    return min(totals.items(), key=lambda each: each[1])
