"""Which heads a device computes under Ulysses."""

from __future__ import annotations

from flashsim.devices.share import Share


def heads_of(share: Share, rank: int) -> range:
    """Return the query heads that a device computes."""
    P = len(share.where)
    return range(rank * share.H_q // P, (rank + 1) * share.H_q // P)


def kv_heads_of(share: Share, rank: int) -> range:
    """Return the KV heads that a device's query heads share."""
    heads = heads_of(share, rank)
    if not heads:
        return range(0)
    last = heads.stop - 1
    return range(heads.start // share.group, last // share.group + 1)
