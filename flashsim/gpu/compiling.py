"""From a `.cu` file to functions: NVRTC makes a cubin for an architecture, and ptxas reports the
resources it needs.

`compile_file` needs neither a GPU nor a driver, only the packages of the extra `gpu`. So any
machine can compile every kernel for every architecture. `load` needs a GPU. CuPy is imported when
one of them is called.

Both keep what they made: in memory, and as cubins in the folder `cache_folder()`. The key is a hash
of all kernel sources, the defines, the functions, the architecture and NVRTC's version.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flashsim.support.files import write_whole
from flashsim.support.install import extra_with

KERNELS = Path(__file__).parent / "kernels"
# the only ones compiled for; the tests compile for both, with a GPU or without
ARCHITECTURES = ("sm_80", "sm_90a")
INSTALL = (
    f"{extra_with('cupy')}: CuPy for CUDA 13, with the NVRTC and runtime headers that it needs"
)
# from NVRTC's own cache, ptxas reports nothing
OPTIONS = ("-std=c++17", "-ftz=true", "--ptxas-options=-v", "--no-cache")


class MissingGPU(RuntimeError):
    """A package, the driver or a GPU is missing. The message says which, and what to install."""


class CompileError(RuntimeError):
    """NVRTC could not compile a kernel. The message has the file, the architecture, the defines
    and NVRTC's log.
    """


@dataclass(frozen=True)
class Resources:
    """What ptxas says of one function: per thread, registers and bytes spilled and on the stack;
    static shared bytes.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """A compiled file. The keys of `names` and `resources` are the functions asked for; `names`
    has their names in the cubin.
    """

    file: str
    arch: str
    cubin: bytes
    names: Mapping[str, str]
    log: str
    resources: Mapping[str, Resources]


_compiled: dict[str, Compiled] = {}
_loaded: dict[tuple[Any, ...], dict[str, Any]] = {}


def compile_file(
    name: str, functions: Sequence[str], defines: Mapping[str, str | int], arch: str
) -> Compiled:
    """Compile kernels/`name` for `arch`, such as "sm_90a".

    functions  names of `__global__` functions: "f", or "f<float, 64>" for an instance of a template
    defines    {"B_r": 64} is the option -DB_r=64

    Raises `MissingGPU` if CuPy, NVRTC or the runtime's headers are missing, `CompileError` if NVRTC
    finds errors, and ValueError if the file does not exist.
    """
    source = KERNELS / name
    if not source.is_file():
        raise ValueError(
            f"kernel file is {name!r}; expected one of "
            f"{', '.join(sorted(p.name for p in KERNELS.glob('*.cu')))}"
        )
    nvrtc = _nvrtc()
    headers = _headers()
    flags = (
        f"-arch={arch}",
        *OPTIONS,
        *(f"-D{symbol}={value}" for symbol, value in sorted(defines.items())),
    )
    options = (*flags, f"-I{headers}", f"-I{KERNELS}")
    key = _key(name, functions, flags, nvrtc.getVersion())
    if key not in _compiled:
        _compiled[key] = _from_cache(key) or _to_cache(
            key, _compile(nvrtc, source, tuple(functions), options, arch)
        )
    return _compiled[key]


def load(
    name: str, functions: Sequence[str], defines: Mapping[str, str | int], arch: str | None = None
) -> dict[str, Any]:
    """Return the functions of kernels/`name`, by the names asked for, as CuPy functions on the
    current device.

    If `arch` is None, it is the device's own, such as "sm_90a". Raises as `compile_file`, and
    `MissingGPU` without a GPU.
    """
    cupy = import_cupy()
    device = current_device()
    key = (device, name, tuple(functions), tuple(sorted(defines.items())), arch)
    # hashing takes longer than a launch, so sources are assumed not to change while a program runs
    if key not in _loaded:
        compiled = compile_file(name, functions, defines, arch or architecture(device))
        path = _cubin_file(hashlib.sha256(compiled.cubin).hexdigest(), compiled.cubin)
        module = cupy.RawModule(path=str(path))
        _loaded[key] = {
            function: module.get_function(lowered) for function, lowered in compiled.names.items()
        }
    return _loaded[key]


def architecture(device: int) -> str:
    """Return the architecture to compile for on a device: "sm_80", or "sm_90a" with Hopper's own
    instructions.
    """
    number = capability(device)
    if int(number) < 80:
        raise MissingGPU(
            f"GPU {device} has compute capability {number}; expected 80 (Ampere) or later"
        )
    return f"sm_{number}{'a' if int(number) >= 90 else ''}"


@cache
def capability(device: int) -> str:
    """Return a device's compute capability: "80", "90"."""
    return str(import_cupy().cuda.Device(device).compute_capability)


def current_device() -> int:
    """Return the current device's number, or raise `MissingGPU` with the reason why there is
    none.
    """
    cupy = import_cupy()
    try:
        return int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MissingGPU(
            f"no GPU: {error}. A driver for CUDA 13 (580 or later) and a device are needed"
        ) from None


def import_cupy() -> Any:
    """Return the module cupy, or raise `MissingGPU`, which says what to install."""
    loaded = sys.modules.get("cupy")
    # another thread is importing it: wait
    begun = getattr(getattr(loaded, "__spec__", None), "_initializing", False)
    if loaded is not None and not begun:  # this is quick, since one call asks several times
        return loaded
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise MissingGPU(f"CuPy is missing ({error}): {INSTALL}") from None


