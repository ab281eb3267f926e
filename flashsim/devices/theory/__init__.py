"""Exact counts of the programs over devices, by formula: a file for each program, which ends in its
form.

Written without the simulator, and equal to what it counts. n is a device's rows, w = d + d_v. A
tile is live if it holds a pair that the mask allows; for row block i of device p against device y,
cols(p, i, y) is how many keys its live tiles have together.
"""

from collections.abc import Mapping
from functools import cache

from flashsim.devices.theory.form import DevicesForm, ExactDevice
from flashsim.devices.theory.mesh_lines import fewest_columns, lines, mesh_total, mesh_words
from flashsim.devices.theory.ring import ring_words
from flashsim.devices.theory.ulysses import ulysses_words
from flashsim.devices.theory.ulysses_backward import (
    ulysses_backward_words,
    ulysses_kept_backward_words,
)
from flashsim.devices.theory.work import balance
from flashsim.theory.closed_form import forms_in

__all__ = [
    "DevicesForm",
    "ExactDevice",
    "balance",
    "fewest_columns",
    "forms",
    "lines",
    "mesh_total",
    "mesh_words",
    "ring_words",
    "ulysses_backward_words",
    "ulysses_kept_backward_words",
    "ulysses_words",
]


@cache
def forms() -> Mapping[tuple[str, str], DevicesForm]:
    """Return the forms, by name and direction."""
    known = forms_in(DevicesForm.package).items()
    return {key: form for key, form in known if isinstance(form, DevicesForm)}
