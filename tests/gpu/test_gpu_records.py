"""What the GPU's records become, without a GPU: ncu's CSV, tolerances, tables and pictures."""

import functools
import importlib
import json
import operator
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from gpu_pictures import (
    LOOKS,
    pays_from,
    plot_figure_1,
    plot_figure_3,
    plot_front,
    plot_ladder,
    plot_peak_memory,
    plot_runtime,
    plot_times,
    plot_validation,
)

import flashsim
from flashsim import gpu, theory
from flashsim.attention.masks import patterns
from flashsim.attention.masks.patterns import butterfly
from flashsim.attention.qkv import SAMPLE
from flashsim.cli import bench, main
from flashsim.gpu import benchmark, contestants, machine, standard
from flashsim.gpu.compiling import MissingGPU, import_cupy
from flashsim.gpu.contestants import NAMES, SPARSE, Setting, settings
from flashsim.gpu.masking import rule_of
from flashsim.gpu.profiling import METRICS, parse
from flashsim.gpu.validation import Pass, _row
from flashsim.learn.examples.same_curve import EARLY
from flashsim.learn.examples.text import tiny
from flashsim.plots import figure_of
from flashsim.plots.same_curve import plot_same_curve
from flashsim.reference import attention
from tests.helpers.pages import ROOT, has_numbers, paragraphs

FIGURES = ROOT / "figures"
PAGE, TRIED = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("gpu", "gpu-tried")
)
IN_PAGE, IN_TRIED = (paragraphs(text) for text in (PAGE, TRIED))
NOT_REACHED = paragraphs(PAGE.partition("## What is not reached")[2].partition("\n## ")[0])


