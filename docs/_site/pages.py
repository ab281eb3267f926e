"""The pages that are in the repository, on the site: its sidebar, and links to files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from pygments.lexers import PythonConsoleLexer
from sphinx import addnodes
from sphinx.errors import SphinxError
from sphinx.transforms import SphinxTransform


def add(app: Any, docname: str, source: list[str]) -> None:
    """Add the sidebar's sections to the first page."""
    if docname == app.config.root_doc:
        source[0] += "".join(
            f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n"
            + "\n".join(f"/{page}" for page in pages)
            + "\n```\n"
            for title, pages in app.config.SECTIONS.items()
        )


class FileLinks(SphinxTransform):
    """Lead links to figures to the figure, and links to other files to a page that shows the
    file.
    """

    default_priority = 1  # before downloads are collected

    def apply(self, **kwargs: Any) -> None:
        """Replace the links of a page."""
        root = Path(self.env.srcdir)
        for link in list(self.document.findall(addnodes.download_reference)):
            _, path = self.env.relfn2path(link["reftarget"], self.env.docname)
            file = Path(path).resolve().relative_to(root).as_posix()
            if not file.startswith("figures/"):
                self.env.metadata[self.env.docname].setdefault("files", set()).add(file)
                file = f"{shown_at(file)}.html"
            up = "../" * self.env.docname.count("/")
            new = nodes.reference("", "", *link.children, refuri=up + file, internal=True)
            for child in new.findall(nodes.inline):
                child["classes"] = [
                    c for c in child["classes"] if c not in ("xref", "download", "myst")
                ]
            link.replace_self(new)


def shown_at(file: str) -> str:
    """Return the page that shows a file; its folder is not hidden, as some hosts leave such out."""
    return f"source/{file.removeprefix('.')}"


def shown(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file that is linked to."""
    files = {file for data in app.env.metadata.values() for file in data.get("files", ())}
    for file in sorted(files):
        text = (Path(app.srcdir) / file).read_text(encoding="utf-8")
        language = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".v": "coq"}.get(
            Path(file).suffix, "none"
        )
        listing = app.builder.highlighter.highlight_block(text, language, linenos="inline")
        up = "../" * shown_at(file).count("/")
        body = (
            f'<h1>{Path(file).name}</h1><p><a href="{up}README.html">flashsim</a> / '
            f"{file}</p>{listing}"
        )
        yield (
            shown_at(file),
            {"title": file, "body": body, "parents": [], "sourcename": ""},
            "page.html",
        )


def finish(app: Any, error: Exception | None) -> None:
    """Copy the figures, as they are, make README the site's first page, and try every link."""
    if error is None and app.builder.name == "html":
        out = Path(app.outdir)
        others = shutil.ignore_patterns("*.md", "*.svg")
        shutil.copytree(
            Path(app.srcdir) / "figures", out / "figures", dirs_exist_ok=True, ignore=others
        )
        shutil.copyfile(out / f"{app.config.root_doc}.html", out / "index.html")
        broken = list(broken_links(out))
        if broken:
            raise SphinxError("\n".join(broken))


def broken_links(out: Path) -> Iterator[str]:
    """Yield the links of a site that lead to no file: those in raw HTML too, which Sphinx does
    not look at.
    """
    for page in sorted(out.rglob("*.html")):
        for link in sorted(
            set(
                re.findall(
                    r'(?:href|src|srcset)="([^"#?:]+)[#?"]', page.read_text(encoding="utf-8")
                )
            )
        ):
            if not (page.parent / unquote(link)).exists():
                yield f"{page.relative_to(out)}: there is no {link}"


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.add_config_value("SECTIONS", {}, "env", dict)
    app.add_lexer("pdb", PythonConsoleLexer)
    app.connect("source-read", add)
    app.add_transform(FileLinks)
    app.connect("html-collect-pages", shown)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
