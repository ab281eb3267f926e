"""Every GPU kernel compiles for every architecture, without a GPU: NVRTC needs none. And what the
package does without one.

Skipped, with the reason, where CuPy or NVRTC is missing: pip install ".[gpu]".
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashsim import Causal, KeyPadding, SlidingWindow, cli, gpu
from flashsim.algorithms import q_outer
from flashsim.gpu import (
    algorithm_2,
    compiling,
    hopper,
    hopper_backward,
    hopper_backward_wide,
    hopper_decode,
    hopper_forward,
    hopper_fp8,
    hopper_grouped,
    kernel_bugs,
    launching,
    machine,
    settling,
)
from flashsim.gpu.compiling import (
    ARCHITECTURES,
    KERNELS,
    CompileError,
    MissingGPU,
    Resources,
    compile_file,
    parse_log,
)
from flashsim.gpu.devices import tiles
from flashsim.gpu.kernel import Variant
from flashsim.gpu.masking import Rule, rule_of
from flashsim.learn.examples import same_curve
from tests.helpers.pages import ROOT, listing, text_of

LADDER = list(gpu.ladder())
VARIANTS = [
    *(variant for name in reversed(LADDER) for variant in gpu.kernel(name).variants),
    *tiles.VARIANTS,
]
PROMISE = "no spills, no stack"
OVERLAPPING = (  # within a warpgroup
    "hopper.cu",
    "hopper_forward.cu",
    "hopper_backward.cu",
    "hopper_backward_wide.cu",
    "hopper_fp8.cu",
)
pytestmark = pytest.mark.packages
ON_WGMMA = {  # the kernels on wgmma
    **{
        f"{file}.cu": file
        for file in ("hopper", "hopper_forward", "hopper_decode", "hopper_grouped", "hopper_fp8")
    },
    "hopper_backward.cu": "hopper_backward",
    "hopper_backward_wide.cu": "keys",
}
LISTED = {"algorithm_1.cu": 16, "algorithm_2.cu": 19, "algorithm_4.cu": 26, "q_outer.cu": 21}


def _why_not() -> str:
    try:
        compiling._nvrtc()
        compiling._headers()
    except MissingGPU as error:
        return str(error)
    return ""


needs_nvrtc = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "NVRTC is there")


def _nvdisasm() -> str:
    try:
        result = importlib.import_module("cuda.pathfinder").find_nvidia_binary_utility("nvdisasm")
    # there is none, or one that does not look for programs yet
    except (ImportError, AttributeError):
        result = None
    return result or shutil.which("nvdisasm") or ""


NVDISASM = _nvdisasm()
needs_nvdisasm = pytest.mark.skipif(
    not NVDISASM, reason="nvdisasm is missing: pip install nvidia-cuda-nvdisasm"
)


@pytest.fixture(autouse=True)
def _no_kept_cubins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHSIM_CACHE", str(tmp_path))


def _id(variant: Variant) -> str:
    defines = " ".join(f"{name}={value}" for name, value in variant.defines)
    return f"{variant.file} {defines} {variant.functions[0]}"


def _symbols(names: Iterable[str]) -> set[str]:
    return {name.partition("<")[0] for name in names}


BUILDS = [(variant, arch) for variant in VARIANTS for arch in variant.architectures]


@needs_nvrtc
@pytest.mark.parametrize(
    ("variant", "arch"),
    [pytest.param(variant, arch, id=f"{_id(variant)}-{arch}") for variant, arch in BUILDS],
)
def test_kernels_compile_and_keep_what_their_headers_promise(
    variant: Variant, arch: str, tmp_path: Path
) -> None:
    """And, where there is nvdisasm, that exponentials stand where products are under way.

    The compiler may move them below what waits for a product: then nothing overlaps, though results
    are the same.
    """
    compiled = compile_file(variant.file, variant.functions, dict(variant.defines), arch)
    assert set(compiled.resources) == set(variant.functions)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert "warning" not in compiled.log
    # wgmma serialized, waits put in, setmaxnreg ignored
    assert re.findall(r".*\bC7\d{3}\b.*", compiled.log) == []
    quick = not dict(variant.defines).get("COUNT")  # what counts is not for speed, and may spill
    if quick and PROMISE in (KERNELS / variant.file).read_text(encoding="utf-8"):
        for function, used in compiled.resources.items():
            assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), function
    if quick and NVDISASM and variant.file in OVERLAPPING:
        for function, (beside, alone) in _exponentials(compiled, tmp_path).items():
            # where sums do not do, maxima are taken, and O_i is waited for before
            if variant.file == "hopper_fp8.cu":
                assert beside >= hopper_fp8.BLOCKS[1] // 2, function
            # of a masked tile, the last exponentials may come after
            elif variant.file == hopper_forward.FILE:
                assert beside >= alone, function
                assert alone - _alone(function) <= _alone(function) // 7, function
            else:
                assert beside >= alone == _alone(function), function


def test_a_thread_waits_until_another_has_imported_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ModuleType("cupy")
    whole = ModuleType("cupy")
    begun.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "cupy", begun)
    monkeypatch.setattr(importlib, "import_module", lambda _: whole)  # which waits for it
    assert compiling.import_cupy() is whole


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("file", ON_WGMMA)
def test_kernels_compile_late(file: str) -> None:
    """For tests/gpu/test_gpu_delays.py: accumulators are in a thread's memory, as products are
    computed later, out of line.
    """
    function = next(
        f for v in VARIANTS for f in v.functions if v.file == file and f.startswith(ON_WGMMA[file])
    )
    assert (
        compile_file(file, (function,), {"COUNT": 0, "DELAYED": 1}, "sm_90a")
        .resources[function]
        .stack
        > 0
    )


# in hopper.cu, O_i's product
KEPT_ABOVE = "        if (!first && !quick && rows.l[0] + rows.l[1] < 0.0f) __trap();"


def _exponentials(compiled: compiling.Compiled, folder: Path) -> dict[str, tuple[int, int]]:
    """Of each function with wgmma, how many exponentials stand in its code where a product is
    under way, and where none is.
    """
    (folder / "compiled.cubin").write_bytes(compiled.cubin)
    text = subprocess.run(
        [NVDISASM, "-c", folder / "compiled.cubin"], capture_output=True, text=True, check=True
    ).stdout
    codes = dict(
        code.split(":\n", 1)
        for code in re.split(r"^\.text\.(?=\w+:\n)", text, flags=re.MULTILINE)[1:]
    )
    result = {}
    for function, name in compiled.names.items():
        started = False
        exponentials = [0, 0]
        for which in re.findall(r"[HQ]GMMA|DEPBAR\.LE gsb0, 0x0|MUFU\.EX2", codes[name]):
            if which == "MUFU.EX2":
                exponentials[not started] += 1
            else:
                started = "GMMA" in which
        if "GMMA" in codes[name]:
            result[function] = exponentials[0], exponentials[1]
    return result


def _alone(function: str) -> int:
    """Of a thread: two rows' factors and P̃ of the first tile of a row block, whose S_ij nothing
    is beside; backward none.
    """
    B_c = re.match(r"hopper<\w+, \d+, \d+, (\d+)", function)
    if d := re.match(r"hopper_forward<\w+, (\d+)", function):
        return hopper_forward.BLOCKS[int(d[1])][1] // 2 + 2
    return int(B_c[1]) // 2 + 2 if B_c else 0


@needs_nvrtc
@needs_nvdisasm
def test_exponentials_that_the_compiler_moves_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(KERNELS, tmp_path / "kernels")
    text = (KERNELS / "hopper.cu").read_text(encoding="utf-8")
    assert text.count(KEPT_ABOVE) == 1
    (tmp_path / "kernels" / "hopper.cu").write_text(
        text.replace(KEPT_ABOVE, "        if (false)"), encoding="utf-8"
    )
    monkeypatch.setattr(compiling, "KERNELS", tmp_path / "kernels")
    function = hopper.WIDE.function("float16", 128, "CAUSAL", False)
    result = _exponentials(compile_file("hopper.cu", (function,), {"COUNT": 0}, "sm_90a"), tmp_path)
    assert result[function][1] > _alone(function)


def test_each_function_is_compiled_for_each_architecture() -> None:
    compiled = set()
    for variant, arch in BUILDS:
        for name in _symbols(variant.functions):
            compiled.add((variant.file, name, arch))
    functions = set()
    for path in KERNELS.glob("*.cu"):
        text = path.read_text(encoding="utf-8")
        architectures = ["sm_90a"] if path.name.startswith("hopper") else ARCHITECTURES
        for name in re.findall(r"__global__ void (?:__\w+__\(.*\)\s+)*(\w+)\(", text):
            for arch in architectures:
                functions.add((path.name, name, arch))
    assert compiled == functions


@pytest.mark.parametrize("file", LISTED)
def test_lines_are_labelled_in_order(file: str) -> None:
    """As the listing in the header numbers them: each line that has code, and none out of order."""
    text = (KERNELS / file).read_text(encoding="utf-8")
    header, code = text.split('#include "scalar.cuh"')
    listed = [int(n) for n in re.findall(r"^//     (\d+) ", header, re.MULTILINE)]
    assert listed == list(range(1, LISTED[file] + 1))
    labels = [
        [int(n) for n in re.findall(r"\d+", result)]
        for result in re.findall(r"// line ([\d, and]+)", code)
    ]
    flat = [n for label in labels for n in label]
    assert flat == sorted(flat)
    assert set(flat) == set(listed)
    for line in code.splitlines():
        assert re.search(r"// line \d+", line) is None or re.search(
            r"// line [\d, and]+(: B_r, B_c)?$", line
        ), line


def test_the_kernel_to_read_is_short_and_has_the_algorithms_lines() -> None:
    """Its listing is that of `q_outer`, but for τ and notes; each line that has code has a
    label.
    """
    text = (KERNELS / hopper_forward.FILE).read_text(encoding="utf-8")
    header, code = text.split("#include ")
    assert len(text.splitlines()) <= 300
    ours = dict(re.findall(r"^//     (\d+) +(.*?)(?: {3,}\(.*\))?$", header, re.MULTILINE))
    theirs = dict(
        re.findall(
            r"^ {4}(\d+) +(.*)$",
            Path(str(q_outer.__file__)).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    # block sizes are given; τ is in the exponent; nothing is dropped; R is not returned
    changed = {"2", "9", "15", "21"}
    assert {number for number in theirs if ours[number] != theirs[number]} == changed
    labels = {
        int(n) for result in re.findall(r"// lines? ([\d, ]+)", code) for n in result.split(", ")
    }
    assert labels == {*range(1, 22)} - {1, 3, 14, 17, 21}  # no dropout; the host's maps; ends


def test_what_the_page_shows_of_the_kernel_to_read_is_its_code() -> None:
    page = text_of(ROOT / "docs" / "gpu.md")
    walk = page.partition("### One kernel, line by line")[2].partition("\n#")[0]
    output = [
        line.strip()
        for block in re.findall(r"```cpp\n(.*?)```", walk, re.DOTALL)
        for line in block.splitlines()
    ]
    code = [line.strip() for line in text_of(KERNELS / hopper_forward.FILE).splitlines()]
    assert len(output) == 8
    assert [line for line in output if line not in code] == []


def test_a_kernels_listing_is_the_simulators() -> None:
    """Word for word, from line 3 on; line 1 or 2 chooses the block sizes, which here are given."""
    for file, module in (
        ("algorithm_1", "algorithm_1_flash_basic"),
        ("algorithm_2", "algorithm_2_flash"),
    ):
        simulator = Path(str(importlib.util.find_spec(f"flashsim.algorithms.{module}").origin))  # type: ignore[union-attr]
        ours, theirs = (listing(text_of(path)) for path in (KERNELS / f"{file}.cu", simulator))
        for number in ours:
            if number > 3:
                assert ours[number] == theirs[number]


HEADED = {256: [hopper.DEEP], 128: [hopper.WIDE], 64: [hopper.FINE, hopper.PAIR, hopper.SMALL]}
SHARED = {  # bytes that the launchers ask for, in the order of the headers' tables
    "hopper.cu": [tiles.shared_bytes(d) for d in (256, 128, 64) for tiles in HEADED[d]],
    "hopper_backward.cu": [hopper_backward.shared_bytes(d, False) for d in (128, 64)],
    "hopper_backward_wide.cu": [*hopper_backward_wide.SHARED],
    "hopper_decode.cu": [hopper_decode.shared_bytes(d) for d in (128, 64)],
    "hopper_fp8.cu": [hopper_fp8.SHARED],
    "hopper_grouped.cu": [hopper_grouped.shared_bytes(d) for d in (128, 64)],
}


@pytest.mark.parametrize("file", SHARED)
def test_headers_of_hoppers_kernels_say_what_they_take_and_do(file: str) -> None:
    """Tiles, roles, shared memory, registers, the order of events, what moves and what binds;
    and the numbers are the code's.
    """
    header, code = (KERNELS / file).read_text(encoding="utf-8").split('#include "', 1)
    assert len(header.splitlines()) <= 30
    for topic in (
        "B_r × B_c",
        "shared memory",
        "registers",
        "Order of events",
        "HBM, in elements",
        "Roofline",
        PROMISE,
    ):
        assert topic in header, topic
    text = [int(KB) for KB in re.findall(r" = (\d+) KB", header)]
    for KB, options in zip(text, SHARED[file], strict=True):
        assert abs(KB - options / 1024) < 1
    budgets = " ".join(re.findall(r"(?:keep|take)_registers<(.*)>\(\)", code))
    table = " ".join(
        line for line in header.splitlines() if re.search(r"\d × \d+( registers|,)", line)
    )
    assert {int(n) for n in re.findall(r"\d+", budgets)} <= {
        int(n) for n in re.findall(r"\d+", table)
    }


LOG = """ptxas info    : Compiling entry function '_Z1fv' for 'sm_90a'
ptxas info    : Function properties for _Z1fv
    40 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'g' for 'sm_90a'