def figure(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    return record


CSV = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name",{names}
"","","","Mbyte","byte","byte","Kbyte"
"0","1","random","7","7","7","7"
"1","1","flashsim_begin__float","1","1","1","1"
"2","1","gemm","2.5","1,000","10","20"
"3","1","gemm","0.5","24","30","0"
"4","1","flashsim_end__float","1","1","1","1"
"5","1","random","9","9","9","9"
"6","1","flashsim_begin__float","1","1","1","1"
"7","1","softmax","1","8","1","2"
"8","1","flashsim_end__float","1","1","1","1"
""".replace("{names}", ",".join(f'"{metric}"' for metric in METRICS.values()))


def test_the_counters_of_a_pass_are_those_between_its_markers() -> None:
    first, second = parse(CSV)
    assert first == {"dram_reads": 3e6, "dram_writes": 1024, "l2_reads": 40, "l2_writes": 20e3}
    assert second == {"dram_reads": 1e6, "dram_writes": 8, "l2_reads": 1, "l2_writes": 2e3}
    assert set(first) == set(METRICS)


@pytest.mark.parametrize(
    ("reads", "writes", "agrees", "error"),
    [
        (1000, 1000, True, 0.0),
        (1010, 1000, True, 0.01),
        (1011, 1000, False, 0.011),
        (989, 1000, False, 0.011),
        (1000, 940, True, 0.0),  # 60 are still in the L2
        (1000, 930, True, 0.01),
        (1000, 929, False, 0.011),
        (1000, 1011, False, 0.011),
    ],
)
def test_writes_may_lack_what_the_l2_holds_and_nothing_else(
    reads: int, writes: int, agrees: bool, error: float
) -> None:
    each = Pass("standard", "S", "DRAM", 1000, 1000, 0.01, lambda: None)
    row = _row(each, {"reads": reads, "writes": writes}, 60)
    assert row["error"] == pytest.approx(error)
    assert row["agrees"] is agrees
    on_chip = Pass("on chip", "S", "L2", 1000, 1000, 0.01, lambda: None)
    assert _row(on_chip, {"reads": 1000, "writes": 940}, 60)["agrees"] is False
    unjudged = Pass("compulsory", "S", "DRAM", 1000, 1000, None, lambda: None)
    assert _row(unjudged, {"reads": 5000, "writes": 940}, 60)["agrees"] is None


def test_flops_as_kernels_authors_count_them() -> None:
    assert Setting(1024, 64).batch == 16
    assert Setting(65_536, 64).batch == 1
    assert Setting(1024, 64).flops == 4 * 16 * 16 * 1024**2 * 64
    assert Setting(1024, 64, direction="backward").flops == 2.5 * Setting(1024, 64).flops
    assert Setting(1024, 64, causal=True).flops == 4 * 16 * 16 * (1024 * 1025 / 2) * 64
    assert len(settings((128, 256), (64, 128))) == 2 * 2 * 2 * 2
    assert set(NAMES) == set(LOOKS)


def test_a_rung_takes_part_in_what_it_is_for() -> None:
    decoding = gpu.kernel("hopper_decode")
    assert contestants._can(decoding, Setting(64, 128, causal=True))
    assert not contestants._can(decoding, Setting(65, 128))
    assert not contestants._can(decoding, Setting(64, 128, dropout_p=0.1))


@pytest.mark.parametrize("N", [64, 300, 1024])
def test_sparse_contestants_are_asked_for_and_rated_by_what_they_compute(
    N: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(N, 64)
    called = []
    monkeypatch.setattr(contestants, "torch_if_there", lambda: None)
    monkeypatch.setattr(contestants, "arrays", lambda *_: [np.zeros((1, 1, N, 64), np.float16)] * 4)
    monkeypatch.setattr(gpu, "forward", lambda q, k, v, **options: called.append(options))
    assert not set(SPARSE) & {name for name, _ in contestants.contestants(setting, ())}
    assert not list(contestants.contestants(Setting(N, 64, direction="backward"), tuple(SPARSE)))
    assert not list(contestants.contestants(Setting(N, 64, causal=True), tuple(SPARSE)))
    live = {}
    for name, make in contestants.contestants(setting, tuple(SPARSE)):
        make()()
        options = called.pop()
        assert options["kernel"] == "hopper"
        q = np.zeros((1, 1, N, 64))
        rule = rule_of(q, q, False, options.get("mask"), None, options.get("block_mask"))
        index = np.arange(N)
        if rule.window:
            live[name] = (index[:, None] - index <= rule.window[0]) & (
                index - index[:, None] <= rule.window[1]
            )
        else:
            tiles = butterfly(-(-N // 128), -(-N // 128))
            live[name] = tiles[np.ix_(index // 128, index // 128)]
    assert {name: contestants.share(name, setting) for name in SPARSE} == {
        name: m.mean() for name, m in live.items()
    }
    assert contestants.share("hopper", setting) == 1


def test_a_rate_is_of_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(1024, 64)
    monkeypatch.setattr(benchmark, "import_cupy", MagicMock)
    monkeypatch.setattr(benchmark, "_extra_bytes", lambda call: 0)
    monkeypatch.setattr(
        benchmark, "interleaved", lambda calls, *_: {name: [2.0, 1.0, 3.0] for name in calls}
    )
    timed = benchmark.race(
        setting, [(name, lambda: lambda: None) for name in ("hopper", "hopper_window")], 3
    )
    whole, window = (timing.tflops for timing in timed)
    assert whole == setting.flops / 2e9
    assert window == pytest.approx(whole * (256 * 1024 - 128 * 129 / 2 - 127 * 128 / 2) / 1024**2)


def test_a_contestant_that_fails_in_its_turn_is_told_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What another left in its pool may be in the way once; freed, it goes on. What fails again
    is out.
    """
    freed: list[int] = []
    monkeypatch.setattr(benchmark, "import_cupy", MagicMock)
    monkeypatch.setattr(benchmark, "_extra_bytes", lambda call: 0)
    monkeypatch.setattr(benchmark, "_free", lambda: freed.append(1))
    monkeypatch.setattr(benchmark, "_time", lambda call, launches, *_: call())
    calls = {"hopper": 0, "standard": 0, "torch_flash": 0}

    def call(name: str) -> float:
        calls[name] += 1
        if (name == "standard" and calls[name] > 5) or (name == "torch_flash" and calls[name] == 5):
            raise MemoryError("full")
        return 2.0

    makers = [(name, partial(partial, call, name)) for name in calls]
    timed = list(benchmark.race(Setting(1024, 64), makers, 7))
    assert [(t.name, t.failed) for t in timed] == [
        ("standard", "MemoryError: full"),
        ("hopper", ""),
        ("torch_flash", ""),
    ]
    assert [t.median for t in timed][1:] == [2.0, 2.0]
    assert len(freed) == 3  # before either's second try, and at the end


def test_what_takes_much_memory_leaves_none_of_it_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Freed after each contestant, and at the end; what takes little is freed at the end alone,
    since freeing takes long.
    """
    freed: list[str] = []
    extra = {"hopper": 2**20, "standard": 2**35, "tensor_core": 2**21, "torch_unfused": 2**31}
    monkeypatch.setattr(benchmark, "import_cupy", MagicMock)
    monkeypatch.setattr(benchmark, "_extra_bytes", lambda name: extra[name])
    monkeypatch.setattr(benchmark, "_free", lambda: freed.append(made[-1]))
    monkeypatch.setattr(benchmark, "_time", lambda call, launches, *_: 2.0)
    monkeypatch.setattr(benchmark, "interleaved", lambda calls, *_: {name: [2.0] for name in calls})
    made: list[str] = []

    def make(name: str) -> Any:
        made.append(name)
        return name

    list(benchmark.race(Setting(1024, 64), [(name, partial(make, name)) for name in extra], 3))
    assert freed == ["standard", "torch_unfused", "torch_unfused"]


def test_a_turn_is_as_many_launches_as_fill_it_and_one_of_a_slow_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten launches say how long a short call takes. Memory is asked for in the first call, which
    does not count.
    """
    ms = {"short": 0.5, "medium": 4.0, "slow": 50.0}
    measured: dict[str, list[int]] = {name: [] for name in ms}

    def timed(call: Callable[[], str], launches: int, *_: Any) -> float:
        measured[call()].append(launches)
        return ms[call()] + 30 * (len(measured[call()]) == 1)

    monkeypatch.setattr(benchmark, "_time", timed)
    times = benchmark.interleaved({name: partial(str, name) for name in ms}, 5, turn_ms=20)
    assert measured == {
        "short": [1, 1, 10, *[40] * 5],
        "medium": [1, 1, *[5] * 5],
        "slow": [1, *[1] * 5],
    }
    assert times == {name: [duration] * 5 for name, duration in ms.items()}


def test_kernels_are_compiled_side_by_side_before_the_clock_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind's once, of its shortest setting; that one fails is not told here."""
    both = Barrier(2, timeout=10)
    called = []

    Prepare = Callable[[], Callable[[], None]]

    def found(setting: Setting, _: Any) -> Iterator[tuple[str, Prepare]]:
        for name in ("hopper", "torch_flash", "standard"):
            yield name, partial(partial, call, name, setting)

    def call(name: str, setting: Setting) -> None:
        called.append((name, setting.N, setting.causal))
        if setting.causal:
            raise MemoryError("full")
        both.wait()  # in vain, if one came after the other

    monkeypatch.setattr(benchmark, "import_cupy", MagicMock)
    monkeypatch.setattr(benchmark, "current_device", lambda: 0)
    monkeypatch.setattr(benchmark, "contestants", found)
    options = settings((4096, 128), (64,), directions=("forward",))
    benchmark.compile_first(benchmark._shortest(options, ()))
    assert not both.broken
    assert sorted(called) == [
        (name, 128, causal) for name in ("hopper", "standard") for causal in (False, True)
    ]


def test_memory_is_what_a_call_takes_though_the_pool_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pool:
        """As CuPy's: a chunk that is in use in part stays, and its rest is given out again."""

        def __init__(self, room: int = 0) -> None:
            self.total = room
            self.room = room

        def malloc(self, size: int) -> None:
            grown = max(size - self.room, 0)
            self.total += grown
            self.room += grown - size

        def total_bytes(self) -> int:
            return self.total

        def free_all_blocks(self) -> None:
            freed.append(self.total)

    @contextmanager
    def using_allocator(malloc: Any) -> Iterator[None]:
        allocators.append(malloc)
        yield
        allocators.pop()

    freed: list[int] = []
    usual = Pool(room=100)
    cupy = MagicMock()
    allocators = [usual.malloc]
    cupy.get_default_memory_pool = lambda: usual
    cupy.cuda.MemoryPool = Pool
    cupy.cuda.using_allocator = using_allocator
    monkeypatch.setattr(benchmark, "import_cupy", lambda: cupy)
    monkeypatch.setattr(benchmark, "torch_if_there", lambda: None)
    assert benchmark._extra_bytes(lambda: allocators[-1](60)) == 60
    assert freed == [60]


def benchmark_record() -> dict[str, Any]:
    def timing(name: str, setting: Setting) -> dict[str, Any]:
        rate = {"tensor_core": 300.0, "torch_flash": 310.0, "standard": 40.0}[name]
        failed = "OutOfMemoryError: no" if name == "standard" and setting.N > 1024 else ""
        median = None if failed else setting.flops / rate / 1e9
        numbers = {
            "median": median,
            "least": median,
            "most": median,
            "tflops": None if failed else rate,
        }
        return {
            "name": name,
            **numbers,
            "extra_bytes": None if failed else 1000 * setting.N,
            "failed": failed,
        }

    results = []
    for setting in settings((1024, 4096), (64, 128)):
        timings = [timing(name, setting) for name in ("tensor_core", "torch_flash", "standard")]
        plain = {
            key: getattr(setting, key)
            for key in ("N", "d", "causal", "direction", "dtype", "H", "dropout_p")
        }
        results.append({**plain, "B": setting.batch, "flops": setting.flops, "timings": timings})
    return {"machine": {"gpu": "a GPU", "cupy": "14", "torch": "2"}, "results": results}


def test_the_benchmarks_table(capsys: pytest.CaptureFixture[str]) -> None:
    record = benchmark_record() | {"absent": {"fa4": "flash-attn-4 is not installed"}}
    record["results"][0]["distribution"] = "wide"
    bench.print_results(record)
    text = capsys.readouterr().out
    assert "0.97" in text  # 300 / 310
    assert "7.5" in text  # 300 / 40
    assert "standard failed: OutOfMemoryError: no" in text
    assert "absent: fa4: flash-attn-4 is not installed\n" in text
    assert " wide " in text


def test_pictures_of_times_draw_every_contestant_that_did_not_fail() -> None:
    record = benchmark_record()
    axes = plot_times(record)
    assert [len(ax.get_lines()) for ax in axes] == [3] * 8
    assert {ax.get_yscale() for ax in axes} == {"log"}
    assert [ax.get_title(loc="left") for ax in axes][:3] == [
        "forward\nd = 64, 16 heads",
        "forward\nd = 128, 16 heads",
        "forward, causal\nd = 64, 16 heads",
    ]
    lines = {line.get_gid(): line for line in axes[1].get_lines()}
    assert np.asarray(lines["forward False standard"].get_xdata()).tolist() == [1024]
    assert np.asarray(lines["forward False tensor_core"].get_ydata()).tolist() == [300.0, 300.0]
    assert len(plot_runtime(record).get_lines()) == 3
    results = [r for r in record["results"] if r["direction"] == "forward"]
    forward = {**record, "results": results}
    alone = plot_runtime(forward)
    assert (len(alone.get_lines()), alone.get_ylabel()) == (3, "forward, ms a sequence")
    half = plot_times(forward)
    assert [len(ax.get_lines()) for ax in half] == [3] * 4
    for ax in half:
        title = ax.get_title(loc="left")
        assert re.split("[,\n]", title)[0] == "forward"
    assert len(plot_peak_memory(record).get_lines()) == 3
    assert alone.get_xlabel() == "N (d = 64, 16 heads)"
    assert figure_of(axes).get_axes() == list(axes)


def test_the_front_is_drawn_beside_its_peers() -> None:
    axes = plot_front(figure("gpu_hopper"))
    (legend,) = figure_of(axes).legends
    output = [text.get_text() for text in legend.get_texts()]
    assert output == [LOOKS[name].label for name in ("tensor_core", "hopper", "torch_cudnn", "fa4")]
    titles = [ax.get_title(loc="left") for ax in axes]
    heads = [title.partition(", ")[2] for title in titles]
    assert heads[:2] == ["32 heads", "16 heads"]
    low, high = axes[2].get_ylim()  # less than a decade
    assert sum(low <= y <= high for y in axes[2].get_yticks()) >= 4


def test_the_front_is_drawn_backward() -> None:
    """From the record of cases: the rates of each contestant that has a look, without dropout."""
    record = figure("gpu_hopper_backward")
    axes = plot_front(record)
    assert [ax.get_title(loc="left") for ax in axes][1:3] == [
        "backward\nd = 128, 16 heads",
        "backward, causal\nd = 64, 32 heads",
    ]
    drawn = {}
    for line in axes[1].get_lines():
        points = np.column_stack([line.get_xdata(), line.get_ydata()])
        drawn[str(line.get_gid())] = dict(points.tolist())
    expected = {}
    for r in record["results"]:
        if (r["d"], r["causal"], r["dropout_p"]) == (128, False, 0):
            expected[r["N"]] = r["tflops"]["hopper"]
    assert drawn["backward False hopper"] == expected
    assert {gid.split()[-1] for gid in drawn} == {
        "tensor_core",
        "hopper",
        "torch_flash",
        "torch_cudnn",
        "fa4",
    }


def test_the_legend_of_times_has_whoever_is_in_a_panel() -> None:
    record = benchmark_record()
    for r in record["results"]:
        if r["d"] == 128:
            r["timings"].append({**r["timings"][0], "name": "hopper_fp8"})
    (legend,) = figure_of(plot_times(record)).legends
    output = [text.get_text() for text in legend.get_texts()]
    assert output == [
        LOOKS[name].label for name in ("standard", "tensor_core", "hopper_fp8", "torch_flash")
    ]


def test_a_contestant_pays_from_where_it_is_faster_for_good() -> None:
    ms = {
        128: (2.0, 1.0),
        1024: (1.0, 2.0),
        256: (1.0, 2.0),
        512: (2.0, 1.0),
        4096: (1.0, 3.0),
    }

    def record(ms: dict[int, tuple[float, float]]) -> dict[str, Any]:
        results = []
        for N, medians in ms.items():
            timings = []
            for name, median in zip(("one", "other"), medians, strict=True):
                timings.append({"name": name, "median": median, "failed": ""})
            results.append({"N": N, "timings": timings})
        return {"results": results}

    assert pays_from(record(ms), "one", "other") == 1024
    with pytest.raises(ValueError, match="one is not faster than other at the longest N"):
        pays_from(record({**ms, 8192: (2.0, 2.0)}), "one", "other")


def test_the_picture_of_predicted_and_measured() -> None:
    def row(
        group: str,
        B_c: int | None,
        size: float,
        agrees: bool | None = True,
    ) -> dict[str, Any]:
        sizes = {
            f"{kind}_{way}": size
            for kind in ("predicted", "measured")
            for way in ("reads", "writes")
        }
        return {
            "group": group,
            "B_c": B_c,
            "ms": 1.0,
            "error": 0.004,
            "within": 0.01,
            "agrees": agrees,
            "level": "DRAM",
            **sizes,
        }

    rows = [
        row("standard", None, 2e9),
        *(row("algorithm_1", B_c, 1e11 / B_c) for B_c in (16, 32, 64)),
        {**row("on chip", None, 1e8), "level": "L2", "error": 0.04},
    ]
    axes = plot_validation({"machine": {"gpu": "a GPU"}, "rows": rows})
    assert axes[0].get_title(loc="left").endswith("DRAM within 0.4%, SM ↔ L2 within 4.0%")
    legend = axes[1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "traffic, predicted",
        "traffic, counted",
        "runtime (right)",
    ]
    output: set[str | None] = set()
    for ax in figure_of(axes).get_axes():
        output.update(line.get_gid() for line in ax.get_lines())
    assert {
        "standard",
        "algorithm_1",
        "on chip",
        "predicted bytes",
        "measured bytes",
        "ms",
    } <= output


def test_without_a_gpu_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    with pytest.raises(MissingGPU) as missing:
        import_cupy()
    assert main(["bench", "--N", "128", "--quiet"]) == 2
    assert capsys.readouterr().err == f"flashsim bench: error: {missing.value}\n"


@pytest.mark.parametrize("causal", [False, True])
def test_the_papers_baseline_is_attention(causal: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 3, 9, 4))
    tensors = [torch.asarray(X) for X in (q, k, v)]
    mask = np.tril(np.ones((9, 9), bool)) if causal else None
    want = attention(q, k, v, mask=mask)
    unfused = contestants._unfused(Setting(9, 4, causal), torch, device="cpu")
    assert np.allclose(unfused(*tensors).numpy(), want, atol=1e-12)
    dropped = contestants._unfused(Setting(9, 4, causal, dropout_p=0.5), torch, device="cpu")
    assert not np.allclose(dropped(*tensors).numpy(), want, atol=1e-2)


