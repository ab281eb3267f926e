"""The page of the command line: every command with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from flashsim.cli import COMMANDS, parsers


class Commands(Directive):
    """`.. commands::` becomes a section for each command: what it does, how it is called, its
    options, examples.
    """

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        found = parsers()
        return [_section(name, found[name]) for name in COMMANDS]


def _section(name: str, parser: argparse.ArgumentParser) -> nodes.section:
    section = nodes.section(ids=[f"flashsim-{name}"], names=[f"flashsim {name}"])
    usage = (
        parser.format_usage()
        .removeprefix("usage: ")
        .rstrip()
        .replace(f"\n{' ' * len('usage: ')}", "\n")
    )
    examples = (parser.epilog or "").rstrip()
    section += [
        nodes.title("", "", nodes.literal("", f"flashsim {name}")),
        nodes.paragraph("", COMMANDS[name].SUMMARY),
    ]
    section += nodes.literal_block(usage, usage)
    for group in parser._action_groups:
        rows = list(_rows(parser, group))
        if rows:
            said = f"{group.title}. {group.description}" if group.description else f"{group.title}"
            section += [
                nodes.rubric("", said[0].upper() + said[1:]),
                nodes.definition_list("", *rows),
            ]
    section += nodes.literal_block(examples, examples)
    return section


def _rows(parser: argparse.ArgumentParser, group: Any) -> Iterator[nodes.definition_list_item]:
    """Yield what each option of a group is called, and what it does, but for --help and those
    that are only read.
    """
    formatter = parser._get_formatter()
    for action in group._group_actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        called = nodes.term("", "", nodes.literal("", formatter._format_action_invocation(action)))
        does = nodes.paragraph("", formatter._expand_help(action) if action.help else "")
        yield nodes.definition_list_item("", called, nodes.definition("", does))


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