ptxas info    : Function properties for g
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def test_ptxas_log_is_read() -> None:
    assert parse_log(LOG) == {
        "_Z1fv": Resources(255, 12, 16, 40, 1024),
        "g": Resources(8, 0, 0, 0, 0),
    }
    with pytest.raises(CompileError, match="lacks"):
        parse_log(LOG.replace("255 registers", "many registers"))


@needs_nvrtc
def test_errors_say_what_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.cu").write_text('#include "missing.cuh"\n')
    monkeypatch.setattr(compiling, "KERNELS", tmp_path)
    with pytest.raises(
        CompileError, match=r"(?s)broken.cu does not compile for sm_80 with -DB_c=64.*missing.cuh"
    ):
        compile_file("broken.cu", ("f",), {"B_c": 64}, "sm_80")
    with pytest.raises(ValueError, match=r"kernel file is 'none.cu'; expected one of broken.cu"):
        compile_file("none.cu", ("f",), {}, "sm_80")


@needs_nvrtc
def test_cubins_are_kept_until_a_source_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "common.cuh").write_text("#define ONE 1\n")
    (tmp_path / "f.cu").write_text(
        '#include "common.cuh"\nextern "C" __global__ void f(int* a) { *a = ONE; }\n'
    )
    monkeypatch.setattr(compiling, "KERNELS", tmp_path)
    made: list[str] = []
    compile_with = compiling._compile

    def counted(*inputs: Any) -> Any:
        made.append(inputs[-1])
        return compile_with(*inputs)

    monkeypatch.setattr(compiling, "_compile", counted)

    def forget_and_compile(arch: str = "sm_80") -> bytes:
        compiling._compiled.clear()
        return compile_file("f.cu", ("f",), {}, arch).cubin

    first = forget_and_compile()
    assert forget_and_compile() == first
    assert made == ["sm_80"]
    forget_and_compile("sm_90")
    (tmp_path / "common.cuh").write_text("#define ONE 2\n")
    assert forget_and_compile() != first
    assert made == ["sm_80", "sm_90", "sm_80"]
    for kept in tmp_path.glob("*.cubin"):
        kept.write_bytes(b"cut off")
    assert forget_and_compile()[:4] == b"\x7fELF"
    assert len(made) == 4