def test_records_name_machine_and_date() -> None:
    names = {"validate_hardware", *(path.stem for path in FIGURES.glob("*gpu*.json"))} - {
        "gpu_same_curve"
    }
    assert len(names) > 20
    for name in names:
        record = figure(name)
        data = record.get("data", record)
        assert data["machine"]["gpu"], name
        assert {"sms", "driver_cuda", "nvrtc", "cupy", "torch"} <= data["machine"].keys(), name
        assert data["date"].startswith("20"), name
        assert record["command"], name
        assert name == "validate_hardware" or re.fullmatch("[0-9a-f]{7,40}", record["commit"]), name


def test_the_passes_of_standard_attention_move_what_the_simulator_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each operand read once: M so large that one panel holds all of Q."""
    monkeypatch.setattr(standard, "import_cupy", lambda: np)
    N = 48
    d = 8
    q = np.zeros((1, 1, N, d), np.float16)
    size = {"N·d": N * d, "N·N": N * N}
    traffic = {"0": [0, 0], "3": [0, 0]}
    for step in standard.steps(q, q, q, q, 1.0):
        for way, matrices in enumerate((step.reads, step.writes)):
            traffic[step.name[0]][way] += sum(size[matrix] for matrix in matrices)
    for algorithm, direction in (("0", "forward"), ("3", "backward")):
        tally = flashsim.count("standard", N=N, d=d, M=10**6, direction=direction)
        assert traffic[algorithm] == [tally.hbm.reads, tally.hbm.writes]


def test_with_cupy_and_no_gpu_the_command_says_so_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> int:
        raise MissingGPU("no GPU: none here")

    monkeypatch.setattr(machine, "import_cupy", MagicMock)
    monkeypatch.setattr(machine, "current_device", none)
    assert main(["bench", "--N", "128", "--quiet"]) == 2
    assert capsys.readouterr().err == "flashsim bench: error: no GPU: none here\n"


def timings(
    N: int, d: int, causal: bool, direction: str, dropout_p: float = 0.0
) -> dict[str, dict[str, Any]]:
    options = {
        "N": N,
        "d": d,
        "causal": causal,
        "direction": direction,
        "dropout_p": dropout_p,
    }
    record = figure("gpu_gpt2" if dropout_p else "gpu_bench")
    (result,) = (r for r in record["results"] if {key: r[key] for key in options} == options)
    return {t["name"]: t for t in result["timings"] if not t["failed"]}


def test_the_pages_ladder_is_the_recorded_one() -> None:
    forward, backward = (
        timings(2048, 64, False, direction) for direction in ("forward", "backward")
    )
    for name, timing in forward.items():
        (row,) = (
            line
            for line in PAGE.splitlines()
            if line.startswith(f"| `{name}` | ") and line.count("|") == 6
        )
        back = f"{backward[name]['tflops']:.1f}" if name in backward else "–"
        assert row.endswith(f"| {timing['tflops']:.1f} | {back} |"), name
    slowdown = forward["tensor_core"]["tflops"] / forward["algorithm_1"]["tflops"]
    assert has_numbers(IN_PAGE, f"{slowdown:.0f}", about="factor")


def test_the_pages_ratios_are_the_recorded_ones() -> None:
    for direction in ("forward", "backward"):
        ratios = [
            result["tensor_core"]["tflops"] / result["torch_flash"]["tflops"]
            for N in (2048, 4096, 8192, 16_384, 32_768, 65_536)
            for d in (64, 128)
            for causal in (False, True)
            for result in [timings(N, d, causal, direction)]
        ]
        assert has_numbers(IN_PAGE, f"{min(ratios):.2f} {max(ratios):.2f}")
    both = [timings(1024, 64, True, direction, 0.1) for direction in ("forward", "backward")]

    def speedup(name: str, own: str = "tensor_core") -> tuple[float, float, float]:
        """Together, forward, backward."""
        ours = [result[own]["median"] for result in both]
        theirs = [result[name]["median"] for result in both]
        return sum(theirs) / sum(ours), theirs[0] / ours[0], theirs[1] / ours[1]

    shown_of = {
        "torch_unfused": "{:.1f} {:.1f} {:.1f}",
        "standard": "{:.1f} {:.1f} {:.1f}",
        "torch_math": "{:.1f}",
        "torch_flash": "{:.2f} {:.2f} {:.2f}",
    }
    for name, output in shown_of.items():
        assert has_numbers(IN_PAGE, output.format(*speedup(name))), name
    for name in ("torch_unfused", "torch_flash"):
        assert has_numbers(IN_PAGE, shown_of[name].format(*speedup(name, "hopper"))), name


def rates_of(result: dict[str, Any]) -> dict[str, float]:
    """By contestant: of those that did not fail."""
    return {t["name"]: t["tflops"] for t in result["timings"] if not t["failed"]}


def test_the_page_says_which_card_and_build_made_its_numbers() -> None:
    for name in ("gpu_hopper", "gpu_hopper_fp8", "gpu_clocks"):
        made = figure(name)
        card = made["machine"]["gpu"].split()[1]
        commit = made["commit"][:7]
        assert any(card in part and commit in part for part in IN_PAGE), name


Ratios = dict[tuple[int, int, bool], float]  # by N, d and whether causal


def beside_the_faster_peer(name: str, case: str = "") -> Ratios:
    """`hopper`'s rate over the faster one's of FlashAttention-4 and cuDNN, by N, d and whether
    causal.
    """
    result = {}
    for r in figure(name)["results"]:
        if r.get("case", "") == case:
            rate = r["tflops"] if case else rates_of(r)
            if "fa4" in rate:  # not with dropout
                faster = max(rate["fa4"], rate["torch_cudnn"])
                result[r["N"], r["d"], r["causal"]] = rate["hopper"] / faster
    return result


def test_the_pages_numbers_on_hopper_are_the_recorded_ones() -> None:
    """Of the faster peer's rate 0.98 is level; nothing is below that but what the page says."""
    forward = beside_the_faster_peer("gpu_hopper")
    missed = (512, 128, True)
    of_d: dict[int, list[float]] = {128: [], 64: []}
    for (_, d, _), ratio in forward.items():
        of_d[d].append(ratio)
    first = f"{min(of_d[128]):.2f} to {max(of_d[128]):.2f} times"
    second = f"{min(of_d[64]):.2f} to {max(of_d[64]):.2f} times"
    assert has_numbers(IN_PAGE, f"{first} {second}")
    assert has_numbers(IN_PAGE, f"{len(forward)}", about="FlashAttention-4")
    assert min(forward.values()) >= 1
    near = []
    for (N, d, causal), ratio in forward.items():
        if N <= 2048 and d == 128 and ratio < 1.05:
            near.append((N, d, causal))
    assert near == [missed]
    assert has_numbers(NOT_REACHED, f"{forward[missed]:.2f} 128 512")
    wide = beside_the_faster_peer("gpu_hopper_cases", "heads256")
    behind = [setting for setting, ratio in wide.items() if ratio < 0.98]
    assert behind == [(512, 256, True)]
    assert has_numbers(NOT_REACHED, f"{wide[512, 256, True]:.2f} 256 512")
    assert has_numbers(IN_PAGE, f"{min(wide.values()):.2f} {max(wide.values()):.2f}")


