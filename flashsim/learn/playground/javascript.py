"""Closed forms in JavaScript: the Python of `flashsim.theory` translated, expression by expression,
from its syntax tree.

Numbers become BigInts, so that results are exact at any size. What a page does not ask for is
folded away: no dropout, no arrays of masks, options at their defaults. What cannot be translated
raises TypeError, with its name: nothing is left out in silence.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Mapping
from itertools import count
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

from flashsim.theory.form import Form, means
from flashsim.theory.formulas import SYMBOLS

SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARED = {ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">", ast.Eq: "===", ast.NotEq: "!=="}
HELPERS = {"max": "largest", "min": "least", "isqrt": "isqrt", "masking_tiles": "maskingTiles"}
"""Functions of Python that the page's script has, by its names for them."""
PROBLEM = {
    "dropout": False,
    "tree": False,
    "R": 0,
    "dense": (),
    "group": 1,
    "learns": None,
    "sink": 0,
}
"""What is known of every problem of a page."""


class Script:
    """The functions translated so far, each once, with those that they call."""

    def __init__(self) -> None:
        self.functions: dict[Callable[..., Any], tuple[str, str]] = {}
        self._number = count()

    def of(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> str:
        """Return the name, in JavaScript, of a function of Python. Raises TypeError for what
        cannot be translated.
        """
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
    """Return a formula as JavaScript that looks its symbols up in the object `names`. TypeError for
    what is not a sum or product.
    """
    return _js(text, {name: Symbol(f"{names}.{name}") for name in SYMBOLS})


def _js(text: str, values: Mapping[str, Any]) -> str:
    return js(eval(text, {"__builtins__": {}}, values))


def _written(form: str) -> Callable[[Any, Any], Symbol]:
    return lambda one, other: Symbol(form.format(js(one), js(other)))


class Symbol:
    """A number that is not known yet: what is made of it is JavaScript."""

    def __init__(self, text: str) -> None:
        self.text = text

    __add__ = _written("({0} + {1})")
    __radd__ = _written("({1} + {0})")
    __sub__ = _written("({0} - {1})")
    __rsub__ = _written("({1} - {0})")
    __mul__ = _written("({0} * {1})")
    __rmul__ = _written("({1} * {0})")
    __floordiv__ = _written("floorDiv({0}, {1})")
    __rfloordiv__ = _written("floorDiv({1}, {0})")
    __mod__ = _written("floorMod({0}, {1})")
    __rmod__ = _written("floorMod({1}, {0})")

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self.text} is true is not known")


def js(value: Any) -> str:
    """Return a number, or a word, as JavaScript. Raises TypeError for what is neither."""
    if isinstance(value, Symbol):
        return value.text
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is neither a number nor a word")
    return f'"{value}"' if isinstance(value, str) else f"{value}n"


def traced(form: Form) -> dict[str, tuple[str, str]]:
    """Return (reads, writes) of each array in symbols of `s`, where the tiles have `s.tiles.A`
    rows, `s.tiles.C` columns.
    """
    s: Any = SimpleNamespace(**{name: Symbol(f"s.{name}") for name in (*SYMBOLS, "B_r", "B_c")})
    tiles = _traced_tiles("s.tiles")
    if form.traffic is None:
        values = {**vars(s), **means(s, form.passes(s, s, tiles))}
        return {
            name: (_js(reads, values), _js(writes, values))
            for name, (reads, writes) in form.formulas.items()
        }
    s.options = {option.name: option.default for option in form.options}
    s.masks = s.generator = lambda *_: {}
    s.array = lambda name, role, reads=0, writes=0, kept=0: {name: (js(reads), js(writes))}
    traffic: Any = form.traffic(s, s, tiles)
    return {**traffic}


def _traced_tiles(text: str) -> Any:
    def cut(B_r: Symbol | int, B_c: Symbol | int) -> Any:
        return _traced_tiles(f"{text}.cut({js(B_r)}, {js(B_c)})")

    return SimpleNamespace(rows=Symbol(f"{text}.A"), columns=Symbol(f"{text}.C"), cut=cut)