def test_who_has_no_home_keeps_cubins_in_a_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a user without a name, in a container."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    for name in ("FLASHSIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiling, "_temporary", lambda: tmp_path)
    assert compiling.cache_folder() == tmp_path


@needs_nvrtc
@pytest.mark.parametrize("bug", same_curve.ON_GPU, ids=lambda bug: bug.what)
def test_a_planted_bug_compiles_to_other_code_and_leaves_none_behind(bug: same_curve.Bug) -> None:
    def compiled() -> bytes:
        return compile_file(
            bug.file, ("algorithm_4<float, 32, 32, 64, Causal, NoDropout>",), {"COUNT": 0}, "sm_80"
        ).cubin

    right = compiled()
    with kernel_bugs.planted(bug.file, (bug.before, bug.after)):
        assert compiled() != right
        folder = compiling.KERNELS
    assert compiled() == right
    assert not folder.exists()


def test_a_bug_is_planted_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {bug.file for bug in same_curve.ON_GPU} == {algorithm_2.BACKWARD}
    shape = (4, 2, 64, 32)
    for capability in ("80", "90"):  # the kernel that trains a curve
        plan = settling._plan(
            "backward", np.dtype("float32"), shape, shape, True, ("causal",), capability
        )
        assert plan.kernel == algorithm_2.KERNEL.name
    right: dict[tuple[Any, ...], dict[str, Any]] = {("a function of the right file",): {}}
    monkeypatch.setattr(compiling, "_loaded", dict(right))
    for bug in same_curve.ON_GPU:
        with kernel_bugs.planted(bug.file, (bug.before, bug.after)):
            assert bug.after in (compiling.KERNELS / bug.file).read_text(encoding="utf-8")
            assert {path.name for path in compiling.KERNELS.iterdir()} == {
                path.name for path in KERNELS.iterdir()
            }
            assert not compiling._loaded
            compiling._loaded["a function of the wrong file",] = {}
        assert compiling._loaded == right
        with (
            pytest.raises(ValueError, match=r"' occurs 0 times in algorithm_2.cu; expected once"),
            kernel_bugs.planted("algorithm_2.cu", (bug.before, bug.after)),
        ):
            pass
    with (
        pytest.raises(
            ValueError, match=r"kernel file is 'hopper.cu'; expected one of algorithm_1.cu, "
        ),
        kernel_bugs.planted("hopper.cu", ("a", "b")),
    ):
        pass
    assert compiling.KERNELS == KERNELS