def test_the_pages_numbers_on_decoding_and_windows_are_the_recorded_ones() -> None:
    decoding = []
    windows = []
    for r in figure("gpu_hopper_cases")["results"]:
        ms = r["ms"]
        if r["case"] == "decode":
            faster_peer = min(ms["fa4"], ms["torch_cudnn"])
            decoding.append((r["N_q"], faster_peer / ms["hopper_decode"]))
        if r["case"] == "window":
            of_kernel = r["bytes"] / ms["hopper"]
            of_copy = r["copied"] / ms["copy"]
            windows.append(of_kernel / of_copy)
        if r["case"] == "block-sparse":
            faster = ms["s = 0.5"] / ms["dense"]
            assert has_numbers(
                IN_PAGE, f"{faster / r['live']['s = 0.5']:.2f} {r['d']}", about="`block_mask`"
            )
            assert faster > 0.5
    ratios = [ratio for _, ratio in decoding]
    assert has_numbers(IN_PAGE, f"{min(ratios):.2f} {max(ratios):.1f}")
    assert has_numbers(IN_PAGE, f"{windows[0]:.2f}", about="copy")
    assert windows[0] >= 0.8


def test_the_pages_numbers_on_few_queries_are_the_recorded_ones() -> None:
    """With 2 to 8 queries no peer is ahead in any row, and elsewhere by at most 5%."""
    every = []
    long = []
    few = []
    one = []
    more = []
    for r in figure("gpu_few_queries")["results"]:
        peers = {name: ms for name, ms in r["ms"].items() if name != "hopper_decode"}
        assert {"fa3", "fa4"} <= set(peers)
        ratio = min(peers.values()) / r["ms"]["hopper_decode"]
        every.append(ratio)
        if r["N_q"] >= 16 and r["N_k"] >= 8192:
            long.append(ratio)
        if 2 <= r["N_q"] <= 8:
            few.append(ratio)
        if r["N_q"] == 1:
            one.append(ratio)
        else:
            more.append(ratio)
    assert len(every) == 144
    assert has_numbers(IN_PAGE, f"{min(every):.2f} {max(every):.2f}")
    assert has_numbers(IN_PAGE, f"{min(long):.2f} {max(long):.2f}")
    assert min(few) >= 1.0
    assert has_numbers(IN_PAGE, f"no peer is ahead {len(few)}")
    assert min(every) >= 0.95
    behind = sum(ratio < 1 for ratio in one)
    assert has_numbers(NOT_REACHED, f"{min(one):.2f} {max(one):.2f} {behind} {len(one)}")
    behind = sum(ratio < 1 for ratio in more)
    assert has_numbers(NOT_REACHED, f"{behind} {len(more)}")


def test_the_pages_numbers_on_flash_attention_3_are_the_recorded_ones() -> None:
    record = figure("gpu_hopper_peers")
    ratios = []
    for r in record["results"]:
        rates = rates_of(r)
        assert set(rates) == {"hopper", "torch_cudnn", "fa3", "fa4"}
        ratios.append(rates.pop("hopper") / max(rates.values()))
    assert {r["dtype"] for r in record["results"]} == {"float16", "bfloat16"}
    assert min(ratios) > 1.0
    assert has_numbers(IN_PAGE, f"{len(ratios)} {min(ratios):.2f} {max(ratios):.2f}")
    assert has_numbers(IN_PAGE, f"{record['machine']['flash_attn_3']}")


def test_the_pages_numbers_on_what_serves_are_the_recorded_ones() -> None:
    result: dict[tuple[str, bool], list[float]] = {}
    for r in figure("gpu_serving")["results"]:
        (own,) = (ms for name, ms in r["ms"].items() if name.startswith("hopper"))
        peers = [ms for name, ms in r["ms"].items() if name in ("fa4", "flashinfer", "torch")]
        result.setdefault(
            (r["case"], r["case"] == "paged" and r["lengths"] == "ragged"), []
        ).append(min(peers) / own)
    alike = result["paged", False]
    ragged = result["paged", True]
    packed = result["varlen", False]
    assert (len(alike), len(ragged), len(packed)) == (15, 2, 16)
    assert has_numbers(IN_PAGE, f"{min(alike):.2f} {max(alike):.2f}")
    (ratio,) = {f"{ratio:.2f}" for ratio in ragged}
    assert has_numbers(IN_PAGE, f"{ratio} 8192", about="pages at random")
    assert has_numbers(IN_PAGE, f"{min(packed):.2f} {max(packed):.2f}")