class _Function:
    """One function, while it is translated: what is known is worked out in Python, and the rest
    are symbols.
    """

    def __init__(
        self, script: Script, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> None:
        self._script = script
        self._function = function
        self._options = options
        (tree,) = ast.parse(dedent(inspect.getsource(function))).body
        assert isinstance(tree, ast.FunctionDef)
        self._tree = tree
        self._parameters = [argument.arg for argument in (*tree.args.args, *tree.args.kwonlyargs)]
        self._locals: dict[str, Any] = {name: Symbol(name) for name in self._parameters}

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
                return "".join(
                    self._let(ast.unparse(n), value) for n, value in zip(names, values, strict=True)
                )
        raise self._refused(node)

    def _let(self, name: str, node: ast.expr) -> str:
        value = self._value(node)
        self._locals[name] = Symbol(name) if isinstance(value, Symbol) else value
        return f" const {name} = {value.text};" if isinstance(value, Symbol) else ""

    def _js(self, node: ast.expr) -> str:
        value = self._value(node)
        try:
            return js(value)
        except TypeError:
            raise self._refused(node) from None

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._locals[name] if name in self._locals else self._global(name)
            case ast.Attribute(value, name):
                of = self._value(value)
                if not isinstance(of, Symbol):
                    return getattr(of, name)
                return (
                    PROBLEM[name]
                    if of.text == "p" and name in PROBLEM
                    else Symbol(f"{of.text}.{name}")
                )
            case ast.Subscript(ast.Attribute(_, "options"), ast.Constant(str() as name)):
                return self._options[name]
            case ast.UnaryOp(ast.USub(), value):
                return Symbol(f"-({self._js(value)})")
            case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
                return SIGNS[type(sign)](self._value(left), self._value(right))
            case ast.BoolOp(ast.Or(), [first, second]):
                return self._value(first) or self._value(second)
            case ast.BoolOp(ast.And(), [first, second]):
                return self._value(first) and self._value(second)
            case ast.IfExp(test, then, otherwise):
                decided = self._value(test)
                if not isinstance(decided, Symbol):
                    return self._value(then if decided else otherwise)
                return Symbol(f"({decided.text} ? {self._js(then)} : {self._js(otherwise)})")
            case ast.Compare(left, [sign], [right]) if type(sign) in COMPARED:
                one = self._value(left)
                other = self._value(right)
                if (
                    isinstance(sign, ast.Eq)
                    and not isinstance(one, Symbol)
                    and not isinstance(other, Symbol)
                ):
                    return one == other
                return Symbol(f"({js(one)} {COMPARED[type(sign)]} {js(other)})")
            case ast.Lambda(arguments, body):
                names = [argument.arg for argument in arguments.args]
                self._locals |= {name: Symbol(name) for name in names}
                return Symbol(f"({', '.join(names)}) => {self._js(body)}")
            case ast.Dict(keys, values) if all(isinstance(key, ast.Constant) for key in keys):
                pairs = (
                    f"{self._value(k)}: {self._js(v)}"
                    for k, v in zip(keys, values, strict=True)
                    if k
                )
                return Symbol(f"({{{', '.join(pairs)}}})")
            case ast.Tuple(values):
                return Symbol(f"[{', '.join(map(self._js, values))}]")
            case ast.Call(called, values, []):
                return self._called(node, self._value(called), values)
        raise self._refused(node)

    def _global(self, name: str) -> Any:
        for place in (inspect.getmodule(self._function), builtins):
            if hasattr(place, name):
                return getattr(place, name)
        raise TypeError(f"{self._function.__qualname__}: {name} is not known where it is defined")

    def _called(self, node: ast.Call, function: Any, values: list[ast.expr]) -> Any:
        if isinstance(function, Symbol):  # a method of the problem, or of its tiles
            if function.text in ("p.mask_tile", "p.gradient_tile"):
                return 0
            name = function.text
        elif function is int and not isinstance(known := self._value(values[0]), Symbol):
            return int(known)
        elif getattr(function, "__name__", "") in HELPERS:
            name = HELPERS[function.__name__]
        elif inspect.isfunction(inspect.unwrap(function)):
            name = self._script.of(function, self._options)
        else:
            raise self._refused(node)
        return Symbol(f"{name}({', '.join(map(self._js, values))})")

    def _refused(self, node: ast.AST) -> TypeError:
        where = f"{self._function.__module__}.{self._function.__qualname__}"
        return TypeError(
            f"{where}: {ast.unparse(node)} is not translated to JavaScript, as the playground "
            "needs it; expected "
            "assignments of names and one return, of sums, products, comparisons, calls and lambdas"
        )