FORWARD_PLANS = [  # of 300 queries of 8 heads and 4,096 keys of 2
    (
        "90",
        "float16",
        128,
        True,
        (),
        "hopper",
        "hopper_decode: a head has 300 queries, and the kernel takes 256 at most",
    ),
    ("80", "float16", 128, True, (), "tensor_core", "hopper: the GPU has compute capability 80"),
    ("100", "float16", 128, True, (), "tensor_core", "hopper: the GPU has compute capability 100"),
    ("90", "float16", 32, True, (), "tensor_core", "hopper: d is 32"),
    (
        "90",
        "float16",
        256,
        True,
        ("causal", "window", "block_mask", "count"),
        "hopper",
        "does not take d = 256",
    ),
    ("90", "float16", 256, True, ("dropout_p",), "hopper", "does not take d = 256"),
    ("80", "float16", 256, True, (), "q_outer", "hopper: the GPU has compute capability 80"),
    ("90", "float16", 64, True, ("dropout_p", "causal", "count"), "hopper", "300 queries"),
    ("90", "float16", 64, True, ("mask", "causal", "dropout_p", "count"), "hopper", "300 queries"),
    ("80", "float16", 64, True, ("mask",), "q_outer", "tensor_core: does not take mask"),
    (
        "90",
        "float16",
        64,
        True,
        ("mask", "block_mask"),
        "q_outer",
        "hopper: does not take block_mask with mask",
    ),
    ("90", "float16", 64, True, ("window", "block_mask"), "hopper", ""),
    ("80", "float16", 64, True, ("window",), "q_outer", "tensor_core: does not take window"),
    ("90", "float16", 64, False, (), "q_outer", "needs rows that start at multiples of 16 bytes"),
    ("90", "float32", 64, True, (), "q_outer", "hopper: does not take float32"),
]
BACKWARD_PLANS = [  # of 512 queries and keys of 4 heads in 16 bits
    ("90", 128, (), "hopper", "the fastest of all"),
    ("90", 64, ("causal", "dropout_p", "count"), "hopper", "the fastest"),
    ("90", 64, ("dropout_p",), "hopper", "the fastest"),
    ("90", 128, ("dropout_p",), "hopper", "the fastest"),
    (
        "90",
        64,
        ("blocks",),
        "algorithm_2",
        "hopper: does not take blocks; tensor_core: does not take blocks",
    ),
    ("90", 32, (), "tensor_core", "hopper: d is 32"),
    ("90", 64, ("window",), "hopper", "the fastest of all"),
    ("90", 64, ("block_mask",), "hopper", "the fastest of all"),
    ("90", 128, ("mask", "causal", "count"), "hopper", "the fastest of all"),
    ("90", 64, ("mask", "dropout_p"), "algorithm_2", "hopper: does not take dropout_p with mask"),
    ("80", 64, ("window",), "algorithm_2", "tensor_core: does not take window"),
    ("80", 64, ("block_mask",), "algorithm_2", "; algorithm_2: does not take block_mask"),
    ("90", 256, ("causal", "window", "count"), "hopper", "the fastest of all"),
    ("90", 256, ("dropout_p",), "algorithm_2", "hopper: does not take dropout_p; "),
    ("80", 256, (), "algorithm_2", "; algorithm_2: does not take d = 256"),
    ("80", 128, (), "tensor_core", "hopper: the GPU has compute capability 80"),
    ("80", 128, ("count",), "algorithm_2", "tensor_core: does not take count"),
]