def test_the_pages_numbers_on_the_backward_pass_are_the_recorded_ones() -> None:
    """A deterministic pass is at most 10% slower in every row."""
    results = figure("gpu_hopper_backward")["results"]
    rates = [r["tflops"] for r in results if r["N"] >= 4096]
    ratios = [rate["hopper"] / max(rate["fa4"], rate["torch_cudnn"]) for rate in rates]
    assert min(ratios) >= 0.98
    assert all(rate["fa4"] > rate["torch_cudnn"] for rate in rates)
    assert has_numbers(IN_PAGE, f"{min(ratios):.2f} {max(ratios):.2f}")
    costs = [
        100 * (1 - r["tflops"]["hopper deterministic"] / r["tflops"]["hopper"]) for r in results
    ]
    assert max(costs) <= 10
    assert min(r["N"] for r in results) == 512
    assert has_numbers(IN_PAGE, f"{max(costs):.0f} 512", about="`deterministic=True`")
    assert has_numbers(IN_TRIED, f"{max(costs):.0f}", about="deterministic order")
    behind = {}
    for r in results:
        rate = r["tflops"]
        if not r["dropout_p"] and rate["hopper"] < rate["fa4"]:
            behind[r["d"], r["N"], r["causal"]] = rate["hopper"] / rate["fa4"]
    assert set(behind) == {(128, 512, True)}
    assert has_numbers(NOT_REACHED, f"{behind[128, 512, True]:.2f} 128 512", about="backward pass")
    wide = [r["tflops"] for r in figure("gpu_hopper_backward_wide")["results"]]
    beside = [rate["hopper"] / rate["torch_cudnn"] for rate in wide]
    unfused = [rate["hopper"] / rate["standard"] for rate in wide if "standard" in rate]
    assert has_numbers(
        IN_PAGE, f"{min(beside):.2f} {max(beside):.2f} {min(unfused):.1f} {max(unfused):.1f}"
    )


def test_the_pages_numbers_on_8_bits_are_the_recorded_ones() -> None:
    results = figure("gpu_hopper_fp8")["results"]
    rates = [(r["N"], r["tflops"]) for r in results if r["case"] == "fp8"]
    ratios = [rate["hopper_fp8"] / rate["hopper"] for N, rate in rates if N >= 4096]
    contiguous = [rate["hopper_fp8, keys of V contiguous"] / rate["hopper"] for _, rate in rates]
    full, causal = (rate["hopper_fp8"] / rate["hopper"] for N, rate in rates if N == 1024)
    assert min(*ratios, *contiguous, full, causal) >= 1.3
    assert has_numbers(IN_PAGE, f"{min(ratios):.2f} {max(ratios):.2f}")
    assert has_numbers(IN_PAGE, f"{full:.2f} {causal:.2f}")
    assert has_numbers(IN_PAGE, f"{min(contiguous):.2f} {max(contiguous):.2f}")
    *narrow, widest = (
        r["tflops"]["hopper_fp8"] / r["tflops"]["hopper"]
        for r in results
        if r["case"] == "fp8 by spread"
    )
    assert has_numbers(IN_PAGE, "{:.2f} {:.2f} {:.2f}".format(*narrow, widest))
    assert min(narrow) >= 1.3 > widest
    assert has_numbers(NOT_REACHED, f"{widest:.2f} 9 16")
    (errors,) = (r for r in results if r["case"] == "fp8 errors")
    assert has_numbers(IN_PAGE, f"{errors['of inputs']:.1%} {errors['hopper_fp8']:.1%}")
    assert has_numbers(IN_TRIED, f"{errors['hopper_fp8']:.1%} {errors['of inputs']:.1%}")


def test_the_table_of_shifts_is_the_recorded_one() -> None:
    """Of captured data and of wide ones: error in %, and rate, full / causal; and what OFFSET 8
    costs of captured data's rate.
    """
    result = {}
    for r in figure("gpu_fp8_shift")["results"]:
        result[r["distribution"], r["causal"]] = r
    rows = re.findall(r"^\| (\d), (\d)[^|]* (\|.*\|)$", TRIED, re.MULTILINE)
    assert [row[:2] for row in rows] == [("4", "4"), ("8", "0"), ("2", "6"), ("0", "8")]
    for offset, limit, cells in rows:
        expected = []
        for name in ("captured", "wide"):
            both = [result[name, causal] for causal in (False, True)]
            expected.append(
                " / ".join(f"{100 * of['errors'][f'{offset},{limit}']:.2f}" for of in both)
            )
            expected.append(
                " / ".join(f"{of['tflops, N = 4096'][f'{offset},{limit}']:.0f}" for of in both)
            )
        assert cells == f"| {' | '.join(expected)} |", offset
    full, causal = (
        100 - 100 * of["8,0"] / of["2,6"]
        for of in (result["captured", c]["tflops, N = 4096"] for c in (False, True))
    )
    assert has_numbers(IN_TRIED, f"{full:.0f} {causal:.0f}")
    short = [
        result[name, causal]["tflops, N = 1024"]
        for name in ("normal", "captured")
        for causal in (False, True)
    ]
    gains = " ".join(f"{of['2,6'] / of['4,4']:.2f}" for of in short)
    assert has_numbers(IN_TRIED, f"2 6 4 4 {gains}")
    inputs = {
        name: " / ".join(f"{100 * result[name, c]['of inputs']:.1f}" for c in (False, True))
        for name in ("captured", "wide")
    }
    assert has_numbers(IN_TRIED, f"{inputs['captured']} {inputs['wide']}")


def test_the_pages_numbers_on_sections_are_the_recorded_ones() -> None:
    us = {}
    for r in figure("gpu_sections")["results"]:
        us[r["d"], r["N"], r["heads"]] = r["us"]
    short = us[128, 512, 512]

    def gain(d: int, N: int, heads: int, before: str, now: str) -> str:
        return f"{us[d, N, heads][before] / us[d, N, heads][now]:.2f}"

    shorts = gain(128, 512, 512, "128", "64"), gain(64, 512, 1024, "usual", "128")
    assert has_numbers(IN_TRIED, " ".join(shorts), about="gpu_sections.json")
    longs = gain(128, 16_384, 16, "usual", "8"), gain(256, 16_384, 8, "usual", "8")
    assert has_numbers(IN_TRIED, " ".join(longs), about="gpu_sections.json")
    assert has_numbers(IN_TRIED, f"54 54 52 64 64 32 {gain(128, 1024, 160, '64', '54')}")
    assert has_numbers(IN_TRIED, f"80 80 128 32 {gain(64, 1024, 160, '128', '80')}")
    times = (short[name] for name in ("copy of as much", "64", "torch_cudnn"))
    assert has_numbers(IN_PAGE, "{:.0f} {:.0f} {:.0f}".format(*times))
    longer = [
        short[f"loop, {name}"] / short[graph]
        for name, graph in (("hopper", "64"), ("torch_cudnn",) * 2)
    ]
    assert has_numbers(IN_PAGE, f"{max(longer) - 1:.0%}", about="Python")
    for r in figure("gpu_sections")["results"]:
        assert r["us"][str(r["chosen"])] <= 1.02 * min(
            duration for heads, duration in r["us"].items() if heads.isdigit()
        )


def test_the_table_of_scales_in_8_bits_is_the_recorded_one() -> None:
    """And the record is what the script computes."""
    record = figure("fp8_scales")
    result = {}
    for r in record["results"]:
        result[r["distribution"], r["causal"]] = r["errors"]
    for name in ("captured", "normal", "outliers"):
        both = [result[name, causal] for causal in (False, True)]
        cells = (
            " / ".join(f"{100 * of[way]:.2f}" for of in both)
            for way in ("none", "head", "128 rows", "row", "turned")
        )
        (row,) = (
            line
            for line in PAGE.splitlines()
            if line.startswith(f"| {name}") and line.count("|") == 7
        )
        assert row.endswith(f" | {' | '.join(cells)} |"), name
    script = importlib.import_module("scripts.fp8_scales")
    inputs = tuple(X[:2] for X in script.numbers("captured"))
    exact = script.attention(*inputs, False)
    ways = {}
    for way, rows in script.SCALES.items():
        ways[way] = script.off(exact, inputs, rows, False)
    assert 0.01 < ways["row"] < ways["none"] < 0.1
    # a scale follows, so that nothing is beyond 448
    twice = script.rounded(inputs[0] * 4096, script.N)
    assert (twice == 4096 * script.rounded(inputs[0], script.N)).all()
    unscaled = script.rounded(inputs[0] * 4096, 0)
    assert np.abs(unscaled).max() == script.LARGEST