# --------------------------------------------------------------------------------------------------
# compiling


def _compile(
    nvrtc: Any, source: Path, functions: tuple[str, ...], options: tuple[str, ...], arch: str
) -> Compiled:
    program = nvrtc.createProgram(source.read_text(encoding="utf-8"), source.name, (), ())
    try:
        for function in functions:
            nvrtc.addNameExpression(program, function)
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError:
            log = nvrtc.getProgramLog(program)
            defined = " ".join(option for option in options if option.startswith("-D"))
            raise CompileError(
                f"{source.name} does not compile for {arch} with {defined or 'no defines'}:\n{log}"
            ) from None
        names = {function: _text(nvrtc.getLoweredName(program, function)) for function in functions}
        log = nvrtc.getProgramLog(program)
        cubin = nvrtc.getCUBIN(program) + b"\0"  # CuPy drops the last byte
    finally:
        nvrtc.destroyProgram(program)
    resources = parse_log(log)
    missing = [function for function, lowered in names.items() if lowered not in resources]
    if missing:
        raise CompileError(
            f"{source.name} for {arch}: ptxas reports nothing about {', '.join(missing)}:\n{log}"
        )
    return Compiled(
        source.name,
        arch,
        cubin,
        names,
        log,
        {f: resources[lowered] for f, lowered in names.items()},
    )


def parse_log(log: str) -> dict[str, Resources]:
    """Return each function's resources, by its name in the cubin, from what `--ptxas-options=-v`
    prints.
    """
    resources: dict[str, Resources] = {}
    for part in re.split(r"(?=Compiling entry function)", log):
        entry = re.match(r"Compiling entry function '(\S+)'", part)
        if entry is None:
            continue
        stack, stores, loads = _numbers(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part, 3
        )
        (registers,) = _numbers(r"Used (\d+) registers", part, 1)
        shared = re.search(r"(\d+) bytes smem", part)
        resources[entry[1]] = Resources(
            registers, stores, loads, stack, int(shared[1]) if shared else 0
        )
    return resources


def _numbers(pattern: str, text: str, count: int) -> list[int]:
    match = re.search(pattern, text)
    if match is None:
        raise CompileError(f"ptxas's log lacks {pattern!r}:\n{text}")
    return [int(match[i + 1]) for i in range(count)]


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


@cache
def _nvrtc() -> Any:
    cupy = import_cupy()
    try:
        nvrtc = cupy.cuda.nvrtc
        nvrtc.getVersion()
    except Exception as error:  # a missing library is an ImportError, an OSError or CuPy's own
        raise MissingGPU(f"NVRTC is missing ({error}): {INSTALL}") from None
    return nvrtc


@cache
def _headers() -> str:
    """Return the folder of the CUDA runtime's headers."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        folder = pathfinder.find_nvidia_header_directory("cudart")
    except ImportError as error:
        raise MissingGPU(
            f"the CUDA runtime's headers cannot be found ({error}): {INSTALL}"
        ) from None
    if folder is None:
        raise MissingGPU(f"the CUDA runtime's headers are missing: {INSTALL}")
    return str(folder)


# --------------------------------------------------------------------------------------------------
# caching


def cache_folder() -> Path:
    """Return where cubins are kept: $FLASHSIM_CACHE, or flashsim/ in the user's cache, or a
    temporary folder if not writable.
    """
    setting = os.environ.get("FLASHSIM_CACHE")
    try:
        folder = (
            Path(setting)
            if setting
            else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashsim"
        )
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return _temporary()
    return folder if os.access(folder, os.W_OK) else _temporary()


@cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="flashsim-"))


def _key(
    name: str, functions: Sequence[str], options: Sequence[str], version: tuple[int, int]
) -> str:
    digest = hashlib.sha256(repr((name, tuple(functions), tuple(options), tuple(version))).encode())
    for source in sorted(KERNELS.glob("*.cu*")):
        if source.name == name or source.suffix == ".cuh":
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _from_cache(key: str) -> Compiled | None:
    folder = cache_folder()
    try:
        kept = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        cubin = (folder / f"{key}.cubin").read_bytes()
    except (OSError, ValueError):
        return None
    if hashlib.sha256(cubin).hexdigest() != kept.pop("sha256"):
        return None
    resources = {f: Resources(**r) for f, r in kept.pop("resources").items()}
    return Compiled(cubin=cubin, resources=resources, **kept)


def _to_cache(key: str, compiled: Compiled) -> Compiled:
    kept = {name: value for name, value in asdict(compiled).items() if name != "cubin"}
    kept["sha256"] = hashlib.sha256(compiled.cubin).hexdigest()
    folder = cache_folder()
    write_whole(folder / f"{key}.cubin", compiled.cubin)
    write_whole(folder / f"{key}.json", json.dumps(kept))
    return compiled


def _cubin_file(digest: str, cubin: bytes) -> Path:
    path = cache_folder() / f"{digest}.load.cubin"
    if not (path.is_file() and path.read_bytes() == cubin):
        write_whole(path, cubin)  # another process may be reading
    return path