def planned(
    direction: str, dtype: Any, d: int, aligned: bool, options: tuple[str, ...], capability: str
) -> settling.Plan:
    shapes = ((2, 8, 300, d), (2, 2, 4096, d)) if direction == "forward" else 2 * ((2, 4, 512, d),)
    return settling._plan(direction, np.dtype(dtype), *shapes, aligned, options, capability)


def test_the_plan_names_the_fastest_rung_and_why_no_faster_one() -> None:
    """Where no rung takes it, why the only one that is left will refuse."""
    for capability, dtype, d, aligned, options, expected, why in FORWARD_PLANS:
        plan = planned("forward", dtype, d, aligned, options, capability)
        assert (plan.kernel, why in plan.why) == (expected, True), plan
    for capability, d, options, expected, why in BACKWARD_PLANS:
        plan = planned("backward", "float16", d, True, options, capability)
        assert (plan.kernel, why in plan.why) == (expected, True), plan
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for direction, capability, d, why in (
        (
            "forward",
            "80",
            128,
            "hopper_fp8: the GPU has compute capability 80, and wgmma needs 90 (Hopper)",
        ),
        ("forward", "90", 64, "hopper_fp8: does not take d = 64"),
        ("backward", "90", 128, "algorithm_2: does not take float8_e4m3fn"),
    ):
        plan = planned(direction, ml_dtypes.float8_e4m3fn, d, True, (), capability)
        assert plan.why.split("; ")[-1] == why
        assert why.startswith(plan.kernel)