def test_the_table_of_gradients_in_8_bits_is_the_recorded_one() -> None:
    """And the script rounds what it says: of fp16 gradients are nearly exact, and Q, K and V
    cost the most in 8 bits.
    """
    result = {
        (r["distribution"], r["way"]): r["errors"]
        for r in figure("fp8_backward")["results"]
        if not r["causal"]
    }
    rows = re.findall(
        r"^\| [^|]*(?:fp16|Q, K, V|all)[^|]* \| (\d[^|]*) \| (\d[^|]*) \|$", PAGE, re.MULTILINE
    )
    script = importlib.import_module("scripts.fp8_backward")
    expected = [
        tuple(
            ", ".join(f"{100 * error:.2f}" for error in result[name, way])
            for name in ("captured", "normal")
        )
        for way in script.WAYS
    ]
    assert rows == expected
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 96, script.D)) for _ in range(4)]
    exact = script.gradients(inputs, [np.asarray] * 4, True)
    off = {
        way: [
            np.linalg.norm(x - of) / np.linalg.norm(of)
            for x, of in zip(script.gradients(inputs, how, True), exact, strict=True)
        ]
        for way, how in script.WAYS.items()
    }
    assert max(off["fp16"]) < 1e-3
    for fewer, more in pairwise(off.values()):
        assert all(a < b for a, b in zip(fewer, more, strict=True))


def test_the_pages_numbers_on_clocks_and_the_host_are_the_recorded_ones() -> None:
    *clocks, host = figure("gpu_clocks")["results"]
    rested, sustained = (r["ms"]["hopper"] / r["ms"]["hopper_fp8"] for r in clocks)
    assert has_numbers(IN_PAGE, f"{rested:.2f}", about="rest")
    assert has_numbers(IN_PAGE, f"{sustained:.2f}", about="alone")
    mhz = clocks[1]["MHz"]
    assert has_numbers(IN_PAGE, f"{mhz['hopper']} {mhz['hopper_fp8']}")
    first = figure("gpu_hopper_fp8")["results"][-1]["us"]
    calls = {
        "hopper": "`hopper`",
        "hopper_decode": "`hopper_decode`",
        "hopper, backward": "`hopper`, backward",
        "hopper, of tensors": "`hopper`, with PyTorch's tensors",
        "hopper, backward, of tensors": "`hopper`, backward, with PyTorch's tensors",
    }
    assert set(first) == set(host["us"]) == set(calls)
    for name, call in calls.items():
        assert f"| {call} | {first[name]:.0f} | {host['us'][name]:.0f} |" in PAGE, name


def test_the_pages_numbers_on_the_ladder_are_the_recorded_ones() -> None:
    full, causal = (
        {s["name"]: s for s in figure(name)["steps"]}
        for name in ("gpu_ladder", "gpu_ladder_causal")
    )

    def bought(of: dict[str, dict[str, Any]], idea: str) -> float:
        names = list(of)
        before = names[names.index(idea) - 1]
        return float(of[idea]["tflops"] / of[before]["tflops"])

    ideas = [name for name in full if name.startswith("hopper, +")]
    for name in ("tensor_core", "hopper, plain", *ideas, "fa4", "torch_cudnn"):
        cells = " | ".join(f"{of[name]['tflops']:.0f}" for of in (full, causal))
        (row,) = (
            line
            for line in PAGE.splitlines()
            if line.startswith(f"| `{name}` | ") and line.count("|") == 5
        )
        assert row.endswith(f" | {cells} |"), name
    for of, most in ((full, "hopper, + lazy"), (causal, "hopper, + persistent")):
        assert max(ideas, key=partial(bought, of)) == most
        assert bought(of, "hopper, + turns") == pytest.approx(1, abs=0.04)
        assert of["hopper"]["tflops"] == pytest.approx(of["hopper, + sums"]["tflops"], rel=0.1)
        for name in ("q_outer", "tensor_core", "hopper, plain", *ideas, "hopper"):
            step = of[name]
            events = step["seen"]["l2_reads"] + step["seen"]["l2_writes"]
            assert events == pytest.approx(2 * sum(step["simulated"].values()), rel=3e-3)
            assert step.get("counted", step["simulated"]) == step["simulated"]
    assert bought(full, "hopper, plain") > bought(full, "hopper, + lazy")
    lazy, sums = (f"{bought(full, f'hopper, + {idea}'):.2f} times" for idea in ("lazy", "sums"))
    assert has_numbers(IN_PAGE, f"{lazy} {sums}")
    assert has_numbers(IN_PAGE, f"{bought(causal, 'hopper, + persistent'):.2f}", about="persistent")
    split = " and ".join(f"{bought(of, 'hopper, + split'):.2f}" for of in (full, causal))
    assert has_numbers(IN_PAGE, split, about="masked")
    without = 1 - full["hopper, + lazy"]["tflops"] / full["hopper, + turns"]["tflops"]
    assert has_numbers(IN_PAGE, f"{without:.0%}", about="gpu_ladder_wide.json")
    rates = [
        [of[name]["tflops"] for of in (full, causal)]
        for name in ("hopper", "hopper, + turns", "hopper, plain")
    ]
    alone, last, plain = rates
    rungs = [of["tensor_core"]["tflops"] for of in (full, causal)]
    assert has_numbers(IN_PAGE, f"{alone[0]:.0f} {alone[1]:.0f}")
    assert has_numbers(
        IN_PAGE,
        f"{max(b / a for a, b in zip(alone, last, strict=True)) - 1:.0%}",
        about="difference",
    )
    for over, under in ((plain, rungs), (last, plain)):
        assert has_numbers(IN_PAGE, f"{over[0] / under[0]:.2f} {over[1] / under[1]:.2f}")
    events = full["hopper_fp8"]["seen"]["l2_reads"] + full["hopper_fp8"]["seen"]["l2_writes"]
    assert has_numbers(
        IN_PAGE, f"{events / sum(full['hopper_fp8']['simulated'].values()):.2f}", about="byte"
    )
    assert len(plot_ladder(figure("gpu_ladder"))[0].patches) == sum(
        not step["failed"] for step in full.values()
    )


@pytest.mark.parametrize("name", ["gpu_ladder", "gpu_ladder_causal"])
def test_bytes_of_a_ladder_have_labels_that_can_be_read(name: str) -> None:
    traffic = plot_ladder(figure(name))[1]
    figure_of(traffic).draw_without_rendering()
    low, high = traffic.get_xlim()
    labels = [
        label
        for place, label in zip(
            traffic.xaxis.get_ticklocs(), traffic.get_xticklabels(), strict=True
        )
        if low <= place <= high
    ] + [label for label in traffic.get_xticklabels(minor=True) if label.get_text()]
    assert len(labels) >= 3
    assert all(re.fullmatch("[0-9]+[MG]B", label.get_text()) for label in labels)
    boxes = sorted(label.get_window_extent().intervalx.tolist() for label in labels)
    assert all(right < left for (_, right), (left, _) in pairwise(boxes))


