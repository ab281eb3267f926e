"""Whether this machine has what the GPU kernels need, and how records describe it."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from flashsim.gpu.compiling import (
    ARCHITECTURES,
    CompileError,
    MissingGPU,
    architecture,
    compile_file,
    current_device,
    import_cupy,
)


@dataclass(frozen=True)
class Info:
    """`found`: what is there, by name. `missing`: what is missing, each with what to do."""

    found: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether kernels can run here."""
        return not self.missing


def info() -> Info:
    """Look for CuPy, NVRTC with headers (by compiling a kernel), a driver and a GPU. Does not
    raise if one is missing.
    """
    facts = {}
    missing = []
    try:
        cupy = import_cupy()
    except MissingGPU as error:
        return Info({}, [str(error)])
    facts["CuPy"] = cupy.__version__
    try:
        compiled = compile_file(
            "algorithm_1.cu", ("algorithm_1<float, 64, 64, 64>",), {"COUNT": 0}, ARCHITECTURES[0]
        )
        version = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
        registers = next(iter(compiled.resources.values())).registers
        facts["NVRTC"] = (
            f"{version}; algorithm_1 compiles for {compiled.arch}, {registers} registers"
        )
    except (MissingGPU, CompileError) as error:
        missing.append(str(error))
    try:
        device = current_device()
        properties = cupy.cuda.runtime.getDeviceProperties(device)
        driver = cupy.cuda.runtime.driverGetVersion()
        facts["driver"] = f"for CUDA {driver // 1000}.{driver % 1000 // 10}"
        facts["GPU"] = (
            f"{properties['name'].decode()}, {architecture(device)}, "
            f"{properties['multiProcessorCount']} multiprocessors, "
            f"{properties['sharedMemPerBlockOptin'] // 1024} KB of shared memory a block, "
            f"{properties['l2CacheSize'] // 2**20} MB of L2, "
            f"{properties['totalGlobalMem'] // 2**30} GB"
        )
    except MissingGPU as error:
        missing.append(str(error))
    return Info(facts, missing)


def machine() -> dict[str, Any]:
    """Return the GPU, its driver, and the packages' versions. Raises MissingGPU where there is
    none.
    """
    cupy = import_cupy()
    properties = cupy.cuda.runtime.getDeviceProperties(current_device())
    torch = torch_if_there()
    return {
        "gpu": properties["name"].decode(),
        "sms": properties["multiProcessorCount"],
        "l2_bytes": properties["l2CacheSize"],
        "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "torch": torch and torch.__version__,
        "cudnn": torch and torch.backends.cudnn.version(),
        "flash_attn_4": version("flash-attn-4"),
        "flash_attn_3": version("tokenspeed-fa3"),
    }


def torch_if_there() -> Any:
    """Return PyTorch, or None where it is not installed or has no GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch if torch.cuda.is_available() else None


def version(package: str) -> str | None:
    """Return an installed package's version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