def test_few_queries_go_to_the_rung_for_decoding() -> None:
    """At most 64 of a KV head; or 256 of a head, each with 4 keys or more, where at most 128
    heads share a KV head.
    """

    def plan(H: int, N_q: int, *options: str, N_k: int = 9) -> settling.Plan:
        return settling._plan(
            "forward", np.dtype("float16"), (2, H, N_q, 128), (2, 2, N_k, 128), True, options, "90"
        )

    assert plan(8, 16, "causal", "count") == settling.Plan("hopper_decode", "the fastest of all")
    assert plan(8, 17) == settling.Plan("hopper", "hopper_decode: 9 keys are fewer than 4 a query")
    assert plan(8, 17, N_k=68).kernel == plan(8, 256, N_k=1024).kernel == "hopper_decode"
    assert plan(8, 256, N_k=1023).kernel == plan(8, 257, N_k=4096).kernel == "hopper"
    assert plan(256, 2, N_k=99).kernel == "hopper_decode"
    assert (
        "hopper_decode: 129 heads share a KV head, and the kernel takes 128 at most"
        in plan(258, 2, N_k=99).why
    )
    assert "hopper_decode: does not take dropout_p" in plan(8, 16, "dropout_p").why
    assert "hopper_decode: does not take window" in plan(8, 16, "window").why


@pytest.mark.parametrize(
    ("row_blocks", "T_c", "cut"),
    [
        (256, 64, (1, 1)),  # two waves
        (8, 8, (8, 8)),  # one launch, in clusters of 8
        (8, 64, (16, 1)),  # each multiprocessor has a part
        (16, 8, (4, 4)),  # clusters of 8 have no place for all
        (32, 8, (2, 2)),  # nor have those of 4
        (64, 64, (2, 2)),
        (72, 32, (3, 1)),  # 72 of 132 would leave many idle; 216 are two waves of a third each
        (8, 1, (1, 1)),
        (1, 3, (1, 1)),  # not worth it
        (1, 10**6, (128, 1)),
    ],
)
def test_heads_are_cut_where_their_row_blocks_do_not_fill_the_machine(
    row_blocks: int, T_c: int, cut: tuple[int, int]
) -> None:
    assert hopper_grouped.choose_cut(row_blocks, T_c, 132) == cut


def test_the_kernel_for_more_queries_runs_where_it_is_faster() -> None:
    """With more than 16 rows, d = 128, and no head for each multiprocessor; with more than 32, if a
    cluster has all parts of a head.
    """
    for (B, H, N_q, d), slower in {
        (1, 64, 2, 128): False,
        (1, 64, 3, 128): True,
        (1, 64, 3, 64): False,
        (16, 64, 8, 128): True,
        (17, 64, 8, 128): False,
    }.items():
        assert hopper_decode.is_slower((B, H, N_q, d), (B, 8, 8192, d), 132) == slower
    for (B, N_q, N_k), slower in {
        (1, 4, 4096): False,
        (1, 5, 4096): True,
        (1, 4, 4097): True,
        (2, 4, 16_384): False,
        (2, 4, 16_385): True,
    }.items():
        assert hopper_decode.is_slower((B, 64, N_q, 128), (B, 8, N_k, 128), 132) == slower
    assert not hopper_decode.is_slower((1, 64, 8, 128), (1, 8, 31, 128), 132)  # too few keys


