"""The page of the command line: every command with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from flashsim.cli import COMMANDS, parser_of
from flashsim.cli.parser import Parser, invocation


class Commands(Directive):
    """`.. commands::` becomes a section for each command: what it does, how it is called, its
    options, examples.
    """

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [_section(name, parser_of(name)) for name in COMMANDS]


def _section(name: str, parser: Parser) -> nodes.section:
    section = nodes.section(ids=[f"flashsim-{name}"], names=[f"flashsim {name}"])
    usage = (
        parser.format_usage()
        .removeprefix("usage: ")
        .rstrip()
        .replace(f"\n{' ' * len('usage: ')}", "\n")
    )
    examples = parser.examples_text().rstrip()
    section += [
        nodes.title("", "", nodes.literal("", f"flashsim {name}")),
        nodes.paragraph("", parser.summary),
    ]
    section += nodes.literal_block(usage, usage)
    for heading, options in parser.sections.items():
        rows = list(_rows(options))
        if rows:
            section += [
                nodes.rubric("", heading[0].upper() + heading[1:]),
                nodes.definition_list("", *rows),
            ]
    section += nodes.literal_block(examples, examples)
    return section


def _rows(options: list[argparse.Action]) -> Iterator[nodes.definition_list_item]:
    """Yield how each option is called, and what it does, but for those that are only read."""
    for option in options:
        if option.help is argparse.SUPPRESS:
            continue
        term = nodes.term("", "", nodes.literal("", invocation(option)))
        does = nodes.paragraph("", option.help or "")
        yield nodes.definition_list_item("", term, nodes.definition("", does))


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
