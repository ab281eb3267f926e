"""Power and clock of a GPU at one moment, read by NVIDIA's management library (NVML).

    sensors = Sensors(device)
    sensors.read()          # (watts, MHz), or None without such a library

The power is the current one. Most programs show an average over a second, but a turn of a benchmark
is shorter.
"""

from __future__ import annotations

import ctypes
from typing import Any

from flashsim.gpu.compiling import import_cupy

LIBRARY = "libnvidia-ml.so.1"
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, in mW
SM_CLOCK = 1  # NVML_CLOCK_SM, in MHz


class _Field(ctypes.Structure):
    """nvmlFieldValue_t, with the value as an unsigned int, as power is."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("failed", ctypes.c_int),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    )


class Sensors:
    """The sensors of one device. It is found by its place on the bus, since the library numbers
    devices in its own order.
    """

    def __init__(self, device: int) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return
        bus = import_cupy().cuda.runtime.deviceGetPCIBusId(device).encode()
        if not library.nvmlInit_v2() and not library.nvmlDeviceGetHandleByPciBusId_v2(
            bus, ctypes.byref(self._handle)
        ):
            self._library = library

    def read(self) -> tuple[float, int] | None:
        """Return the current watts and MHz, or None if they cannot be read."""
        if self._library is None:
            return None
        power = _Field(id=POWER_INSTANT)
        clock = ctypes.c_uint()
        failed = (
            self._library.nvmlDeviceGetFieldValues(self._handle, 1, ctypes.byref(power))
            or power.failed
        )
        failed = failed or self._library.nvmlDeviceGetClockInfo(
            self._handle, SM_CLOCK, ctypes.byref(clock)
        )
        return None if failed else (power.value / 1000, clock.value)
