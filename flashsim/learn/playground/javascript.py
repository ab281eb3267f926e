"""Closed forms in JavaScript. They are translated, expression by expression, from the syntax trees
of the Python functions of `flashsim.theory`.

A translation by hand would be simpler, but would be a second copy of every formula; this one
follows each change of the theory, or refuses it. It knows only what closed forms need: assignments
of names, one return, sums, products, comparisons, calls and lambdas.

Numbers become BigInts, so that results are exact at any size. The page has no dropout, no arrays of
masks, and options at their defaults: what depends on these is computed in Python. Anything else
raises TypeError with its name.
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
COMPARISONS = {
    ast.LtE: "<=",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.Gt: ">",
    ast.Eq: "===",
    ast.NotEq: "!==",
}
HELPERS = {"max": "largest", "min": "least", "isqrt": "isqrt", "masking_tiles": "maskingTiles"}
"""Functions of Python, and their names in the page's script."""
PROBLEM = {
    "dropout": False,
    "tree": False,
    "R": 0,
    "dense": (),
    "group": 1,
    "learns": None,
    "sink": 0,
}
"""Fields that every problem of the page has."""


class Script:
    """Translated functions, each once, with those that they call."""

    def __init__(self) -> None:
        self.functions: dict[Callable[..., Any], tuple[str, str]] = {}
        self._number = count()

    def of(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> str:
        """Translate a function of Python, and return its name in JavaScript. Raises TypeError if
        it cannot be translated.
        """
        function = inspect.unwrap(function)
        if function not in self.functions:
            name = f"{function.__name__.strip('_')}_{next(self._number)}"
            self.functions[function] = name, ""
            self.functions[function] = name, _Function(self, function, options or {}).text(name)
        return self.functions[function][0]

    @property
    def text(self) -> str:
        """The functions as JavaScript."""
        return "\n".join(text for _, text in self.functions.values())


def expression(text: str, names: str) -> str:
    """Return a formula as JavaScript; its symbols are attributes of the object `names`. Raises
    TypeError if it is not made of sums and products.
    """
    return _js(text, {name: Symbol(f"{names}.{name}") for name in SYMBOLS})


def _js(text: str, values: Mapping[str, Any]) -> str:
    return js(eval(text, {"__builtins__": {}}, values))


class Symbol:
    """A number that only the page knows. Arithmetic with it makes JavaScript."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Any) -> Symbol:
        return Symbol(f"({self.text} + {js(other)})")

    def __radd__(self, other: Any) -> Symbol:
        return Symbol(f"({js(other)} + {self.text})")

    def __sub__(self, other: Any) -> Symbol:
        return Symbol(f"({self.text} - {js(other)})")

    def __rsub__(self, other: Any) -> Symbol:
        return Symbol(f"({js(other)} - {self.text})")

    def __mul__(self, other: Any) -> Symbol:
        return Symbol(f"({self.text} * {js(other)})")

    def __rmul__(self, other: Any) -> Symbol:
        return Symbol(f"({js(other)} * {self.text})")

    def __floordiv__(self, other: Any) -> Symbol:
        return Symbol(f"floorDiv({self.text}, {js(other)})")

    def __rfloordiv__(self, other: Any) -> Symbol:
        return Symbol(f"floorDiv({js(other)}, {self.text})")

    def __mod__(self, other: Any) -> Symbol:
        return Symbol(f"floorMod({self.text}, {js(other)})")

    def __rmod__(self, other: Any) -> Symbol:
        return Symbol(f"floorMod({js(other)}, {self.text})")

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self.text} is true is not known")


def js(value: Any) -> str:
    """Return a number or a word as JavaScript. Raises TypeError for anything else."""
    if isinstance(value, Symbol):
        return value.text
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is neither a number nor a word")
    return f'"{value}"' if isinstance(value, str) else f"{value}n"


def formulas_of(form: Form) -> dict[str, tuple[str, str]]:
    """Return (reads, writes) of each array as JavaScript. Symbols are attributes of `s`; the tiles
    that are visited have `s.tiles.A` rows and `s.tiles.C` columns.
    """
    s: Any = SimpleNamespace(**{name: Symbol(f"s.{name}") for name in (*SYMBOLS, "B_r", "B_c")})
    tiles = _tiles("s.tiles")
    if form.traffic is None:
        values = {**vars(s), **means(s, form.passes(s, s, tiles))}
        formulas = {}
        for name, (reads, writes) in form.formulas.items():
            formulas[name] = (_js(reads, values), _js(writes, values))
        return formulas
    s.options = {option.name: option.default for option in form.options}
    s.masks = s.generator = lambda *_: {}
    s.array = lambda name, role, reads=0, writes=0, kept=0: {name: (js(reads), js(writes))}
    traffic: Any = form.traffic(s, s, tiles)
    return {**traffic}


def _tiles(text: str) -> Any:
    def cut(B_r: Symbol | int, B_c: Symbol | int) -> Any:
        return _tiles(f"{text}.cut({js(B_r)}, {js(B_c)})")

    return SimpleNamespace(rows=Symbol(f"{text}.A"), columns=Symbol(f"{text}.C"), cut=cut)


class _Function:
    """A function that is being translated. What does not depend on symbols is computed in
    Python.
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
            case ast.Expr():  # a docstring, or a check of arguments, which the page has itself
                return ""
            case ast.Return(value) if value is not None:
                return f" return {self._js(value)};"
            case ast.Assign([ast.Name(name)], value):
                return self._let(name, value)
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)) if len(names) == len(values):
                pairs = zip(names, values, strict=True)
                return "".join(self._let(ast.unparse(target), value) for target, value in pairs)
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
                owner = self._value(value)
                if not isinstance(owner, Symbol):
                    return getattr(owner, name)
                if owner.text == "p" and name in PROBLEM:
                    return PROBLEM[name]
                return Symbol(f"{owner.text}.{name}")
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
                condition = self._value(test)
                if not isinstance(condition, Symbol):
                    return self._value(then if condition else otherwise)
                return Symbol(f"({condition.text} ? {self._js(then)} : {self._js(otherwise)})")
            case ast.Compare(left, [sign], [right]) if type(sign) in COMPARISONS:
                a = self._value(left)
                b = self._value(right)
                has_symbols = isinstance(a, Symbol) or isinstance(b, Symbol)
                if isinstance(sign, ast.Eq) and not has_symbols:
                    return a == b
                return Symbol(f"({js(a)} {COMPARISONS[type(sign)]} {js(b)})")
            case ast.Lambda(arguments, body):
                names = [argument.arg for argument in arguments.args]
                self._locals |= {name: Symbol(name) for name in names}
                return Symbol(f"({', '.join(names)}) => {self._js(body)}")
            case ast.Dict(keys, values) if all(isinstance(key, ast.Constant) for key in keys):
                entries = []
                for key, value in zip(keys, values, strict=True):
                    if key:
                        entries.append(f"{self._value(key)}: {self._js(value)}")
                return Symbol(f"({{{', '.join(entries)}}})")
            case ast.Tuple(values):
                return Symbol(f"[{', '.join(map(self._js, values))}]")
            case ast.Call(function, values, []):
                return self._call(node, self._value(function), values)
        raise self._refused(node)

    def _global(self, name: str) -> Any:
        for place in (inspect.getmodule(self._function), builtins):
            if hasattr(place, name):
                return getattr(place, name)
        raise TypeError(f"{self._function.__qualname__}: {name} is not known where it is defined")

    def _call(self, node: ast.Call, function: Any, values: list[ast.expr]) -> Any:
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
