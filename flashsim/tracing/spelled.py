"""What each line of a source computes, as a tree that the page fills in with one element's
numbers.
"""

import ast
from collections.abc import Iterator, Sequence
from textwrap import dedent
from typing import Any

from flashsim.tracing.steps import quantity

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@"}
Tree = list[Any]
"""[sign, left, right]; ["name", name, quantity], of X_i[c] with its variable c; ["number", x];
["T", X]; ["call", function, [arguments]].
"""


def spelled(
    source: Sequence[tuple[str, int, Sequence[str]]],
) -> Iterator[tuple[str, int, int, str, Tree]]:
    """Yield (file, first line, last line, name, tree) of each `name = on_chip(…)`; a source that
    is not Python has none.
    """
    for file, first, lines in source:
        try:
            statements = list(ast.walk(ast.parse(dedent("\n".join(lines)))))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in statements:
            if isinstance(node, ast.Assign):
                target = (
                    node.targets[0].value
                    if isinstance(node.targets[0], ast.Subscript)
                    else node.targets[0]
                )
                tree = _on_chip(node.value)
                if tree is not None and isinstance(target, ast.Name):
                    last = node.end_lineno or node.lineno
                    yield file, first + node.lineno - 1, first + last - 1, target.id, tree


def _on_chip(value: ast.expr) -> Tree | None:
    if not isinstance(value, ast.Call) or not value.args or _called(value) != "on_chip":
        return None
    try:
        return _tree(value.args[0])
    except (TypeError, RecursionError):
        return None


def _tree(node: ast.expr) -> Tree:
    match node:
        case ast.Name():
            return ["name", node.id, quantity(node.id)]
        case ast.Subscript(value=ast.Name() as of, slice=ast.Name(id=variable)):
            return [*_tree(of), variable]
        case ast.Constant(value=int() | float() as number):
            return ["number", float(number)]
        case ast.BinOp() if type(node.op) in SIGNS:
            return [SIGNS[type(node.op)], _tree(node.left), _tree(node.right)]
        case ast.Attribute(attr="T"):
            return ["T", _tree(node.value)]
        case ast.Call(keywords=[]) if _called(node):
            return ["call", _called(node), [_tree(argument) for argument in node.args]]
    raise TypeError(type(node).__name__)


def _called(node: ast.Call) -> str:
    function = node.func
    return (
        function.id
        if isinstance(function, ast.Name)
        else function.attr
        if isinstance(function, ast.Attribute)
        else ""
    )