@pytest.mark.parametrize(
    ("heads", "T_c", "cut"),
    [
        (8, 16, (64, 8)),  # a cluster has a head
        (8, 64, (64, 8)),
        (8, 65, (128, 2)),  # too long for 64 multiprocessors
        (8, 7, (32, 4)),  # a tile each, and some have two
        (8, 3, (8, 1)),
        (16, 256, (128, 8)),
        (16, 257, (256, 2)),
        (17, 16, (68, 4)),
        (32, 128, (128, 4)),
        (32, 129, (256, 2)),
        (33, 128, (132, 4)),
        (34, 40, (238, 1)),  # no cluster of 4 for each
        (64, 1023, (128, 2)),  # pairs have a head
        (64, 1024, (256, 2)),  # so long that a second launch is worth it
    ],
)
def test_clusters_have_whole_heads_where_there_are_few(
    heads: int, T_c: int, cut: tuple[int, int]
) -> None:
    assert hopper_decode.choose_cut(heads, T_c, 8, 132) == cut


def test_mask_objects_become_what_kernels_know_or_are_refused() -> None:
    q = np.zeros((1, 1, 50, 64))
    k = np.zeros((1, 1, 70, 64))
    for mask, causal, expected in (
        (SlidingWindow(127, 0), False, Rule(False, window=(127, 0))),
        (SlidingWindow(127, 5), True, Rule(False, window=(127, 0))),
        (SlidingWindow(-1, 5), False, Rule(False, window=(-1, 5))),
        (SlidingWindow(-1, 5), True, Rule(True)),
        (SlidingWindow(-1, -1), False, Rule(False)),
        (Causal(), False, Rule(True)),
        (Causal() & SlidingWindow(3, -1), False, Rule(False, window=(3, 0))),
        (None, True, Rule(True)),
    ):
        assert rule_of(q, k, causal, mask, None) == expected
    with pytest.raises(
        ValueError,
        match=r"mask is KeyPadding\(30\); on a GPU expected an array, SlidingWindow or Causal",
    ):
        rule_of(q, q, False, KeyPadding(30), None)
    with pytest.raises(ValueError, match=r"block_mask is 'live'; expected an array, or a function"):
        rule_of(q, q, False, None, None, "live")
    with pytest.raises(ValueError, match="causal is 1"):
        rule_of(q, q, 1, None, None)  # type: ignore[arg-type]


