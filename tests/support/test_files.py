"""Files are written whole or not at all, by everything that writes files."""

import ast
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import flashsim
from flashsim.analysis.sweeping import checkpoint
from flashsim.support import files
from flashsim.support.files import check_target, write_whole
from flashsim.tracing import Trace

ROOT = Path(flashsim.__file__).parents[1]


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """Have every write past `size` bytes of a file fail, as on a full disk."""
    resource = pytest.importorskip("resource", reason="this system has no limit of a file's size")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_holds_all_of_the_content(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", "ℓ\n") == tmp_path / "a"
    assert (tmp_path / "a").read_bytes() == "ℓ\n".encode()
    write_whole(str(tmp_path / "a"), b"\0")
    assert (tmp_path / "a").read_bytes() == b"\0"
    assert os.listdir(tmp_path) == ["a"]


def test_without_room_the_old_file_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with little_room(100), pytest.raises(OSError, match="File too large"):
        write_whole(tmp_path / "a", "x" * 1000)
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_modes_are_kept_and_the_umask_is_respected(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old")
    old.chmod(0o640)
    umask = os.umask(0o027)
    try:
        write_whole(old, "new")
        write_whole(tmp_path / "new", "new")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.skipif(os.name == "nt", reason="on Windows, links need a right")
def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to(Path("folder") / "file")
    for content in ("first", "again"):  # of a file that is not there yet, and of one that is
        write_whole(tmp_path / "link", content)
        assert (tmp_path / "folder" / "file").read_text() == content
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["file"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    content: list[bytes] = []
    reader = threading.Thread(
        target=lambda: content.append((tmp_path / "pipe").read_bytes()), daemon=True
    )
    reader.start()
    write_whole(tmp_path / "pipe", "text")
    reader.join(10)
    assert content == [b"text"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout on this system")
@pytest.mark.parametrize("name", ["/dev/stdout", "link"])
def test_standard_output_is_written_to_be_it_a_pipe_or_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    # imports no NumPy
    code = f"import runpy; runpy.run_path({files.__file__!r})['write_whole']({name!r}, 'text')"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True, check=True).stdout == b"text"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(run, cwd=tmp_path, stdout=out, check=True)
        assert os.fstat(out.fileno()).st_ino == (tmp_path / "out").stat().st_ino
    assert (tmp_path / "out").read_text() == "text"
    assert sorted(os.listdir(tmp_path)) == ["link", "out"]


@pytest.mark.parametrize("write", [check_target, lambda path: write_whole(path, "")])
def test_what_cannot_be_written_is_said(tmp_path: Path, write: Callable[[Path], object]) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*[/\\]none"):
        write(tmp_path / "none" / "a")
    with pytest.raises(IsADirectoryError, match="is a folder; expected a file"):
        write(tmp_path)
    with pytest.raises(TypeError, match="path is 3; expected a str"):
        write(3)  # type: ignore[arg-type]


def read_only(path: Path, mode: int) -> None:
    path.chmod(mode)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write to everything, as root may")


def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    read_only(tmp_path / "a", 0o444)
    with pytest.raises(PermissionError, match="read-only"):
        write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_that_takes_no_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("old")
    read_only(folder, 0o555)
    try:
        write_whole(folder / "a", "new")
        assert (folder / "a").read_text() == "new"
        with pytest.raises(PermissionError, match="takes no new files"):
            write_whole(folder / "b", "new")
    finally:
        folder.chmod(0o755)


@pytest.fixture(scope="module")
def trace() -> Trace:
    Q = np.random.default_rng(0).standard_normal((4, 2))
    return flashsim.trace("flash", Q, Q, Q, M=64)


@pytest.mark.parametrize("name", ["run.html", "run.json.gz"])
def test_a_trace_is_written_whole(trace: Trace, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    with little_room(100), pytest.raises(OSError, match="File too large"):
        trace.save(tmp_path / name)
    assert (tmp_path / name).read_text() == "old"
    assert os.listdir(tmp_path) == [name]


def test_a_picture_is_written_whole(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    from flashsim.plots import save

    names = ["a.json", "a.png", "a.svg"]
    for name in names:
        (tmp_path / name).write_text("old")
    with little_room(10), pytest.raises(OSError, match="File too large"):
        save(Figure(), tmp_path / "a", {}, "none")
    for name in names:
        assert (tmp_path / name).read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == names


WRITES = re.compile(
    r"""\.(write_text|write_bytes|savefig|savez|savez_compressed|tofile|mkstemp)\((?!\s*buffer)"""
    r"""|screenshot\(path|open\([^()\n]*["'][wax]"""
)


def sources() -> list[Path]:
    of_package = (ROOT / "flashsim").rglob("*.py")
    of_scripts = (ROOT / "scripts").rglob("*.py")
    return [*of_package, *of_scripts]


def test_text_is_read_and_written_as_utf_8_wherever_it_is() -> None:
    """On Windows, Python would otherwise take the system's encoding."""
    for path in sources():
        code = path.read_text(encoding="utf-8")
        if not re.search("(read|write)_text", code):
            continue
        for call in ast.walk(ast.parse(code)):
            name = getattr(getattr(call, "func", None), "attr", "")
            if name in ("read_text", "write_text") and isinstance(call, ast.Call):
                arguments = [*call.args[name == "write_text" :], *call.keywords]
                assert arguments, f"{path}:{call.lineno} {ast.unparse(call)}"


def test_nothing_else_writes_files() -> None:
    others = {
        Path(files.__file__),
        Path(checkpoint.__file__),
    }  # a sweep's rows are kept as they come
    texts = {path: path.read_text(encoding="utf-8") for path in sources() if path not in others}
    assert [
        f"{path}: {match[0]}" for path, text in texts.items() for match in WRITES.finditer(text)
    ] == []
