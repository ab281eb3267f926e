"""What the text of a program's file must satisfy: a listing, whose lines the code names."""

import ast
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

OTHER_LABELS = {  # of files without a listing of their own
    "appendix_b_memory_efficient": r"equation [12]",
    "appendix_b_memory_efficient_backward": r"equation [3-6]",
    "appendix_b_rabe_staats": r"summarise|combine",
    "appendix_b_rabe_staats_backward": r"recompute|differentiate",
    "softmax_rows": r"line [23]",  # of Algorithms 0 and 3
    "split_kv_merge": r"line 22",  # of split_kv
    "mla_paged": r"line \d+",  # of paged and paged_split, one of which it calls
}
VERBS = {"load", "store", "full", "word", "on_chip", "loop", "post", "wait"}
PROBES = {"peek", "traffic", "reads", "writes", "peak", "observers"}


def name_of(module: ModuleType) -> str:
    """Return the name of a file."""
    return module.__name__.rpartition(".")[2]


def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def on_the_memory(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions that take a memory, or a device, which has one."""
    functions = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names = {argument.arg for argument in node.args.args}
            if names & {"sram", "device"}:
                functions.append(node)
    return functions


def listed(module: ModuleType) -> list[int]:
    """Return the numbers of the listing's lines, as they are printed."""
    listing = module.__doc__ or ""
    return [int(number) for number in re.findall(r"^    (\d+) +\S", listing, re.MULTILINE)]


def labelled(module: ModuleType) -> list[int]:
    """Return the numbers of lines that the code names, in the order of the text."""
    return [int(number) for number in re.findall(r"# line (\d+)", inspect.getsource(module))]


def is_verb(node: ast.AST) -> bool:
    """Return whether a node calls the memory: `sram.load(…)`, `on_chip(…)`, `device.wait(…)`."""
    if not isinstance(node, ast.Call):
        return False
    owner, _, verb = ast.unparse(node.func).rpartition(".")
    return verb in VERBS and owner in ("", "sram", "device", "device.sram")


def label_of(module: ModuleType) -> str:
    """Return a pattern of the labels of a file's lines."""
    return OTHER_LABELS.get(name_of(module), r"line \d+")


def of_algorithms(module: ModuleType) -> bool:
    """Return whether a file is of attention's algorithms, written as the paper prints them."""
    return module.__name__.startswith("flashsim.algorithms.")


def check_lines_are_the_listing_s(module: ModuleType) -> None:
    """The code's labels and the listing's lines are the same; an algorithm's follow each other."""
    if name_of(module) in OTHER_LABELS:
        return
    lines = listed(module)
    labels = labelled(module)
    assert lines, "no listing"
    assert lines == list(range(1, lines[-1] + 1))
    assert sorted(set(labels)) == lines
    if of_algorithms(module):
        assert labels == sorted(labels)


def check_each_use_of_the_memory_is_labelled(module: ModuleType) -> None:
    """A label stands on the first line of the statement."""
    label = re.compile(rf"# ({label_of(module)})\b")
    text = inspect.getsource(module).splitlines()
    for function in on_the_memory(tree_of(module)):
        for statement in statements(function):
            if any(is_verb(node) for node in without_inner_statements(statement)):
                line = text[statement.lineno - 1]
                assert label.search(line), f"line {statement.lineno}: {line}"


def check_each_statement_is_labelled(module: ModuleType) -> None:
    """Programs that are not attention label whatever they do, behind a docstring."""
    text = inspect.getsource(module).splitlines()
    for function in on_the_memory(tree_of(module)):
        assert ast.get_docstring(function)
        for statement in [*statements(function)][1:]:
            line = text[statement.lineno - 1]
            if line.strip() != "on_chip = sram.on_chip":
                assert "# line" in line, f"line {statement.lineno}: {line}"


def statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield the statements of a function, inner ones too."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and node is not function:
            yield node


def without_inner_statements(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement that are of none within it."""
    for node in ast.iter_child_nodes(statement):
        if not isinstance(node, ast.stmt):
            yield from ast.walk(node)


def check_it_does_not_look_into_the_memory(module: ModuleType) -> None:
    """A program loads what it computes with: what was counted, and what HBM holds, is not its."""
    for function in on_the_memory(tree_of(module)):
        assert probes(function) == []


def check_it_has_no_branches(module: ModuleType) -> None:
    """An algorithm's masks and dropout are parts that it is given: no flag decides on a line."""
    for function in on_the_memory(tree_of(module)):
        assert branches(function) == []


def probes(function: ast.FunctionDef) -> list[str]:
    """Return what looks at or into the memory, and what prints."""
    result = []
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr in PROBES:
            result.append(ast.unparse(node))
        if isinstance(node, ast.Name) and node.id == "print":
            result.append("print")
    return result


def branches(function: ast.FunctionDef) -> list[str]:
    """Return the branches of a function."""
    kinds = (ast.If, ast.IfExp, ast.Match, ast.Try)
    return [ast.unparse(node) for node in ast.walk(function) if isinstance(node, kinds)]
