"""A trial on shapes runs a function's shadow: it computes the same, says nothing, and leaves
nothing behind.
"""

import importlib.util
import linecache
import sys
from collections import Counter
from functools import cache, partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.memory.source import at_line, file_of, note_line, site_of
from flashsim.simulate.shadow import SPEAKERS, shadow_of


def module_of(tmp_path: Path, text: str, name: str = "mine") -> ModuleType:
    file = tmp_path / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


STATEFUL = """
import random
from collections import Counter, defaultdict, deque
import numpy as np

LIST, DICT, SET, DEQUE = [[1], 2], {"a": [1]}, {1}, deque([1], maxlen=9)
COUNTER, DEFAULT, BYTES, ARRAY = Counter("ab"), defaultdict(list), bytearray(b"a"), np.zeros(3)
RNG, DICE, N = np.random.default_rng(0), random.Random(0), 0


class Totals:
    def __init__(self):
        self.sum, self.seen = 0, []

    def add(self, n):
        self.sum += n
        self.seen.append(n)
        return helper(self.sum)


TOTALS = Totals()


def helper(n):
    helper.calls = getattr(helper, "calls", 0) + 1
    LIST[0].append(n)
    return n + 1


def counting():
    turns = [0]

    def turn():
        turns[0] += 1
        return turns[0]

    return turn


turn = counting()


def work(n, found=[]):
    global N
    N += n
    DICT["a"].append(n); DICT["b"] = n; SET.add(n); DEQUE.append(n); COUNTER["a"] += 1; DEFAULT["x"].append(n)
    BYTES.extend(b"b"); ARRAY[0] += n; found.append(n)
    return [helper(n), TOTALS.add(n), turn(), float(RNG.random()), DICE.random(), N, list(found), Totals().add(n),
            [helper(k) for k in range(2)]]


def state():
    return repr((LIST, DICT, SET, DEQUE, COUNTER, DEFAULT, BYTES, ARRAY, N, TOTALS.sum, TOTALS.seen,
                 getattr(helper, "calls", 0), turn.__closure__[0].cell_contents, work.__defaults__,
                 RNG.bit_generator.state, DICE.getstate()))
"""


def test_a_shadow_computes_the_same_and_changes_nothing(tmp_path: Path) -> None:
    module = module_of(tmp_path, STATEFUL)
    before = module.state()
    results = [shadow_of(module.work)(3) for _ in range(2)]
    assert module.state() == before
    assert results[0] == results[1] == module.work(3)
    assert module.state() != before  # or this test could not fail
    assert results[0] != module.work(3)


def test_a_shadow_begins_with_the_state_of_the_moment(tmp_path: Path) -> None:
    module = module_of(tmp_path, STATEFUL)
    for n in range(3):
        assert shadow_of(module.work)(n) == module.work(n)


