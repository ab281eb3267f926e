"""A ring of four devices: keys and values go round, queries stay."""

import numpy as np

from flashsim import devices
from flashsim.devices.tracing import trace as trace_of
from flashsim.learn.gallery.trace_queries import accesses, find_steps, first_step
from flashsim.tracing import Trace

TITLE = "A ring of devices"
ORDER = 86


def record() -> Trace:
    Q, K, V = np.random.default_rng(0).normal(size=(3, 16, 2))
    return trace_of("ring", Q, K, V, P=4, rank=1, layout="contiguous", blocks=(2, 2), M=64)


def teach(trace: Trace) -> str:
    about = trace.about
    lanes = trace.lanes
    assert lanes is not None
    P = len(lanes.kinds)
    n = about.shape.N_q
    waited = find_steps(trace, "line 15")
    count = devices.count(
        "ring", P=P, N=P * n, d=about.shape.d, layout="contiguous", blocks=(2, 2), M=about.M
    )
    words = count.devices[1].words
    spare = accesses(trace, "O_run", "l_run", "m_run")
    assert count.devices[1].hbm.accesses == accesses(trace)
    assert [dict(step.loops) for step in waited] == [{}] * (P - 1)
    second = first_step(trace, "read K_0")
    flying = [message for message in lanes.messages if message[1] <= second.number < message[3]]
    back = first_step(trace, "read O_run").number
    return f"""
        A sequence that is too long for one device is divided: {P} devices have {n} rows of Q, K and
        V each. Every query must meet every key. So the queries stay, and the keys and values go
        round a ring, one device further in each of {P} steps. The page plays device 1. Below its
        curves is a lane for each device: what its steps do, and the messages between them. All
        devices run the same program side by side.

        Line 3 posts K and V to the next device before anything is computed, and line 15 waits for
        what comes. In between, the messages are in flight, drawn thick, while the device works on
        the keys that it has. If this work takes longer than the messages, the messages cost no
        time.

        » A device sends {words} words over its link, {P - 1} times its {n} rows of K and V. Its
        {accesses(trace)} HBM accesses are counted separately; {spare} of them are for O, ℓ and m,
        which go to HBM between steps, because the chip is needed for the next row block.

        [line 3] K and V are on their way to device 2; from device 0 come others, into K_0 and V_0,
        which read as NaN until line 15.
        [line 8] Meanwhile the device attends to its own keys, as `q_outer` does.
        [line 13] O_i, ℓ_i and m_i are written unfinished, in the precision of the chip: more keys
        will come.
        [line 15] Device 0's keys are here, and this device's own keys have arrived at device 2.
        They are not needed here any more.
        [read O_run @ {back}] The row block's O, ℓ and m come back, and the sum continues.
        [read K_0 @ {second.number}] The keys of device 0, while {len(flying)} messages are in
        flight again.
        [last step] All {P} devices' keys have passed. O is complete, and K and V were never in one
        place.

        [asks @ line 15] How many words does a device send if there are twice as many devices, for
        the same sequence?
        [choices] about half | about as many | about twice as many
        [right] about as many
        [because] Nearly all K and V pass through every device, however many share the work: (N −
        n)(d + d_v) words.
        """
