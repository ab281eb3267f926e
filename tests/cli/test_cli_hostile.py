"""Command lines that make no sense: status 2, nothing on stdout, and one line on stderr that
names what is wrong.
"""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import COMMANDS, main, parser_of

LONG = "9" * 5000
HUGE = str(2**63)


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make a folder of files to be refused, and work in it."""
    with chdir(tmp_path_factory.mktemp("hostile")):
        rng = np.random.default_rng(0)
        good: dict[str, Any] = {
            name: rng.normal(size=(2, 6, 4)).astype(np.float32) for name in "qkv"
        }
        np.savez("good.npz", **good)
        np.savez("ints.npz", **{name: a.astype(int) for name, a in good.items()})
        np.savez("large.npz", **{name: (300 * a).astype(np.float16) for name, a in good.items()})
        np.savez("nan.npz", **{name: np.full_like(a, np.nan) for name, a in good.items()})
        np.save("mask.npy", np.ones((5, 5), bool))
        np.save("floats.npy", np.ones((6, 6)))
        np.savez("masks.npz", a=np.ones(2, bool), b=np.ones(2, bool))
        np.savez("other.npz", a=np.ones(3), k=np.ones((3, 2)))
        np.savez("heads.npz", q=np.ones((3, 3, 2)), k=np.ones((2, 3, 2)), v=np.ones((2, 3, 2)))
        np.save("flat.npy", np.ones((4, 5)))
        np.save("objects.npy", np.array([{"q": 1}], dtype=object), allow_pickle=True)
        Path("junk.npz").write_bytes(b"junk, and no archive")
        Path("damaged.npz").write_bytes(b"PK\x03\x04 and then nothing")
        Path("empty.npz").write_bytes(b"")
        Path("junk.npy").write_bytes(b"junk, and no array")
        np.savez_compressed("bomb.npz", **good | {"q": np.zeros(2**26, np.float32)})
        Path("pickled.npz").write_bytes(b"\x80\x04N.")
        Path("cut.npz").write_bytes(Path("good.npz").read_bytes()[:300])
        Path("junk.safetensors").write_bytes(b"\xff" * 40)
        Path("latin").write_bytes(b"p '\xe9'\n")
        for name, text in {
            "odd": "n,d\n8,4\n",
            "empty": "N,d\n",
            "twice": "N,d,N\n8,4,9\n",
            "ragged": "N,d\n8,4,5\n",
        }.items():
            Path(f"{name}.csv").write_text(text, encoding="utf-8")
        # where what is imported is compiled, unless Python is told not to
        Path("__pycache__").mkdir()
        Path("folder").mkdir()
        Path("folder.png").mkdir()
        if hasattr(os, "mkfifo"):
            os.mkfifo("pipe.npz")
            Path("loop.npz").symlink_to("loop.npz")
        Path("quits.py").write_text("raise SystemExit('bye')\n", encoding="utf-8")
        Path("broken.py").write_text("1 / 0\n", encoding="utf-8")
        Path("notes.json").write_text("{}", encoding="utf-8")
        Path("other.py").write_text("x = 1\n", encoding="utf-8")
        Path("binary.py").write_bytes(b"\xff\xfe\x00")
        within = (
            "    def attention(hbm, sram, Q, K, V, blocks):\n        return Q\n    return "
            "attention\n"
        )
        Path("inner.py").write_text(f"def make():\n{within}made = make()\n", encoding="utf-8")
        Path("kernels.py").write_text(
            "import os\nenviron = os.environ\ndef attention(q, k, v): return q\n", encoding="utf-8"
        )
        yield


REFUSED = {  # command line: what is said
    # no command, or none that there is
    "fly": "there is no 'fly'",
    "'a\nb'": "there is no 'a",
    "--N 3": "COMMAND",
    "run good.npz": "unrecognized arguments: good.npz; files of Q, K, V are given as --qkv FILE\n",
    "run --no-such-option": "unrecognized arguments: --no-such-option\n",
    "check --steps 3": "unrecognized arguments: --steps\n",
    "sweep --steps 3": "unrecognized arguments: --steps\n",
    "sweep --d 4 --N 64,128": "--N: got '64,128'; expected values side by side, as 64 128, or a range, as 128:4096:128",
    "sweep --d 4 --N 64 --M 1KB,2KB": "--M: got '1KB,2KB'; expected values side by side",
    "count --casual": "unrecognized arguments: --casual, perhaps you mean '--causal'\n",
    "run --colour": "unrecognized arguments: --colour\n",
    "step --blok 3": "unrecognized arguments: --blok, perhaps you mean '--blocks'\n",
    "run --N 64": (
        "unrecognized arguments: --N; --N is for step, debug, count, sweep, tune, devices, plot, "
        "prove, bench\n"
    ),
    "run flash": "unrecognized arguments: flash; an algorithm is given as --algorithm flash\n",
    "run 'a\nb'": "unrecognized arguments: a b",
    "count 'a\x1b[2Jb' --d 4": "there is no algorithm 'a",
    # count: numbers
    "count": "--d",
    "count --d": "--d: expected one argument",
    "count --d 4": "a length is missing",
    "count --d four --N 4": "--d: got 'four'; expected a whole number of at least 1",
    "count --d 0 --N 4": "--d: got '0'; expected a whole number of at least 1",
    "count --d 4 --N -3": "--N: got '-3'",
    "count --d 4 --N 1.5": "--N: got '1.5'",
    "count --d 4 --N 1e3": "--N: got '1e3'",
    "count --d 4 --N ''": "--N: got ''",
    "count --d 4 --N nan": "--N: got 'nan'",
    "count --d 4 --N 0x10": "--N: got '0x10'",
    f"count --d 4 --N {LONG}": "--N: got '99999",
    f"count --d 4 --N {HUGE}": "expected a whole number of at most 2**63 - 1",
    "count --d 4 --N-q 5": "missing",
    "count --d 4 --N-k -1 --N-q 4": "--N-k: got '-1'",
    "count --d 4 --N 4 --d-v 0": "--d-v: got '0'",
    "count --d 4 --N 4 --N-q 3": "N_q is 3, and N is 4; expected N alone, or N_q and N_k",
    "count --d 4 --N 4 --heads 4 --kv-heads 3": "heads is 4; expected a multiple of kv_heads = 3",
    "count --d 4 --N 4 --blocks 2 2 --M 5": "Take a larger M or smaller blocks.",
    "count --d 4 --N 4 --N_q 0 --N_k 4": "--N_q: got '0'",  # as it was once spelled
    "count --d 4 --N 4 --heads 0": "--heads: got '0'",
    "count --d 4 --N 4 --heads 3 --kv-heads 2": "heads",
    "count --d 4 --N 4 --kv-heads -2": "--kv-heads: got '-2'",
    "count --d 4 --N 4 --dtype int8": "--dtype",
    "count --d 4 --N 4 --dropout 1": "--dropout: got '1'; expected a number p with 0 ≤ p < 1",
    "count --d 4 --N 4 --dropout -0.1": "--dropout: got '-0.1'",
    "count --d 4 --N 4 --dropout nan": "--dropout: got 'nan'",
    "count --N 8 --d 4 --sink two": "--sink: got 'two'; expected a number, or one for each query head, as -1.5,0,2",
    "count --N 8 --d 4 --sink 1,,2": "--sink: got '1,,2'; expected a number, or one",
    "count --N 8 --d 4 --sink nan": "--sink: got 'nan'; expected a number",
    "count --N 8 --d 4 --sink inf": "--sink: got 'inf'; expected a number",
    "count --N 8 --d 4 --heads 2 --sink 1,2": "--sink has 2 numbers; expected one: `flashsim count` is of one head",
    "count --N 8 --d 4 tiles_streamed --sink 1": "takes no sink; expected one of these: 'standard', 'flash'",
    "count --N 9 --d 4 --offset 1": "--offset goes with --causal",
    "count --N 9 --d 4 --causal --offset 1.5": "argument --offset: got '1.5'; expected a whole number",
    "count flash_basic --d 4 --N 4 --dropout 0.1": "dropout",
    "count flash_basic --d 4 --N 4 --causal": "mask",
    "count flash --d 4 --N 4 --block-mask butterfly": "takes no option block_mask",
    "count block_sparse --d 4 --N 4 --block-mask stripes": "--block-mask",
    "count flash --d 4 --N 4 --splits 2": "takes no option splits",
    "count split_kv --d 4 --N 4 --splits 0": "--splits: splits is 0; expected at least 1",
    f"count split_kv --d 4 --N 4 --splits {HUGE}": "--splits: splits is 9223372036854775808; expected at most",
    "count split_kv --d 4 --N 4 --splits many": "--splits: got 'many'; expected a whole number",
    "count sliding_window --d 4 --N 4 --window 1,2,3": "--window: window is (1, 2, 3); expected (left, right), a number, or None",
    "count split_kv --d 4 --N 4 --merge zigzag": "--merge",
    "count snake --d 4 --N 4 --backward": "no backward pass",
    "count q_outer_two_pass --d 4 --N 4": "is a backward pass only",
    # count: M and blocks
    "count --d 4 --N 4 --M 0": "--M",
    "count --d 4 --N 4 --M -5": "--M",
    "count --d 4 --N 4 --M 12parsecs": "'12parsecs' is not a size",
    "count --d 4 --N 4 --M 1B": "--M: '1B' is 0 elements",
    "count --d 4 --N 4 --M 1.5": "--M: '1.5' is 1.5 elements",
    f"count --d 4 --N 4 --M {LONG}": "--M",
    f"count --d 4 --N 4 --M {'9' * 400}GB": "--M",
    "count --d 4 --N 4 --M ''": "--M",
    "count --d 64 --N 9 --M 70 --sizing fit": "at least M = ",
    "count --d 4 --N 4 --sizing huge": "--sizing",
    "count --d 4 --N 4 --blocks 2": "--blocks: expected 2 arguments: B_r B_c\n",
    "count --d 4 --N 4 --blocks 2 x": "--blocks: got 'x'",
    "count --d 4 --N 4 --blocks 0 4": "--blocks: got '0'",
    "count --d 64 --N 64 --blocks 64 64 --M 10": "does not fit in SRAM",
    "count --d 4 --N 4 --json nowhere/a.json": "--json: nowhere/a.json cannot be written: there is no folder nowhere",
    "count --d 4 --N 4 --json folder": "--json: folder is a folder; expected a file",
    "count --d 4 --N 4 --json ''": "--json",
    # run: its files
    "run --qkv nowhere.npz": "nowhere.npz is not there; expected a file with Q, K, V",
    "run --qkv folder": "folder is a folder; expected a file with Q, K, V",
    "run --qkv bomb.npz": "bomb.npz unpacks to 268,436,224 bytes from 26",
    "run --qkv loop.npz": "loop.npz is a link that leads back to itself; expected a file with Q, K, V",
    "run --qkv pipe.npz": "pipe.npz is a pipe or a device; expected a file with Q, K, V",
    "run --qkv junk.npz": "junk.npz is not a .npz or .npy file",
    "run --qkv junk.npy": "junk.npy is not a .npz or .npy file",
    "run --qkv damaged.npz": "damaged.npz",
    "run --qkv empty.npz": "empty.npz is empty",
    "run --qkv objects.npy": "objects.npy holds pickled Python objects, which flashsim never loads",
    "run --qkv other.npz": "has no Q and no V; expected arrays named q, k, v. It holds: a, k",
    "run --qkv flat.npy": "one array of shape (4, 5); expected Q, K, V stacked",
    "run --qkv heads.npz": "expected H_q = 3, the query heads, to be a multiple of H_kv = 2",
    "run --qkv pickled.npz": "pickled.npz holds pickled Python objects, which flashsim never loads",
    "run --qkv cut.npz": "cut.npz",
    "run --qkv junk.safetensors": "junk.safetensors cannot be read",
    "run --qkv ints.npz": "Q has dtype int64",
    "run --qkv kernels.py": "suffix '.py'; expected .npz, .npy or .safetensors",
    "run --qkv good.npz good.npz": "got 2 files",
    "run --qkv good.npz good.npz good.npz": "of three files each",
    "run --qkv": "--qkv: expected at least one argument",
    f"run --qkv {'n' * 300}.npz": "too long",
    f"run -o {'n' * 300}.png": "too long",
    f"count --d 4 --N 4 --json {'n' * 300}.json": "too long",
    f"exercise check {'n' * 300}.py": "too long",
    "run --qkv good.npz --padded": "--padded goes with the bundled sample",
    "run --qkv good.npz --head 2": "--head 2 is out of range: Q's leading axes are (2,)",
    "run --qkv good.npz --head -1": "--head -1 is out of range",
    "run --qkv good.npz --head 0,0": "--head 0,0 is out of range",
    "run --qkv good.npz --head 0.5": "--head: got '0.5'; expected an index such as 3, or 0,3 for axes of batch and head",
    "run --qkv good.npz --head ''": "--head: got ''",
    f"run --qkv good.npz --head {LONG}": "--head: got '99999",
    "run --qkv nan.npz": "Q[0, 0, 0] is nan; expected finite numbers\n",
    "run --mask nowhere.npy": "nowhere.npy is not there; expected a .npy file with a mask",
    "run --mask folder": "folder is a folder; expected a .npy file with a mask",
    "run --mask masks.npz": "masks.npz holds several arrays",
    "run --mask junk.npy": "junk.npy is not a .npz or .npy file",
    "run --qkv good.npz --mask floats.npy": "mask has dtype float64; expected booleans",
    "run --qkv good.npz --mask mask.npy --algorithm flash": "mask has shape (5, 5); expected",
    "run --padded --mask mask.npy": "--padded",
    # run: its numbers
    "run --seed -5": "--seed: got '-5'; expected a whole number from 0 to 2**64 - 1",
    f"run --seed {2**64}": "--seed",
    "run --seed 1.5": "--seed: got '1.5'",
    "run --scale nan": "--scale: got 'nan'; expected a finite number",
    "run --scale 1e400": "--scale: got '1e400'",
    "run --scale two": "--scale: got 'two'",
    "run --dropout 2": "--dropout: got '2'",
    "run --dtype float8": "--dtype",
    "run --M 7": "M = 7 elements is too small",
    "run --M '12 parsecs'": "--M: '12 parsecs' is not a size",
    "run --algorithm": "--algorithm: expected at least one argument: NAME [NAME ...]\n",
    "run --algorithm best": "there is no algorithm 'best'; there are standard, ",
    "run --backward --algorithm snake": "no backward pass",
    "run --splits 3 --algorithm standard": "takes no option splits",
    f"run --algorithm split_kv --splits {HUGE}": "--splits",
    "run --gqa both": "--gqa",
    # run: where it writes
    "run -o ''": "--output: '' names no file",
    "run -o .": "--output: '.' names no file",
    "run -o ..": "--output: '..' names no file",
    "run -o /": "--output: '/' names no file",
    "run -o folder": "--output: folder.png is a folder; expected a file",
    "run -o kernels.py/x": "--output",
    "run --json nowhere/a.json": "--json: nowhere/a.json cannot be written",
    "run --json flashsim-run.json": "--json: flashsim-run.json is what -o writes too",
    "run -o a --json ./a.svg": "--json: ./a.svg is what -o writes too",
    "run --qkv good.npz --json good.npz": "--json: good.npz is the input",
    # plot
    "plot": "required: FIGURE, one of appendix_b5, approximate, blocks, ",
    "plot nothing": "there is no 'nothing'",
    "plot figures/nothing.png": "there is no 'nothing'",
    "plot blocks --causal": "--causal is for arrays; blocks does not take it",
    "plot arrays --kv-heads 2": "heads is 1; expected a multiple of kv_heads = 2",
    "plot --all --N 8": "--N is for one figure; name it in place of --all",
    "plot --all blocks": "FIGURE: not allowed with argument --all",
    "plot blocks --N 0": "--N: got '0'",
    "plot blocks -o slide.pdf": "--output: slide.pdf ends in .pdf; expected a stem, to which .png, .svg, .json are added",
    "run -o slide.PDF": "--output: slide.PDF ends in .PDF",
    "plot blocks --d -1": "--d: got '-1'",
    "plot blocks --M x": "--M",
    "plot blocks --k 8": "--k is for approximate; blocks does not take it",
    "plot approximate --k 0": "--k: got '0'",
    "plot blocks --machine H200": "--machine is for l2, roofline",
    "plot roofline --M 100KB": "--M is for appendix_b5, approximate",
    "plot traffic --N 64": "traffic does not take it",
    "plot memory --N 64": "memory does not take it",
    "plot cache_size --M 64": "cache_size does not take it",
    "plot pareto --blocks 8 8": "--blocks is for appendix_b5, ",
    "plot arrays --N-q 8": "--N-q is for blocks",
    "plot arrays --blocks 1024 1024": "does not fit in SRAM",
    "plot theorem2 --N 64": "no range of",
    "plot roofline --machine Z80": "unknown machine 'Z80'; known: A100-40GB",
    "plot theorem2 -o kernels.py/x": "--output",
    "plot theorem2 --json nowhere/x": "--json",
    "plot arrays --N 512 --M 8KB --blocks 64 64": "Take a larger M or smaller blocks",
    "plot roofline --N 512 --blocks 512 512": "Take a larger M or smaller blocks",
    # sweep: what varies, and files
    "sweep --N 8:64 --d 4": "argument --N: got '8:64'; expected START:STOP:STEP, as 128:4096:128",
    "sweep --N 8:64:x1 --d 4": "expected a factor above 1",
    "sweep --N 64:8:4 --d 4": "got '64:8:4'; expected a range from 64 up",
    "sweep --N 1:9999999:1 --d 4": "expected at most 1,048,576 numbers",
    "sweep --N 8 --d 4 --M 1KB:3000:1KB": "expected sizes that are all elements, or all bytes",
    "sweep --N 8 --d 4 --M 1KB:xx:1KB": "'xx' is not a size",
    "sweep --d 4": "a length is missing",
    "sweep --N 4": "d is missing",
    "sweep flsh --N 8 --d 4": "there is no algorithm 'flsh', perhaps you mean 'flash'",
    "sweep --N 8 --d 4 --splits 3": "'flash' takes no option splits; 'split_kv' does",
    "sweep --N 8 --d 4 --causal maybe": "there is no 'maybe'",
    "sweep --N 8 --d 4 --x N": "--x is for a picture",
    "sweep --N 8 --d 4 --csv - --json -": "--csv - and --json - both want stdout",
    "sweep --N 8 --d 4 --csv a.csv --json a.csv": "argument --csv: a.csv is what --json writes too",
    "sweep --N 8 --d 4 --csv no/a.csv": "argument --csv: no/a.csv cannot be written: there is no folder no",
    "sweep --N 8 --d 4 --resume a --csv a": "another option's file",
    "sweep --N 8 --d 4 -o a": "no argument of numbers varies",
    "sweep --points no.csv": "argument --points: no.csv cannot be read as CSV: No such file or directory",
    "sweep --points odd.csv": "argument --points: sweep takes no argument 'n'; did you mean 'N'",
    "sweep --points empty.csv": "error: argument --points: empty.csv has no rows; expected at least one",
    "sweep --points twice.csv": "argument --points: twice.csv has several columns N; expected one",
    "sweep --points ragged.csv": "ragged.csv has a line with more cells",
    "sweep --points odd.csv --csv odd.csv": "argument --csv: odd.csv is the input",
    "sweep inner.py:made --N 8 --d 4 --jobs 2": "argument --jobs: inner.py:attention cannot be handed to other processes: ",
    # tune
    "tune mine.py:f --d 4 --N 4": "there is no file mine.py",
    "tune": "--d",
    "tune --d 4": "missing",
    "tune --d 4 --N 0": "--N: got '0'",
    "tune --d 4 --N 4 --least 0": "--least: got '0'",
    "tune --d 4 --N 4 --M 1": "M",
    "tune --d 4 --N 4 --M 1KB --dropout 7": "--dropout: got '7'",
    "tune --d 4 --N 4 --json nowhere/x": "--json",
    # prove
    "prove --exact --N 100 --d 4": "N is 100; expected at most 8",
    "prove --exact --N 3 --d 4 --M 24 -o x.txt": "argument -o/--output: x.txt has no suffix that says a trace's format",
    # gpu, bench
    "gpu warm": "there is no 'warm'",
    "gpu info --json file": "--json",
    "bench --N 0": "--N: got '0'",
    "bench --d x": "--d: got 'x'",
    "bench --rounds 0": "--rounds: got '0'",
    "bench --batch -1": "--batch: got '-1'; expected a whole number of at least 0",
    "bench --heads 0": "--heads: got '0'",
    "bench --heads 1 2 3": "--heads is [1, 2, 3]; expected one number, or one for each of --d [64, 128]",
    "bench --dropout nan": "--dropout: got 'nan'",
    "bench --only fastest": "--only: there is no 'fastest'",
    "bench --causal maybe": "--causal",
    "bench --json nowhere/x.json": "--json: nowhere/x.json cannot be written",
    # check
    "check": "what is to be checked is missing",
    "check kernels": "'kernels' is not of the form MODULE:FUNCTION",
    "check :attention": "MODULE:FUNCTION",
    "check kernels.py:": "MODULE:FUNCTION",
    "check ..:x": ".. is neither a .py file nor a module's name; expected MODULE:FUNCTION",
    "check notes.json:attention": "notes.json is neither a .py file nor a module's name; expected MODULE:FUNCTION, such as",
    "check no_kernels:attention": "cannot import no_kernels: ModuleNotFoundError",
    "check nowhere.py:attention": "there is no file nowhere.py",
    "check folder:attention": "folder has no 'attention'",
    "check quits.py:attention": "quits.py, line 1: SystemExit: bye",
    "check broken.py:attention": "broken.py, line 1: ZeroDivisionError: division by zero",
    "check kernels.py:missing": "kernels.py has no 'missing'",
    "check os:environ": "os:environ is of type _Environ; expected a function",
    "check kernels.py:attention --backward os:environ": "--backward: os:environ is of type _Environ; expected a function",
    "check kernels.py:attention --dropout os:environ": "--dropout: os:environ is of type _Environ; expected a function",
    "check kernels.py:attention --spec os:environ": "--spec: os:environ is of type _Environ; expected a flashsim.testing.Spec",
    "check kernels.py:attention --wrap numba": "--wrap",
    "check kernels.py:attention --convention sdpa": "--convention, --device and --page go with --wrap",
    "check kernels.py:attention --wrap jax --convention sdpa": "xp is 'jax'; expected 'torch', which convention 'sdpa' is of",
    "check kernels.py:attention --wrap numpy --convention onnx --page 4": "page is 4; expected none",
    "check kernels.py:attention --examples 0": "--examples: got '0'; expected a whole number",
    "check kernels.py:attention --seed -5": "--seed: got '-5'",
    "check kernels.py:attention --check orakel": "there is no check 'orakel'; expected one of oracle, ",
    "check kernels.py:attention --expect orakel": "there is no check 'orakel'; expected one of oracle, ",
    "check kernels.py:attention --check oracle --expect strides": "'strides' is expected to fail, but is not among",
    "check kernels.py:attention --check gradients": "'gradients' is asked for, but does not apply: no backward ",
    "check kernels.py:attention --expect gradients": "fail, but does not apply: no backward was",
    "check kernels.py:attention --backward auto": "expected --wrap torch, or --wrap jax",
    "check kernels.py:attention --overwrite": "--overwrite goes with --init",
    "check kernels.py:attention --blocks 0 4": "--blocks: got '0'",
    "check kernels.py:attention --block 0 4": "--block: got '0'",  # as it was once spelled
    "check kernels.py:attention --head-dims 0": "--head-dims: got '0'",
    "check kernels.py:attention --max-shapes 0": "--max-shapes: got '0'",
    "check kernels.py:attention --C -1": "--C",
    "check kernels.py:attention --lse": "--lse: expected one argument: natural or base2\n",
    "check kernels.py:attention --dtypes": "at least one argument: float16, bfloat16, float32, float64, ",
    "check kernels.py:attention --C nan": "--C: got 'nan'",
    "check kernels.py:attention --dtypes int8": "--dtypes",
    "check kernels.py:attention --json nowhere/x": "--json",
    # example
    "example nothing": "there is no example 'nothing'; there are prefill, ",
    "example --json -": "--json is for one example",
    "example prefill --json nowhere/x": "--json",
    # exercise, lessons
    "exercise begin": "there is no 'begin'",
    "exercise start": "which exercise?",
    "exercise start 99": "there is no exercise '99'; there are 1 load_a_tile, 2",
    "exercise start 1 nowhere": "there is no folder nowhere",
    "exercise check": "which file?",
    "exercise check nothing.py": "nothing.py is not there",
    "exercise check .": ". is a folder",
    "exercise check other.py": "other.py does not belong to an exercise",
    "exercise check binary.py": "binary.py is not text",
    "exercise check other.py --overwrite": "--overwrite goes with start",
    "exercise check other.py more": "check takes one argument",
    "exercise list nowhere": "nowhere is not a folder",
    "exercise list --hint": "--hint goes with check",
    "exercise list --csv a.csv": "go with grade",
    "exercise grade": "which folder?",
    "exercise grade nowhere": "is not a folder",
    "exercise grade folder --exercise 77": "there is no exercise '77'",
    "lessons casual": "there is no lesson 'casual', perhaps you mean 'causal'; expected one of online_softmax, ",
    "lessons causal -o other.py": "argument -o/--output: other.py is a file; expected a folder",
    # step
    "step --seed -5": "--seed: got '-5'; expected a whole number from 0 to 2**64 - 1",
    "step --N 0": "--N: got '0'",
    "step --N-k x": "--N-k: got 'x'",
    "step --d -1": "--d: got '-1'",
    "step --head 0": "--head goes with --qkv",
    "step --qkv good.npz": "expected one: give --head",
    "step --qkv good.npz --N 4": "--N, --N-k and --d are for random inputs",
    "step --qkv good.npz --head 0 -o good.npz": "--output: good.npz is the input",
    "step --blocks 3 0": "--blocks: got '0'",
    "step --M 5 --blocks 3 4": "Take a larger M or smaller blocks.",
    "step --qkv large.npz --head 0 --algorithm standard": "ends at 6.55e+04. Scale the inputs down",
    "step --bug nonsense": "unknown bug 'nonsense' of a forward pass; known: no_rescale, ",
    "step --vs flash --bug no_rescale": "not allowed with argument",
    "step --backward --algorithm snake": "backward",
    "step flash --algorithm q_outer": "an algorithm is given twice: leave out NAME or --algorithm",
    "step --text --open": "--text prints one run",
    "step --open -o x.json.gz": "--open shows a page",
    "step -o nowhere/x.html": "--output: nowhere/x.html cannot be written",
    "step -o x.txt": "argument -o/--output: x.txt has no suffix that says a trace's format",
    "step --vs q_outer -o x.json.gz": "expected .html",
    "step -o folder": "--output: folder is a folder",
    # debug, of T_r = 6 and T_c = 3
    **{
        f"debug {asked} --n 11 --d 3 --blocks 2 4": said
        for asked, said in {
            "flash_basic --line 99": "labels nothing in flash_basic; labels to stop at: line 1, 2, 3, 4,",
            "flash_basic --line 14": "nothing runs at '# line 14: end for' of flash_basic; labels to stop at: line 1,",
            "memory_efficient --line 3": "labels nothing in memory_efficient; labels to stop at: equation 1, 2\n",
            "rabe_staats --line 1": "labels to stop at: summarise, combine\n",
            "flash_basic --line 12 --at j=4": "--at gives j=4; expected 1 ≤ j ≤ 3",
            "flash_basic --line 12 --at j=2,i=7": "--at gives i=7; expected 1 ≤ i ≤ 6",
            "flash_basic --line 12 --at k=1": "no loop over k: the loops around it are over j, i",
            "flash_basic --line 7 --at i=1": "line 7 of flash_basic is in no loop over i: the loops around it are over j",
            "flash_basic --line 3 --at i=1": "there is no loop around it",
            "flash_basic --line 12 --at j": "--at is 'j'; expected turns of loops, counted from 1, such as j=3,i=4",
            "flash_basic --line 12 --at j=0": "--at is 'j=0'; expected turns of loops, counted from 1",
            "flash_basic --line 12 --at j=-1": "--at is 'j=-1'; expected",
            "flash_basic --line 12 --at j=1,j=2": "gives j twice",
            "q_outer --line 9 --causal --at i=1,j=3": "line 9 is never run at i = 1, j = 3, which is skipped",
            "q_outer_two_pass --line 3": "'q_outer_two_pass' is a backward pass only, of 'q_outer'",
            "snake --line 3 --backward": "'snake' has no backward pass",
            "flash_basic --line 12 --causal": "has no mask",
        }.items()
    },
    "debug flash": "--line",
    "debug flash --line ''": "--line",
    f"debug flash --line 9 --at j={LONG}": "--at",
    "debug flash --line 9 --seed -5": "--seed: got '-5'",
    "debug flash --line 9 --commands nowhere": "--commands: nowhere is not there; expected a file of pdb's commands",
    "debug flash --line 9 --commands folder": "--commands: folder is a folder; expected a file of pdb's commands",
    "debug flash --line 9 --commands latin": "--commands: latin is not text in UTF-8",
    # verify
    "verify --json nowhere/ledger.json": "--json: nowhere/ledger.json cannot be written: there is no folder nowhere",
    "verify --json folder": "--json: folder is a folder; expected a file",
    "verify --full extra": "there is no claim 'extra'; there are theorem_1_right, ",
}


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: command[:50])
def test_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "pipe.npz" in command and not Path("pipe.npz").exists():
        pytest.skip("this system has no pipes with names")
    before = sorted(os.listdir())
    name, *typed = [*shlex.split(command), ""]
    assert main(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"flashsim {name}: error: " if name in COMMANDS else "flashsim")
    assert ": error: " in err
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    assert len(err) < 1000
    assert REFUSED[command] in err, err
    assert name in err or name not in (
        "run",
        "count",
        "plot",
        "tune",
        "bench",
        "check",
        "step",
        "debug",
        "verify",
    )
    assert sorted(os.listdir()) == before
    if name in COMMANDS:
        known = {*typed, *parser_of(name).flags}
        assert [
            flag for flag in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", err) if flag not in known
        ] == []
