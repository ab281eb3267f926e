"""The site: `sphinx-build -W --keep-going -c docs . build/site`, from the repository's root; or
`sphinx-build docs out`.

README.md is its first page, so pages link to each other, to files and to figures as they do in the
repository.

To add a page:

1. `docs/x.md`, whose title is a question. `pytest tests/house/test_docs.py -k x` runs its Python
   sessions, and compares what commands in `console` blocks (`$ flashsim …`) print. It checks that
   the options of other commands exist, and that links lead somewhere.
2. Its question in README's table, and its place in `SECTIONS`, without which the build fails. A
   page of `docs/reference/` shows the docstring of each public name.

Sphinx builds it, with MyST for Markdown and furo as the theme: it builds strictly, needs no
network, and lets a small hook read docstrings as they are.
"""

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

import flashsim

sys.path[:0] = [str(Path(__file__).parent / "_site"), str(Path(__file__).parent.parent / "scripts")]

project = "flashsim"
author = "the flashsim authors"
project_copyright = author
version = release = flashsim.__version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "myst_parser",
    "commands",
    "docstrings",
    "lessons",
    "made",
    "pages",
]
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/reference/*.rst",
    "figures/kit_matrix.md",
    "flashsim/data/README.md",
]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures, of other libraries too
suppress_warnings = ["myst.header"]  # README of a folder may begin with a heading of any level
show_warning_types = True
smartquotes_action = "qe"  # not dashes: --causal is an option

SECTIONS = {
    "Tutorial": ["docs/run", "docs/watch", "docs/lessons", "docs/exercises"],
    "How to": [
        "docs/code",
        "docs/use",
        "docs/conventions",
        "docs/sweeps",
        "docs/own",
        "docs/kernels",
        "docs/profiling",
        "docs/debug",
    ],
    "Reference": ["docs/reference/index"],
    "Explanation": [
        *(
            "docs/words",
            "docs/theory",
            "docs/prove",
            "docs/calculators",
            "docs/paper",
            "docs/beyond",
            "docs/devices",
            "docs/serving",
            "docs/real-data",
            "docs/gpu",
            "docs/gpu-tried",
            "docs/speed",
            "docs/checked",
        )
    ],
    "Questions": ["docs/questions"],
    "Figures": ["docs/figures", "figures/kit_matrix"],
    "The project": ["CHANGELOG", "CONTRIBUTING", "flashsim/data/README"],
}
"""The pages in the order of the sidebar. A page that is in none fails the build."""

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("Array", "DTypeLike", "Observer", "OnHead", "Size")}
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
add_module_names = False

myst_heading_anchors = 3
myst_links_external_new_tab = False
highlight_language = "none"

html_theme = "furo"
html_title = "flashsim"
html_static_path = ["_site/site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """Read the repository, not docs/ alone, where `sphinx-build docs out` names that as the
    source.
    """
    here = Path(__file__).parent
    if app.srcdir == here:
        app.srcdir = type(app.srcdir)(here.parent)
    app.add_lexer("mermaid", TextLexer)  # GitHub draws it; here it is text
