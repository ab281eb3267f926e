"""Make the gallery: figures/gallery/, one page for each lesson that plays a recorded run, and an index.

    python scripts/gallery.py [-o FOLDER] [LESSON …]

The lessons are in flashsim/gallery/lessons/, one a file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flashsim.entry import run_script
from flashsim.files import write_whole
from flashsim.gallery import files, pages

FOLDER = Path(__file__).resolve().parents[1] / "figures" / "gallery"


def main() -> None:
    """Write the files, and say which."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help=f"of {', '.join(pages())}. Default: all")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, metavar="FOLDER", help="default: %(default)s")
    options = parser.parse_args()
    for name in options.lessons:
        if name not in pages():
            parser.error(f"LESSON is {name!r}; expected of {', '.join(pages())}")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, content in files(options.lessons):
        write_whole(options.output / name, content)
        print(f"{name:24} {len(content.encode('utf-8')) / 1000:9,.0f} kB", flush=True)


if __name__ == "__main__":
    run_script(main)
