"""Markdown as the checks and the site of the documentation read it: prose, links, anchors."""

import re

LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


def prose(lines):
    """The numbered lines of a document that are not within a fenced block."""
    fence = None
    for number, line in enumerate(lines, 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark.group(1)[0] * 3
        elif mark and line.strip().startswith(fence):
            fence = None
        elif fence is None:
            yield number, line


def links(line):
    """The targets of the links in a line of prose that lead to other files or to headings."""
    targets = LINK.findall(re.sub(r"`[^`]*`", "", line))
    return [target for target in targets if not SCHEME.match(target)]


def with_links(text, change):
    """A document in which `change` has replaced the target of each link that is not within code."""
    lines = text.splitlines(keepends=True)
    outside = {number for number, _ in prose(lines)}
    code_or_link = re.compile(rf"`[^`]*`|{LINK.pattern}")

    def replaced(found):
        target = found.group(1)
        if target is None or SCHEME.match(target):
            return found.group()
        start, end = found.start(1) - found.start(), found.end(1) - found.start()
        return found.group()[:start] + change(target) + found.group()[end:]

    # Links may be wrapped, but no paragraph has a part of a link, or of code.
    out, paragraph = [], []
    for number, line in enumerate([*lines, ""], 1):
        if number in outside and line.strip():
            paragraph.append(line)
            continue
        out += [code_or_link.sub(replaced, "".join(paragraph)), line]
        paragraph = []
    return "".join(out)


def anchors(path):
    """The anchors of a document's headings, as forges make them."""
    found, seen = set(), {}
    for _, line in prose(path.read_text(encoding="utf-8").splitlines()):
        heading = HEADING.match(line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeated = seen.get(slug, 0)
        seen[slug] = repeated + 1
        found.add(f"{slug}-{repeated}" if repeated else slug)
    return found