def test_a_record_is_drawn_by_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ladder as one, whatever its file is called; of rates, which have a row for each
    distribution, those of normal numbers.
    """
    script = runpy.run_path(str(ROOT / "scripts" / "gpu_figures.py"))
    drawn: list[Any] = []

    def plot(of: Any) -> Any:
        drawn.append(of)
        return plot_times(of)

    script["DRAWN"]["rates"] = {"rates": plot}
    script["main"].__globals__["drawn"] = lambda figure, form: b""
    rates = [
        {**r, "distribution": name}
        for r in benchmark_record()["results"]
        for name in ("wide", "normal")
    ]
    for name, record in (
        ("rates", {**figure("gpu_bench"), "results": rates}),
        ("mine", figure("gpu_ladder_causal")),
    ):
        own = tmp_path / f"{name}.json"
        own.write_text(json.dumps(record), encoding="utf-8")
        monkeypatch.setattr(
            "sys.argv", ["gpu_figures.py", "--record", str(own), "-o", str(tmp_path)]
        )
        script["main"]()
        assert {path.name for path in tmp_path.glob(f"{name}.*")} == {
            f"{name}{suffix}" for suffix in (".json", ".png", ".svg")
        }
    assert [r["distribution"] for r in drawn[0]["results"]] == ["normal"] * (len(rates) // 2)


def test_the_ladders_table_says_where_counts_are_the_simulators(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench.print_ladder(figure("gpu_ladder"))
    rows = [
        line.split()[1:]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("q_outer")
    ]
    assert functools.reduce(operator.iadd, rows, [])[2:] == [
        "4,362,338,304",
        "==",
        "8.728",
        "0.264",
    ]


def test_tables_of_rates_are_as_made() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "header_tables.py"))
    for name, (index, *_) in script["TABLES"].items():
        page = index.read_text(encoding="utf-8")
        assert script["written"](name, page) == page, "python scripts/header_tables.py"
        start = script["START"].format(name)
        before, _, rest = page.partition(start)
        _, end, after = rest.partition(script["END"])
        assert script["written"](name, before + start + end + after) == page
    with pytest.raises(ValueError, match=r"measured: hopper.cu"):
        script["written"]("hopper.cu", "<!-- measured: hopper_fp8.cu -->\n")


def test_no_peer_is_faster_on_any_distribution() -> None:
    ratios: dict[str, list[float]] = {}
    for r in figure("gpu_distributions")["results"]:
        rates = {t["name"]: t["tflops"] for t in r["timings"]}
        ratios.setdefault(r["distribution"], []).append(rates.pop("hopper") / max(rates.values()))
        assert {"torch_cudnn", "fa4"} <= set(rates)
    assert set(ratios) == set(contestants.DISTRIBUTIONS)
    every = [ratio for of in ratios.values() for ratio in of]
    assert min(every) >= 1.0
    assert min(ratios["normal"]) >= 1.05
    assert has_numbers(IN_PAGE, f"{min(every):.2f} {max(every):.2f}")
    steps = {s["name"]: s["tflops"] for s in figure("gpu_ladder_wide")["steps"] if not s["failed"]}
    names = ["hopper, + lazy", "hopper, + sums", "hopper, + mends", "hopper, + turns"]
    lazy, sums, mends, turns = (f"{steps[name]:.0f}" for name in names)
    assert has_numbers(IN_PAGE, f"{lazy} {sums} {mends} {turns}")


def test_a_peer_that_may_not_return_is_timed_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contestants, "torch_if_there", object)
    monkeypatch.setattr(contestants, "version", lambda _: "4")

    def names(direction: str, *options: str) -> set[str]:
        return {
            name
            for name, _ in contestants.contestants(Setting(1024, 64, direction=direction), options)
        }

    assert {"fa3", "fa4"} <= names("forward")
    assert not {"fa3", "fa4"} & names("backward")
    assert names("backward", "fa3", "fa4") == {"fa4"}
    assert set(contestants.absent(())) == {"fa3, backward", "fa4, backward"}
    assert set(contestants.absent(("hopper", "fa4"))) == {"fa3, backward"}
    monkeypatch.setattr(contestants, "version", lambda _: None)
    assert contestants.absent(()) == {
        "fa3": "tokenspeed-fa3 is not installed",
        "fa4": "flash-attn-4 is not installed",
    }
    assert not {"fa3", "fa4"} & names("forward", "hopper", "fa3", "fa4")


def test_a_quick_look_ends_with_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: list[Any] = []

    def timed(settings: Any, **how: Any) -> Any:
        options.append((settings, how))
        return benchmark_record()["results"]

    monkeypatch.setattr(benchmark, "benchmark", timed)
    monkeypatch.setattr(machine, "machine", lambda: benchmark_record()["machine"])
    assert main(["bench", "--quick", "--N", "512", "--quiet"]) == 0
    (settings, how), text = options[0], capsys.readouterr().out
    assert {(s.N, s.d, s.distribution) for s in settings} == {(512, 128, "normal")}
    assert (how["rounds"], how["turn_ms"]) == (3, 8)
    assert main(["bench", "--quick", "--N", "512", "--rounds", "5", "--turn", "2", "--quiet"]) == 0
    assert (options[1][1]["rounds"], options[1][1]["turn_ms"]) == (5, 2)
    rates = {
        t["name"]: t["tflops"]
        for t in benchmark_record()["results"][0]["timings"]
        if not t["failed"]
    }
    most = max(rates, key=lambda name: rates[name])
    assert f"{most:<14}{'█' * bench.BAR} {rates[most]:.0f}\n" in text


@pytest.mark.parametrize("distribution", contestants.DISTRIBUTIONS)
def test_distributions_are_what_they_say(distribution: str) -> None:
    setting = Setting(512, 64, B=1, H=2, distribution=distribution)
    normal = [
        np.random.default_rng(seed).standard_normal((1, 2, 512, 64), dtype=np.float32)
        for seed in range(3)
    ]
    Q, K, V = contestants.drawn(setting, normal, np)
    S = Q @ K.swapaxes(-1, -2) / 8
    assert Q.shape == K.shape == V.shape == (1, 2, 512, 64)
    if distribution == "growing":
        deviations = (S.std(axis=2) / normal[1].std(axis=-1)).mean(axis=(0, 1))
        assert deviations[:16].mean() == pytest.approx(9, rel=0.2)
        assert deviations[-16:].mean() == pytest.approx(1, rel=0.2)
    elif distribution == "sink":
        assert S[..., 0].min() > 14
        assert S[..., 1:].std() == pytest.approx(1, rel=0.1)
    elif distribution == "captured":
        sample = np.load(SAMPLE)
        q, k = (sample[name].astype(np.float32)[:2, sample["attend"]] for name in "qk")
        n = min(512, q.shape[1])
        assert np.allclose(
            S[0, :, :n, :n], q[:, :n] @ k[:, :n].swapaxes(-1, -2) / 32**0.5, rtol=1e-3, atol=1e-3
        )
    else:
        assert S.std() == pytest.approx({"normal": 1, "wide": 9}[distribution], rel=0.1)


def test_the_ladder_is_one_problem(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (
        "--N 1 2",
        "--distribution wide sink",
        "--direction backward",
        "--only hopper",
        "--dropout 0.1",
    ):
        assert main(["bench", "--ladder", "--quiet", *more.split()]) == 2
        assert more.split()[0] in capsys.readouterr().err


def test_the_pages_numbers_on_the_counters_are_the_recorded_ones() -> None:
    rows = figure("validate_hardware")["data"]["rows"]
    assert all(row["agrees"] is not False for row in rows)
    assert max(row["error"] for row in rows if row["level"] == "DRAM") < 0.002
    total = [
        (row["measured_reads"] + row["measured_writes"]) / 1e9
        for row in rows
        if row["group"] == "algorithm_1"
    ]
    assert has_numbers(IN_PAGE, f"{total[0]:.1f} {total[-1]:.1f}")
    tests = figure("gpu_tests")
    assert has_numbers(IN_PAGE, f"{tests['passed']} {len(tests['skipped'])}")
    soak = figure("gpu_soak")
    assert has_numbers(IN_PAGE, f"{soak['passed']} {soak['tests']}")
    assert not any(of[what] for of in (tests, soak) for what in ("failure", "error"))
    result = figure("gpu_sanitizer")["tools"]
    assert {name: tool["errors"] for name, tool in result.items()} == dict.fromkeys(result, 0)
    assert all(tool in PAGE for tool in result)


def test_a_soak_is_recorded_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launches in a run of their own, in one process; a failure of any is the script's."""
    script = importlib.import_module("scripts.record_gpu_tests")
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command)
        (log,) = (
            part.removeprefix("--junitxml=") for part in command if part.startswith("--junitxml=")
        )
        failure = "<failure/>" if "launches" in command else ""
        suite = (
            f'<testsuite time="1.5"><testcase name="{len(ran)}">{failure}</testcase></testsuite>'
        )
        Path(log).write_text(f"<testsuites>{suite}</testsuites>", encoding="utf-8")
        return MagicMock(returncode=len(failure))

    monkeypatch.setattr(script.subprocess, "run", run)
    monkeypatch.setattr(script, "machine", dict)
    output = tmp_path / "soak.json"
    assert script.main(["--soak", "--commit", "abc", "-o", str(output)]) == len("<failure/>")
    assert [command[command.index("-n") + 1] for command in ran] == ["8", "0"]
    record = json.loads(output.read_text(encoding="utf-8"))
    assert record["command"] == "python scripts/record_gpu_tests.py --soak --commit abc"
    assert (record["tests"], record["passed"], record["failure"], record["seconds"]) == (
        2,
        1,
        ["2"],
        3.0,
    )
    assert script.main(["--commit", "abc", "-o", str(output)]) == 0
    assert "tests/gpu/test_gpu.py" in ran[-1]


