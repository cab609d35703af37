"""Dependencies among the modules of a crate, for scripts/tidy.

Reads `use` declarations, paths that start with `crate::`, `super::` or `self::`, and paths that start
with a child module. Comments, strings, test modules and the paths of `pub(in path)` do not count. A
`pub use` of a descendant is a re-export and no dependency.
"""

import re
from collections import defaultdict

TEST_MODULE = re.compile(r"^(\s*)#\[cfg\((?:all\()?test\b")
PATH = re.compile(r"\b(?:crate|super|self)(?:::(?:[A-Za-z_]\w*|\{))+")
NOT_CODE = re.compile(
    r"""r(?P<hashes>#+)".*?"(?P=hashes)|r?"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)'|//[^\n]*""", re.S
)
VISIBILITY = re.compile(r"\bpub\(in [^)]*\)")
REEXPORT = re.compile(r"\bpub(?:\([^)]*\))? use ([^;]*);", re.S)


def code_of(text):
    """The text without comments, strings and test modules."""
    text = NOT_CODE.sub("", text)
    lines, kept, index = text.split("\n"), [], 0
    while index < len(lines):
        if TEST_MODULE.match(lines[index]):
            index = end_of_item(lines, index + 1)
        else:
            kept.append(lines[index])
        index += 1
    return "\n".join(kept)


def before_tests(lines):
    """The lines before the first test module."""
    tests = (number for number, line in enumerate(lines) if TEST_MODULE.match(line))
    return lines[: next(tests, len(lines))]


def end_of_item(lines, index):
    """The last line of the item that starts at `index`: that of its closing brace or semicolon."""
    depth = 0
    while index < len(lines):
        depth += lines[index].count("{") - lines[index].count("}")
        if depth <= 0 and re.search(r"[};]\s*$", lines[index]):
            return index
        index += 1
    return index


def module_of(path):
    """The module path of a source file, as a tuple; `()` for the crate's root."""
    parts = list(path.with_suffix("").parts)
    if parts[-1] in ("lib", "main", "mod"):
        parts.pop()
    return tuple(parts)


def expand(tree):
    """The paths of a `use` tree: `a::{b, c::{d}}` becomes `a::b` and `a::c::d`."""
    tree = re.sub(r"\s+", " ", tree).strip()
    if "{" not in tree:
        return [re.sub(r" as \w+$", "", tree)]
    prefix, rest = tree.split("{", 1)
    inner, depth, part, paths = rest[: rest.rindex("}")], 0, "", []
    for letter in inner + ",":
        if letter == "," and depth == 0:
            if part.strip():
                paths += [prefix.strip() + path for path in expand(part)]
            part = ""
            continue
        depth += {"{": 1, "}": -1}.get(letter, 0)
        part += letter
    return paths


def resolve(path, module, modules):
    """The module of this crate that a path names an item of; None for other crates."""
    parts = path.replace(" ", "").split("::")
    at = list(module)
    if parts[0] == "crate":
        at, parts = [], parts[1:]
    elif parts[0] == "self":
        parts = parts[1:]
    elif parts[0] == "super":
        while parts and parts[0] == "super":
            at, parts = at[:-1], parts[1:]
    elif tuple(at + parts[:1]) not in modules:
        return None
    while parts and tuple(at + parts[:1]) in modules:
        at, parts = at + parts[:1], parts[1:]
    return tuple(at)


def dependencies(sources):
    """Which module uses which, from a map of module to text."""
    modules = set(sources)
    uses = defaultdict(set)
    for module, text in sources.items():
        code = VISIBILITY.sub("pub", code_of(text))
        reexports = {path for tree in REEXPORT.findall(code) for path in expand(tree)}
        trees = re.findall(r"\buse ([^;]*);", code)
        paths = [path for tree in trees for path in expand(tree)]
        body = re.sub(r"\buse [^;]*;", "", code)
        paths += [path.rstrip(":{") for path in PATH.findall(body) if "{" not in path]
        # `child::item` in the body of a parent.
        children = {other[-1] for other in modules if other[:-1] == module and other}
        for name in children:
            paths += [f"self::{name}"] if re.search(rf"(?<!:)\b{name}::", body) else []
        for path in paths:
            to = resolve(path, module, modules)
            is_reexport = path in reexports and to is not None and to[: len(module)] == module
            if to is not None and to != module and not is_reexport:
                uses[module].add(to)
    return uses


def circles(uses):
    """The strongly connected components of more than one module, sorted."""
    order, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        for to in sorted(uses.get(node, ())):
            if to not in order:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in on_stack:
                low[node] = min(low[node], order[to])
        if low[node] == order[node]:
            group = []
            while True:
                member = stack.pop()
                on_stack.discard(member)
                group.append(member)
                if member == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(uses):
        if node not in order:
            visit(node)
    return sorted(found)
