"""Closed forms in JavaScript: the Python of `flashsim.theory` translated, expression by expression, from its syntax tree.

Numbers become BigInts, so that results are exact at any size. What a page does not ask for is folded away: no dropout, no arrays
of masks, options at their defaults. What cannot be translated raises TypeError, with its name: nothing is left out in silence.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from itertools import count
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from flashsim.theory.form import Form, means
from flashsim.theory.formulas import SYMBOLS

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
COMPARED = {ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">", ast.Eq: "===", ast.NotEq: "!=="}
HELPERS = {"max": "largest", "min": "least", "isqrt": "isqrt", "masking_tiles": "maskingTiles"}
"""Functions of Python that the page's script has, by its names for them."""
PROBLEM = {"dropout": False, "tree": False, "R": 0, "dense": (), "group": 1, "learns": None}
"""What is known of every problem of a page."""


class Script:
    """The functions translated so far, each once, with those that they call."""

    def __init__(self) -> None:
        self.functions: dict[Callable[..., Any], tuple[str, str]] = {}
        self._number = count()

    def of(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> str:
        """Return the name, in JavaScript, of a function of Python. Raises TypeError for what cannot be translated."""
        function = inspect.unwrap(function)
        if function not in self.functions:
            name = f"{function.__name__.strip('_')}_{next(self._number)}"
            self.functions[function] = name, ""
            self.functions[function] = name, _Function(self, function, options or {}).text(name)
        return self.functions[function][0]

    @property
    def text(self) -> str:
        """All of them."""
        return "\n".join(text for _, text in self.functions.values())


def expression(text: str, names: str) -> str:
    """Return a formula as JavaScript that looks its symbols up in the object `names`. TypeError for what is no sum or product."""
    return _js(text, {name: Symbol(f"{names}.{name}") for name in SYMBOLS})


def _js(text: str, values: Mapping[str, Any]) -> str:
    return js(eval(text, {"__builtins__": {}}, values))


class Symbol:
    """A number that is not known yet: sums and products of it are JavaScript."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Symbol | int) -> Symbol:
        return Symbol(f"({self.text} + {js(other)})")

    def __sub__(self, other: Symbol | int) -> Symbol:
        return Symbol(f"({self.text} - {js(other)})")

    def __mul__(self, other: Symbol | int) -> Symbol:
        return Symbol(f"({self.text} * {js(other)})")

    def __radd__(self, other: int) -> Symbol:
        return Symbol(f"({js(other)} + {self.text})")

    def __rmul__(self, other: int) -> Symbol:
        return Symbol(f"({js(other)} * {self.text})")

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self.text} is true is not known")


def js(number: Symbol | int) -> str:
    """Return a number as JavaScript."""
    return number.text if isinstance(number, Symbol) else f"{number}n"


def traced(form: Form) -> dict[str, tuple[str, str]]:
    """Return (reads, writes) of each array in the object `s` of symbols, where some tiles are computed.

    These are `s.tiles`: their rows are `s.tiles.A` in all, their columns `s.tiles.C`.
    """
    s: Any = SimpleNamespace(**{name: Symbol(f"s.{name}") for name in (*SYMBOLS, "B_r", "B_c")})
    tiles = _traced_tiles("s.tiles")
    if form.traffic is None:
        values = {**vars(s), **means(s, form.passes(s, s, tiles))}
        return {name: (_js(reads, values), _js(writes, values)) for name, (reads, writes) in form.formulas.items()}
    s.options = {option.name: option.default for option in form.options}
    s.masks = s.generator = lambda *_: {}
    s.array = lambda name, role, reads=0, writes=0, kept=0: {name: (js(reads), js(writes))}
    traffic: Any = form.traffic(s, s, tiles)
    return {**traffic}


def _traced_tiles(text: str) -> Any:
    def cut(B_r: Symbol | int, B_c: Symbol | int) -> Any:
        return _traced_tiles(f"{text}.cut({js(B_r)}, {js(B_c)})")

    return SimpleNamespace(rows=Symbol(f"{text}.A"), columns=Symbol(f"{text}.C"), cut=cut)


class _Constant(NamedTuple):
    """A value that is known when the page is made."""

    value: Any


Part = str | _Constant
"""JavaScript, or what is known already."""


class _Function:
    """One function, while it is translated."""

    def __init__(self, script: Script, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._script, self._function, self._options = script, function, options
        (tree,) = ast.parse(dedent(inspect.getsource(function))).body
        assert isinstance(tree, ast.FunctionDef)
        self._tree = tree
        arguments = tree.args
        self._parameters = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
        self._locals: dict[str, Part] = {name: name for name in self._parameters}

    def text(self, name: str) -> str:
        body = "".join(map(self._statement, self._tree.body))
        return f"const {name} = ({', '.join(self._parameters)}) => {{{body}}};"

    def _statement(self, node: ast.stmt) -> str:
        match node:
            case ast.Expr():  # a docstring; a check of arguments, which the page makes itself
                return ""
            case ast.Return(value) if value is not None:
                return f" return {self._js(value)};"
            case ast.Assign([ast.Name(name)], value):
                return self._let(name, value)
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)) if len(names) == len(values):
                return "".join(self._let(ast.unparse(n), value) for n, value in zip(names, values, strict=True))
        raise self._refused(node)

    def _let(self, name: str, value: ast.expr) -> str:
        part = self._part(value)
        self._locals[name] = part if isinstance(part, _Constant) else name
        return "" if isinstance(part, _Constant) else f" const {name} = {part};"

    def _js(self, node: ast.expr) -> str:
        return self._written(self._part(node), node)

    def _written(self, part: Part, node: ast.expr) -> str:
        if isinstance(part, str):
            return part
        if isinstance(part.value, bool) or not isinstance(part.value, int | str):
            raise self._refused(node)
        return f'"{part.value}"' if isinstance(part.value, str) else f"{part.value}n"

    def _part(self, node: ast.expr) -> Part:
        match node:
            case ast.Constant(value):
                return _Constant(value)
            case ast.Name(name):
                known = self._locals.get(name)
                return known if known is not None else _Constant(self._global(name))
            case ast.Attribute(value, name):
                return self._attribute(self._part(value), name)
            case ast.Subscript(ast.Attribute(_, "options"), ast.Constant(str() as name)):
                return _Constant(self._options[name])
            case ast.UnaryOp(ast.USub(), value):
                return f"-({self._js(value)})"
            case ast.BinOp():
                return self._signed(node)
            case ast.BoolOp(ast.Or(), [first, second]) if isinstance(known := self._part(first), _Constant):
                return known if known.value else self._part(second)
            case ast.BoolOp(ast.And(), [first, second]) if isinstance(known := self._part(first), _Constant):
                return self._part(second) if known.value else known
            case ast.IfExp(test, then, otherwise):
                decided = self._part(test)
                if isinstance(decided, _Constant):
                    return self._part(then if decided.value else otherwise)
                return f"({decided} ? {self._js(then)} : {self._js(otherwise)})"
            case ast.Compare(left, [sign], [right]) if type(sign) in COMPARED:
                parts = self._part(left), self._part(right)
                if isinstance(parts[0], _Constant) and isinstance(parts[1], _Constant) and isinstance(sign, ast.Eq):
                    return _Constant(parts[0].value == parts[1].value)
                return f"({self._written(parts[0], left)} {COMPARED[type(sign)]} {self._written(parts[1], right)})"
            case ast.Lambda(arguments, body):
                names = [argument.arg for argument in arguments.args]
                self._locals |= {name: name for name in names}
                return f"({', '.join(names)}) => {self._js(body)}"
            case ast.Dict(keys, values):
                pairs = zip(keys, values, strict=True)
                return f"({{{', '.join(f'{self._key(key)}: {self._js(value)}' for key, value in pairs)}}})"
            case ast.Tuple(values):
                return f"[{', '.join(map(self._js, values))}]"
            case ast.Call(called, values, []):
                return self._called(node, self._part(called), values)
        raise self._refused(node)

    def _global(self, name: str) -> Any:
        for place in (inspect.getmodule(self._function), builtins):
            if hasattr(place, name):
                return getattr(place, name)
        raise TypeError(f"{self._function.__qualname__}: {name} is not known where it is defined")

    def _key(self, key: ast.expr | None) -> str:
        if not isinstance(key, ast.Constant):
            raise TypeError(f"{self._function.__qualname__}: a key that is no constant is not translated")
        return str(key.value)

    def _attribute(self, of: Part, name: str) -> Part:
        if isinstance(of, _Constant):
            return _Constant(getattr(of.value, name))
        return _Constant(PROBLEM[name]) if of == "p" and name in PROBLEM else f"{of}.{name}"

    def _signed(self, node: ast.BinOp) -> Part:
        left, right = self._js(node.left), self._js(node.right)
        if isinstance(node.op, ast.FloorDiv):
            return f"floorDiv({left}, {right})"
        if isinstance(node.op, ast.Mod):
            return f"floorMod({left}, {right})"
        if type(node.op) not in SIGNS:
            raise self._refused(node)
        return f"({left} {SIGNS[type(node.op)]} {right})"

    def _called(self, node: ast.Call, called: Part, values: list[ast.expr]) -> Part:
        if isinstance(called, str):  # a method of the problem, or of its tiles
            if called in ("p.mask_tile", "p.gradient_tile"):
                return _Constant(0)
            return f"{called}({', '.join(map(self._js, values))})"
        function = called.value
        name = getattr(function, "__name__", "")
        if function is int and isinstance(known := self._part(values[0]), _Constant):
            return _Constant(int(known.value))
        if name in HELPERS:
            return f"{HELPERS[name]}({', '.join(map(self._js, values))})"
        if (
            is_dataclass(function)
            or isinstance(function, ModuleType)
            or not inspect.isfunction(inspect.unwrap(function))
        ):
            raise self._refused(node)
        return f"{self._script.of(function, self._options)}({', '.join(map(self._js, values))})"

    def _refused(self, node: ast.AST) -> TypeError:
        return TypeError(f"{self._function.__qualname__}: {ast.unparse(node)} is not translated")