def test_hoppers_tiles() -> None:
    result = [hopper.choose_tiles(64, kind) for kind in hopper.KINDS]
    assert [(tiles.B_r, tiles.sums) for tiles in result] == [
        (256, True),
        *[(128, True)] * 2,
        (128, False),
        (128, True),
    ]
    assert hopper.choose_tiles(64, "ARRAY") == hopper.SMALL
    assert hopper.choose_tiles(256, "ARRAY") == hopper.DEEP._replace(mends=False)
    assert hopper.choose_tiles(64, "WINDOW", begun=True) == hopper.PAIR._replace(mends=False)
    begun = [hopper.all_begin((9, right), 100, 164) for right in (-1, 0, 1, 63, 64, 99)]
    assert begun == [True, True, False, False, True, True]
    assert hopper.choose_tiles(64, "FULL", dropout=True) == hopper.SMALL._replace(
        sums=False, mends=False
    )
    assert hopper.choose_tiles(64, "FULL", blocks=(256, 64)) == hopper.FINE
    listed = hopper.choose_tiles(64, "LISTED", blocks=(128, 128))
    assert listed == hopper.PAIR._replace(abreast=2)
    assert [tiles.teams(64) for tiles in (hopper.FINE, hopper.PAIR, hopper.SMALL)] == [1, 2, 1]
    assert hopper.choose_tiles(64, "CAUSAL", blocks=(128, 64)) == hopper.PAIR
    assert hopper.choose_tiles(64, "LISTED", dropout=True) == hopper.SMALL._replace(
        sums=False, mends=False
    )
    assert hopper.choose_tiles(128, "WINDOW") == hopper.WIDE
    with pytest.raises(
        ValueError,
        match=r"blocks is \(64, 64\); hopper takes \(128, 128\) where d = 128, with a window",
    ):
        hopper.choose_tiles(128, "WINDOW", blocks=(64, 64))
    assert hopper.choose_tiles(256, "LISTED") == hopper.DEEP._replace(sums=False, mends=False)
    assert hopper.choose_tiles(128, "CAUSAL") in hopper.steps(128).values()
    assert hopper.choose_tiles(256, "WINDOW", dropout=True) == hopper.DEEP._replace(
        sums=False, mends=False
    )
    assert [hopper.as_list(256, "WINDOW", drops) for drops in (False, True)] == ["WINDOW", "LISTED"]
    most = 227 * 1024  # of a block's shared memory on Hopper
    assert all(tiles.shared_bytes(d) <= most for d in hopper.TILES for tiles in hopper.TILES[d])
    assert all(
        hopper.choose_tiles(d, "ARRAY").shared_bytes(d, masks=True) <= most for d in hopper.TILES
    )
    wide = [
        hopper_backward.shared_bytes(d, drops)
        for d in hopper_backward.HEAD_DIMS
        for drops in (False, True)
    ]
    wide += [
        hopper_backward.shared_bytes(d, drops=False, masks=True) for d in hopper_backward.HEAD_DIMS
    ]
    assert max([*wide, *hopper_backward_wide.SHARED]) <= most
    assert launching.section(2**20, 50 * 2**20, 64) == 32
    assert launching.section(2**20, 50 * 2**20, 8) == 8
    assert launching.section(2**30, 50 * 2**20, 64) == 1
    assert (
        hopper.section_of(2**18, 50 * 2**20, 512)
        == hopper.MOST_HEADS
        < launching.section(2**18, 50 * 2**20, 512)
    )
    assert hopper.section_of(2**30, 50 * 2**20, 64) == hopper.LEAST_HEADS
    assert [hopper.section_of(size, 50 * 2**20, 4) for size in (2**18, 2**30)] == [4, 4]
    assert [hopper.section_of(2**18, 50 * 2**20, 512, teams) for teams in (1, 2)] == [64, 128]
    assert [hopper.section_of(2**18, 50 * 2**20, 160, teams) for teams in (1, 2)] == [54, 80]


def test_heads_are_split_where_they_do_not_fill_the_machine() -> None:
    for heads, T_c, rows, blocks in (
        (256, 128, 8, 256),  # they fill 264 places
        (192, 128, 8, 264),  # they do not
        (192, 128, 64, 192),  # nearly, and their parts are large
        (64, 128, 8, 128),  # each in 2, a block a multiprocessor
        (8, 2048, 64, 256),  # each in 32: pairs
        (48, 128, 8, 240),  # each in 5
        (100, 128, 8, 264),  # in 2 would leave places empty
        (128, 64, 8, 128),  # one a multiprocessor
        (128, 65, 8, 256),  # too long for that
        (1, 100, 8, 25),  # parts of 4 tiles
        (5, 8, 8, 5),  # not worth a second launch
    ):
        assert hopper_decode.grid(heads, T_c, rows, 264) == blocks
        tiles = heads * T_c
        met = {
            (b, tile // T_c)
            for b in range(blocks)
            for tile in range(b * tiles // blocks, (b + 1) * tiles // blocks)
        }
        assert len({b + head for b, head in met}) == len(met)  # no two parts in one place
        assert hopper_decode.parts(heads, T_c, blocks) == [
            sum(h == head for _, h in met) for head in range(heads)
        ]


def test_without_cupy_everything_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingGPU, match=r'CuPy is missing .*: pip install -e "\.\[gpu\]"'):
        gpu.forward([0], [0], [0], kernel="q_outer")
    assert cli.main(["gpu", "info"]) == 1
    assert "CuPy is missing" in capsys.readouterr().out


@needs_nvrtc
def test_without_a_gpu_info_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu() -> int:
        raise MissingGPU("no GPU: none")

    monkeypatch.setattr(machine, "current_device", no_gpu)
    known = gpu.info()
    assert not known.ready
    assert set(known.found) == {"CuPy", "NVRTC"}
    assert known.missing == ["no GPU: none"]
    assert cli.main(["gpu", "info", "--json", "-"]) == 1
    assert '"ready": false' in capsys.readouterr().out