def test_the_picture_of_gpt_2_says_the_recorded_ratios() -> None:
    record = figure("gpu_gpt2")
    both = [timings(1024, 64, True, direction, 0.1) for direction in ("forward", "backward")]
    ax = plot_figure_1(record)
    message = {text.get_text() for text in ax.texts}
    index = {line.get_gid(): np.asarray(line.get_xdata())[0] for line in ax.get_lines()}
    assert index["baseline"] == pytest.approx(7.6 * index["paper"])
    assert index["baseline"] == sum(result["torch_unfused"]["median"] for result in both)
    for name in both[1]:
        total, unfused = (
            sum(result[which]["median"] for result in both) for which in (name, "torch_unfused")
        )
        assert f"{total:.1f} ms, {unfused / total:.1f}×" in message


def test_the_picture_of_figure_3_says_the_recorded_lengths() -> None:
    record = figure("gpu_figure_3")
    ax = plot_figure_3(record)
    since = {pays_from(record, name, "hopper") for name in SPARSE}
    assert f"\nfrom N = {since.pop():,} on" in ax.get_title(loc="left")
    assert not since  # both from the same length on
    for timing in (
        t for r in record["results"][:-1] for t in r["timings"] if t["name"] == "hopper_window"
    ):
        timing["median"] *= 20.0
    later = " (window), ".join(f"{pays_from(record, name, 'hopper'):,}" for name in SPARSE)
    assert f"from N = {later} (butterfly) on" in plot_figure_3(record).get_title(loc="left")
    (band,) = (patch for patch in ax.patches if patch.get_gid() == "paper")
    assert band.get_extents().x0 < band.get_extents().x1
    assert {line.get_gid() for line in ax.get_lines()} == {
        t["name"] for t in record["results"][0]["timings"]
    }


def test_the_pages_numbers_on_training_are_the_recorded_ones() -> None:
    of_gpu = {
        index["bug"]: index
        for index in figure("gpu_same_curve")["steps"]["distances"]
        if index["title"] == "gpu"
    }
    assert of_gpu[""]["shows"] is None
    assert {index["shows"] for bug, index in of_gpu.items() if bug} == {2}
    twice, no_D = (tiny(of_gpu[bug]["all"]) for bug in ("dK scaled by τ twice", "no − D in dS"))
    assert has_numbers(IN_PAGE, f"{tiny(of_gpu['']['early'])} {EARLY}")
    assert has_numbers(IN_PAGE, f"{EARLY} {twice} {no_D}")


def test_the_picture_of_training_names_above_what_is_drawn_above() -> None:
    above, below = plot_same_curve(figure("gpu_same_curve")["steps"])
    assert not any("gpu" in text.get_text() for text in above.texts)
    assert "gpu float32 apart" in {line.get_gid() for line in below.get_lines()}


EXACT = ("hopper", "torch_flash", "standard", "torch_unfused")


def test_the_pages_numbers_on_figure_3_are_the_recorded_ones() -> None:
    record = figure("gpu_figure_3")
    window, butterfly = (
        {name: pays_from(record, sparse, name) for name in EXACT} for sparse in SPARSE
    )
    assert window["hopper"] == butterfly["hopper"]
    assert has_numbers(IN_PAGE, f"{window['hopper']}", about="FlashAttention-2")
    shortest = record["results"][0]
    longest = record["results"][-1]
    assert {of[name] for of in (window, butterfly) for name in EXACT if name != "hopper"} == {
        shortest["N"]
    }
    ms = {t["name"]: t["median"] for t in longest["timings"]}
    faster = " ".join(f"{ms['hopper'] / ms[name]:.0f}" for name in SPARSE)
    assert has_numbers(IN_PAGE, f"{longest['N']:,} {faster}")
    index = Setting(butterfly["hopper"], 64)
    share = f"{contestants.share('hopper_butterfly', index):.0%}"
    assert has_numbers(IN_PAGE, f"{index.N} {share}")

    def moved(N: int, d: int = 64) -> tuple[int, int]:
        """By all of S in tiles of 256 × 64, and by the butterfly in tiles of 128 × 128."""
        whole = theory.exact("q_outer", N=N, d=d, M=10**6, blocks=(256, 64)).hbm
        columns = int(patterns.butterfly(N // 128, N // 128).sum()) * 128
        return whole.accesses, whole.accesses + 2 * columns * d - whole.by_array[
            "K"
        ].reads - whole.by_array["V"].reads

    assert moved(1024)[0] == moved(1024)[1]
    fewer = (
        1 / contestants.share("hopper_butterfly", Setting(longest["N"], 64)),
        moved(longest["N"])[0] / moved(longest["N"])[1],
    )
    times = f"{ms['hopper'] / ms['hopper_butterfly']:.0f}"
    assert has_numbers(IN_PAGE, f"{fewer[0]:.0f} {fewer[1]:.0f} {times}")


def test_kernels_are_as_fast_as_at_an_older_commit() -> None:
    """Forward and backward, full and causal, of both rungs for tensor cores."""
    record = figure("gpu_bench_against")
    assert (
        len(
            {
                tuple(r[key] for key in ("kernel", "N", "d", "causal", "direction"))
                for r in record["results"]
            }
        )
        == 48
    )
    assert (
        min(r["before ÷ now"][1] for r in record["results"])
        >= importlib.import_module("bench_against").LEAST
    )


FAKE = {
    "__init__": "",
    "gpu/__init__": "",
    "gpu/benchmark": "def benchmark(*_, **how): pass",
    "gpu/contestants": """
from dataclasses import dataclass
@dataclass(frozen=True)
class Setting:
    N: int
    d: int
    causal: bool
    direction: str
def contestants(setting, names):
    yield names[0], lambda: lambda: None
""",
    "gpu/compiling": """
class Cupy:
    Event, record, synchronize = lambda self: self, lambda self: None, lambda self: None
    get_elapsed_time = lambda self, start, end: 60 * MS
    cuda = property(lambda self: self)
import_cupy = Cupy
""",
}
"""A flashsim as old as bench_turns.py allows; each of its kernels takes MS."""


@pytest.mark.parametrize(("before", "status"), [(1.0, 0), (0.9375, 1)])
def test_a_kernel_that_has_become_slower_is_told(
    before: float,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = importlib.import_module("bench_against")
    for name, ms in (("now", 1.0), ("before", before)):
        for module, source in FAKE.items():
            index = tmp_path / name / "flashsim" / f"{module}.py"
            index.parent.mkdir(parents=True, exist_ok=True)
            index.write_text(source.replace("MS", str(ms)), encoding="utf-8")
    here = tmp_path / "now" / "scripts" / "research"
    here.mkdir(parents=True)
    (here / "bench_turns.py").write_bytes(script.HERE.with_name("bench_turns.py").read_bytes())
    monkeypatch.setattr(script, "HERE", here / "bench_against.py")
    monkeypatch.setattr(script, "machine", dict)
    output = tmp_path / "record.json"
    options = [
        "bench_against.py",
        str(tmp_path / "before"),
        "--before",
        "old",
        "--commit",
        "new",
        "--starts",
        "1",
        "--N",
        "64",
    ]
    monkeypatch.setattr("sys.argv", [*options, "-o", str(output)])
    assert script.main() == status
    result = json.loads(output.read_text(encoding="utf-8"))["results"]
    assert len(result) == 2 * 2 * 2 * 2
    assert {(r["before ÷ now"][1], r["again ÷ now"][1]) for r in result} == {(before, 1.0)}
    monkeypatch.setattr(
        script, "process", lambda *_: nullcontext(lambda _: "/elsewhere/flashsim/__init__.py")
    )
    with pytest.raises(
        ValueError, match=r"/elsewhere/flashsim/__init__.py was imported; expected a file in "
    ):
        script.main()
    assert "before ÷ now" in capsys.readouterr().out
