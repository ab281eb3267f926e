"""The pages' scripts read as other code does: one statement a line, without the comma operator,
in lines of 120 characters.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "flashsim").rglob("*.js"))
TOKEN = re.compile(
    r"""(?P<space>\s+|//.*|/\*[\s\S]*?\*/)
      | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      | (?P<word>[\w$]+)
      | (?P<sign>=>|\.\.\.|[\s\S])""",
    re.VERBOSE,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/[a-z]*")
# after which a bracket is not a call or block
BEFORE_VALUE = {"return", "const", "let", "of", "in", "await", "typeof", "new"}

CONTROL = {"for", "if", "while", "switch"}


def tokens(text: str) -> Iterator[tuple[str, int]]:
    """Yield what the script is made of, with its line; a string, a regex, or a template's text
    as one '""'.
    """
    index = 0
    before = ""
    templates: list[int] = []  # of each template that is open, how many of its braces are
    while index < len(text):
        if text[index] == "`" or (templates and templates[-1] == 0 and text[index] == "}"):
            if text[index] == "`":
                templates.append(0)
            end = re.compile(r"(?:\\.|[^`\\$]|\$(?!\{))*(`|\$\{)").match(text, index + 1)
            assert end is not None
            yield ('""' if text[index] == "`" else "+"), text.count("\n", 0, index) + 1
            if end[1] == "`":
                templates.pop()
            else:
                yield "+", text.count("\n", 0, index) + 1
            before = '""' if end[1] == "`" else "+"
            index = end.end()
            continue
        is_value = before and (
            before[-1] in ")]}\"'" or (re.match(r"[\w$]", before) and before not in BEFORE_VALUE)
        )
        regex = (
            None
            if is_value or text[index : index + 2] in ("//", "/*")
            else REGEX.match(text, index)
        )
        result = regex or TOKEN.match(text, index)
        assert result is not None
        if templates and result[0] in "{}":
            templates[-1] += 1 if result[0] == "{" else -1
        if regex or result["space"] is None:
            before = '""' if regex or result["string"] else result[0]
            yield before, text.count("\n", 0, index) + 1
        index = result.end()


def faults(text: str) -> list[str]:
    """Return what is against the rules, as "line: what"."""
    result = [
        f"{n}: {len(line)} characters"
        for n, line in enumerate(text.splitlines(), 1)
        if len(line) > 120
    ]
    all_ = [("", 0), *tokens(text), ("", 0)]
    # brackets, and whether a comma in one is an operator or parts declarations
    opened: list[tuple[str, bool]] = []
    # of each bracket that is open, by where it is: its commas' lines
    commas: dict[int, list[int]] = {}
    places: list[int] = []
    for n in range(1, len(all_) - 1):
        (before, _), (token, line), (after, next_line) = all_[n - 1 : n + 2]
        named = re.match(r"[\w$]", before) is not None and before not in BEFORE_VALUE
        if token in "([{":
            block = token == "{" and (named or before in ("", ")", "=>", "{", "}", ";"))
            group = token == "(" and (before in CONTROL or not (named or before in (")", "]")))
            opened.append((before if token == "(" else token, block or group))
            places.append(n)
        elif token in ")]}":
            _, odd = opened.pop()
            place = places.pop()
            # else what it takes
            if token != ")" or after not in ("=>", "{") or all_[place - 1][0] in CONTROL:
                result += [f"{index}: comma" for index in commas.get(place, ()) if odd]
        elif token == "," and not opened:
            result.append(f"{line}: comma")
        elif token == ",":
            commas.setdefault(places[-1], []).append(line)
        elif token == ";" and next_line == line and (not opened or opened[-1][0] != "for"):
            result.append(f"{line}: two statements")
    return result


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_one_statement_a_line(file: Path) -> None:
    assert faults(file.read_text(encoding="utf-8")) == []


CHAINS = {
    "a chain of assignments": "this.t = 1, this.u = 2;",
    "in a block": "function f(x) {\n  a(x), b(x);\n}",
    "in an if": "if (a) x = 1, y = 2;",
    "in an arrow's block": "list.map((x) => {\n  a(x), b(x);\n});",
    "in an arrow's brackets": "const f = (x) => (a(x), b(x));",
    "in brackets that are returned": "function f() {\n  return (a(), b());\n}",
    "in a for": "for (let i = 0, n = 9; i < n; i++) f(i);",
    "in a condition": "if (a(), b) {\n  c();\n}",
    "names alone": "let a, b;",
    "two declarations": "const a = 1, b = [2, 3];",
    "behind a template": "f(`${a ? `${b}` : {c, d}}`), g();",
    "within a template": "f(`${(a, b)}`);",
    "behind a regex": 'x = y.replace(/[",/{]/g, "") , z();',
    "a method's": "class A {\n  b() {\n    c(), d();\n  }\n}",
    "two statements": "a(); b();",
    "two in a block": "if (a) { b(); c(); }",
    "a long line": f"const a = {'1' * 120};",
}


@pytest.mark.parametrize("text", CHAINS.values(), ids=list(CHAINS))
def test_chains_are_found(text: str) -> None:
    assert faults(text)


FINE = {
    "what is taken and listed": "const f = (a, [b, c], { d, e }) => g(a, [b, c], { d, e: [1, 2] });",
    "destructured": "const { a, b } = this;\nlet [c, d] = e;\nfor (const [f, g] of h) i(f, g);",
    "a loop": "for (let i = 0; i < n; i++) {\n  f(i, n);\n}",
    "methods": (
        "class A extends B {\n  c(d, e) {\n    return { d, e };\n  }\n}\nfunction f(g, h) {\n  "
        "k(g, h);\n}"
    ),
    "texts": (
        "f('a, b; c', \"d; e\", `g, h; ${i(j, k)}, l`); // a, b; c\n/* d, e; f */\nx = "
        "/,;/.test(y);"
    ),
    "an async arrow's block": "open(async (a, b) => {\n  await f(a, b);\n});",
    "a division": "const a = (b + c) / d;\nconst e = f[g] / h;",
}


@pytest.mark.parametrize("text", FINE.values(), ids=list(FINE))
def test_what_is_no_chain_passes(text: str) -> None:
    assert faults(text) == []