@pytest.mark.parametrize(
    "statement",
    [
        "print('loud')",
        "import pdb; pdb.set_trace()",
        "breakpoint()",
        "from pdb import set_trace; set_trace()",
        "input('loud')",
        "PDB.set_trace()",
        "STOP()",
        "pprint('loud')",
        "import IPython.core.debugger as d; d.set_trace()",
    ],
)
def test_a_shadow_neither_speaks_nor_stops(
    statement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "import pdb as PDB\nfrom pdb import set_trace as STOP\nfrom pprint import pprint\n"
    module = module_of(
        tmp_path,
        (
            f"{head}\ndef inner():\n    {statement}\n\ndef outer():\n    inner()\n    "
            f"{statement}\n    return 7\n"
        ),
    )
    assert shadow_of(module.outer)() == 7
    assert capsys.readouterr() == ("", "")
    assert "pdb" in SPEAKERS


def test_all_of_the_users_own_code_is_copied_and_nothing_else(tmp_path: Path) -> None:
    """What runs is seen by a tracer, as debuggers see it: no line of the user's files, wherever
    it is called from.
    """
    module_of(tmp_path, "def far(n):\n    return n + 1\n", "helpers")
    text = (
        "import functools, helpers\nfrom helpers import far\nimport numpy as np\n"
        "def shout(f):\n    @functools.wraps(f)\n    def wrapped(*a):\n        return f(*a)\n    "
        "return wrapped\n"
        "class Tile:\n    scale = 2\n    def __init__(self, n):\n        self.n = n\n"
        "    @property\n    def twice(self):\n        return self.n * self.scale\n"
        "    @staticmethod\n    def make(n):\n        return Tile(n)\n"
        "    @classmethod\n    def also(cls, n):\n        return cls(n)\n"
        "class Sub(Tile):\n    def __init__(self, n):\n        super().__init__(n + 1)\n"
        "TILE = Sub(1)\nTABLE = {'f': lambda n: n + 1}\n"
        "@functools.cache\ndef cached(n):\n    return n\n"
        "@shout\ndef near(n):\n    return (lambda k: k + 1)(n)\n"
        "def late(n):\n    import helpers as h\n    return h.far(n)\n"
        "half = functools.partial(near, 1)\n"
        "def work():\n"
        "    assert isinstance(TILE, Tile) and type(Tile.make(1)).__name__ == 'Tile'\n"
        "    return [helpers.far(1), far(2), near(3), late(4), cached(5), half(), TABLE['f'](6), "
        "TILE.twice, Tile.make(7).n,\n"
        "            Sub.also(8).twice, [far(n) for n in range(2)], float(np.sum([far(1)]))]\n"
    )
    module = module_of(tmp_path, text)
    want = module.work()
    shadow = shadow_of(module.work)
    files: Counter[str] = Counter()

    def follow(frame: Any, event: str, _: Any) -> Any:
        files[frame.f_code.co_filename] += 1
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        result = shadow()
    finally:
        sys.settrace(before)
    assert result == want
    assert not [file for file in files if file.startswith(str(tmp_path))]
    assert {f"<trial of {tmp_path / name}>" for name in ("mine.py", "helpers.py")} <= {*files}


ODD = """
import enum, typing
from dataclasses import dataclass, field


class Colour(enum.Enum):
    RED = [1]

    def doubled(self):
        return 2 * self.value


class Point(typing.NamedTuple):
    x: int

    def moved(self):
        return Point(self.x + 1)


@dataclass(frozen=True)
class Frozen:
    seen: list = field(default_factory=list)

    def add(self, n):
        self.seen.append(n)
        return len(self.seen)


class Slots:
    __slots__ = ("n",)

    def __init__(self):
        self.n = [0]

    def up(self):
        self.n.append(1)
        return len(self.n)


class Strict:
    def __init_subclass__(cls):
        raise RuntimeError("no subclasses")

    def one(self):
        return 1


FROZEN, SLOTS, STRICT, POINT = Frozen(), Slots(), Strict(), Point(1)
RING = [1]
RING.append(RING)


def numbers(n):
    yield from range(n)


def work(n=3):
    total = 0

    def add(k):
        nonlocal total
        total += k

    for k in numbers(n):
        add(k)
    return [total, Colour.RED.doubled(), Colour.RED is Colour([1]), POINT.moved().x, FROZEN.add(1), SLOTS.up(), STRICT.one(),
            len(RING), {k: v for k, v in zip("ab", numbers(2))}]
"""


def test_odd_classes_generators_and_rings_are_no_trouble(tmp_path: Path) -> None:
    module = module_of(tmp_path, ODD)
    results = [shadow_of(module.work)() for _ in range(3)]
    assert results == [module.work()] * 3
    assert vars(module.Colour.RED)["_value_"] == [1]
    # FROZEN and SLOTS have changed, by the function itself
    assert shadow_of(module.work)() != results[0]


def test_lines_and_names_are_those_of_the_file(tmp_path: Path) -> None:
    text = (
        "import sys\n\ndef where():\n    return sys._getframe()\n\ndef wrong():\n    raise "
        "ValueError('no')\n"
    )
    module = module_of(tmp_path, text)
    shadow = shadow_of(module.where)
    file = str(tmp_path / "mine.py")
    assert site_of(shadow()) == (file, 4)
    assert file_of(shadow.__code__) == file
    assert (shadow.__name__, shadow.__module__) == ("where", "mine")
    wrong = shadow_of(module.wrong)
    with pytest.raises(ValueError, match="no") as caught:
        wrong()
    note_line(caught.value, wrong)
    assert caught.value.__notes__ == [at_line(file, 7)]
    assert linecache.getline(wrong.__code__.co_filename, 7) == "    raise ValueError('no')\n"
    (tmp_path / "mine.py").write_text(text.replace("'no'", "'another'"), encoding="utf-8")
    linecache.checkcache(file)
    assert "another" in linecache.getline(shadow_of(module.wrong).__code__.co_filename, 7)


def test_what_is_no_function_of_python_s_stays() -> None:
    assert shadow_of(len) is len
    ten = partial(max, 10)
    assert shadow_of(ten)(3) == 10


class Called:
    """An algorithm may be an object."""

    def __init__(self) -> None:
        self.turns: list[int] = []

    def __call__(self, n: int) -> int:
        self.turns.append(n)
        return sum(self.turns)


def test_an_object_that_is_called_has_a_shadow() -> None:
    called = Called()
    assert shadow_of(called)(3) == 3
    assert called.turns == []
    assert called(3) == 3


def test_wrapped_functions_have_one() -> None:
    events: list[int] = []

    def noted(function: Any) -> Any:
        @wraps(function)
        def inner(*arguments: Any) -> Any:
            events.append(1)
            return function(*arguments)

        return inner

    @noted
    @cache
    def work(n: int) -> int:
        events.append(n)
        return n

    assert shadow_of(work)(5) == 5
    assert events == []


PRINTING = '''
import numpy as np

MADE = []


def tile(Q_i, K_j):
    print("helper", type(Q_i).__name__)
    return np.exp(Q_i @ K_j.T)


def attention(hbm, sram, Q, K, V, blocks):
    """Softmax without a maximum."""
    MADE.append(blocks)
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), Q.dtype, "output").divide(blocks.B_r)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        O_i = sram.full((Q_i.shape[0], V.shape[1]), 0.0)
        l_i = sram.full((Q_i.shape[0], 1), 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            print("tile", i, j, type(Q_i).__name__)
            P_ij = sram.on_chip(tile(Q_i, K_j))
            l_i = sram.on_chip(l_i + P_ij.sum(1, keepdims=True), over=l_i)
            O_i = sram.on_chip(O_i + P_ij @ V_j, over=O_i)
        sram.store(O[i], sram.on_chip(O_i / l_i, over=O_i))
    return O
'''


@pytest.mark.parametrize(
    "how", [{}, {"sizing": "fit"}, {"sizing": "paper"}, {"blocks": (4, 5)}], ids=str
)
def test_a_print_is_met_once_for_each_tile_of_the_run(
    how: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = module_of(tmp_path, PRINTING)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 12, 4))
    run = flashsim.forward(module.attention, Q, K, V, M=100, **how)
    blocks = run.blocks
    tiles = [(i, j) for i in range(blocks.T_r) for j in range(blocks.T_c)]
    expected = []
    for i, j in tiles:
        expected += [f"tile {i} {j} ndarray", "helper ndarray"]
    assert capsys.readouterr().out.splitlines() == expected
    assert [made for made in module.MADE if made == blocks] == [blocks] == module.MADE


def test_tuning_meets_no_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = module_of(tmp_path, PRINTING)
    tuned = flashsim.tune.tune(N=12, d=4, M=100, algorithms=[module.attention])
    assert "mine.py:attention" in tuned.by_loops
    assert capsys.readouterr().out == ""
    assert module.MADE == []


def test_what_goes_wrong_in_a_trial_is_said_with_the_file_s_line(tmp_path: Path) -> None:
    text = PRINTING.replace('print("tile", i, j, type(Q_i).__name__)', "assert Q_i.max() < 1000")
    module = module_of(tmp_path, text)
    X = np.ones((8, 4))
    with pytest.raises(Exception) as caught:  # noqa: PT011, of whatever kind
        flashsim.forward(module.attention, X, X, X, M=100)
    notes = caught.value.__notes__
    line = 1 + text.splitlines().index("            assert Q_i.max() < 1000")
    assert at_line(str(tmp_path / "mine.py"), line) in notes
    assert any("tried on shapes" in note and "blocks=(B_r, B_c)" in note for note in notes)
    flashsim.forward(module.attention, X, X, X, M=100, blocks=(2, 2))
