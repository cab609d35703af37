"""What is done to the pages that the generator has written.

* Scripts and styles move to files: the server's Content-Security-Policy allows none within a page. Each
  text gets a file of its own, named after its hash, and each `style` attribute a class.
* What the theme leaves out and screen readers need is added.
"""

import hashlib
import os
import re
from pathlib import Path

# What generator and theme write; in the text of a page, `<` is written as `&lt;`.
BLOCK = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
TAG_WITH_STYLE = re.compile(r'<\w[^<>]*?\sstyle="[^"]*"[^<>]*>')
STYLE = re.compile(r'\sstyle="([^"]*)"')
CLASS = re.compile(r'\bclass="')
EMPTY_HEAD = re.compile(r"<thead>\s*<tr[^>]*>(?:\s*<th[^>]*>(?:<p></p>)?</th>)+\s*</tr>\s*</thead>")
STYLES = "_static/styles-of-tags.css"
FOR_SCREEN_READERS = [
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    ('<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
]


def name_of(text):
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Pages:
    def __init__(self, directory):
        self.directory = Path(directory)
        self.classes = {}

    def rewrite(self, path):
        root = os.path.relpath(self.directory, path.parent)
        text = EMPTY_HEAD.sub("", path.read_text(encoding="utf-8"))
        for old, new in FOR_SCREEN_READERS:
            text = text.replace(old, new)
        text = BLOCK.sub(lambda found: self.block(root, *found.groups()), text)
        text = TAG_WITH_STYLE.sub(self.tag, text)
        link = f'<link rel="stylesheet" href="{root}/{STYLES}">'
        path.write_text(text.replace("</head>", f"{link}</head>", 1), encoding="utf-8")

    def block(self, root, kind, text):
        suffix = "js" if kind == "script" else "css"
        place = f"_static/{kind}-{name_of(text)}.{suffix}"
        (self.directory / place).write_text(text, encoding="utf-8")
        if kind == "script":
            return f'<script src="{root}/{place}"></script>'
        return f'<link rel="stylesheet" href="{root}/{place}">'

    def tag(self, found):
        tag = found.group()
        style = STYLE.search(tag).group(1)
        name = f"s-{name_of(style)}"
        self.classes[name] = style
        tag = STYLE.sub("", tag)
        if CLASS.search(tag):
            return CLASS.sub(f'class="{name} ', tag, count=1)
        return re.sub(r"^<(\w+)", rf'<\1 class="{name}"', tag)

    def write_styles(self):
        rules = [f".{name} {{ {style} }}\n" for name, style in sorted(self.classes.items())]
        (self.directory / STYLES).write_text("".join(rules), encoding="utf-8")


def finish(app, failure):
    if failure is None:
        pages = Pages(app.outdir)
        for path in sorted(pages.directory.rglob("*.html")):
            pages.rewrite(path)
        pages.write_styles()
