"""Attention over several devices. Each has an HBM, an SRAM, and links, over which it sends blocks.

forward, backward   run it on simulated devices
count, exact        what it moves, on lengths alone, and by formula
plan                what it costs by formula alone, in time too, for thousands of devices
Device, LinkError   the two verbs, post and wait
"""

from __future__ import annotations

from flashsim.devices.api import DeviceCosts, DevicesResult, backward, count, exact, forward
from flashsim.devices.layouts import positions
from flashsim.devices.planning import Plan, plan
from flashsim.memory.device import Device, Engine, Link, LinkError, Ticket
from flashsim.memory.network import Network

__all__ = [
    "Device",
    "DeviceCosts",
    "DevicesResult",
    "Engine",
    "Link",
    "LinkError",
    "Network",
    "Plan",
    "Ticket",
    "backward",
    "count",
    "exact",
    "forward",
    "plan",
    "positions",
]
