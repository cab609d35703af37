"""Copies the documents of the repository to where the generator reads them.

    python3 docs/site/stage.py DIR

The documents link each other by their paths in the repository. On the site they have other paths,
and what is not on the site is linked in the repository, at the version that the site describes.
"""

import os
import re
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from markdown_text import with_links  # noqa: E402
from pages import DECISIONS, MENU, OTHERS, place_of  # noqa: E402

REPOSITORY = "https://github.com/throng-push/throng"
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
PICTURES = {".png", ".svg"}
IN_MENU = "```{{toctree}}\n:hidden:\n:caption: {}\n\n{}\n```\n"


def sources():
    """The documents and pictures of the site, as paths from the root of the repository."""
    for path in sorted((ROOT / "docs").rglob("*")):
        source = path.relative_to(ROOT)
        if path.suffix == ".md" or path.suffix in PICTURES:
            if place_of(source):
                yield source
    yield from (Path(other) for other in OTHERS.values() if not other.startswith("docs/"))


def link(source, place, target):
    """A link of a document, as it is on the site."""
    path, _, anchor = target.partition("#")
    anchor = anchor and f"#{anchor}"
    if not path:
        return anchor
    to = Path(os.path.normpath(source.parent / path))
    if to == Path("docs/decisions"):
        there = PurePosixPath(DECISIONS)
    elif to.suffix in {".md", *PICTURES} and (ROOT / to).is_file():
        there = place_of(to)
    else:
        there = None
    if there is None:
        kind = "tree" if (ROOT / to).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/v{VERSION}/{to.as_posix()}{anchor}"
    return os.path.relpath(there, place.parent) + anchor


def menu():
    return "\n".join(IN_MENU.format(title, "\n".join(pages)) for title, pages in MENU.items())


def decisions():
    pages = sorted(path.stem for path in (ROOT / "docs" / "decisions").glob("*.md"))
    listed = "\n".join(pages)
    return (
        "---\norphan: true\n---\n\n# Decisions\n\nWhy the design is as it is: each larger choice, with its measurements.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )


def write(path, data):
    """Leaves a file alone that has the data already, so that the generator need not read it again."""
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def main():
    stage = Path(sys.argv[1])
    staged = {}
    for source in sources():
        place = place_of(source)
        data = (ROOT / source).read_bytes()
        if source.suffix == ".md":
            text = with_links(data.decode(), lambda target: link(source, place, target))
            data = (text + ("\n" + menu() if place.stem == "index" else "")).encode()
        staged[stage / place] = data
    staged[stage / DECISIONS] = decisions().encode()
    for path, data in staged.items():
        write(path, data)
    for path in stage.rglob("*"):
        if path.is_file() and path not in staged:
            path.unlink()


if __name__ == "__main__":
    main()
