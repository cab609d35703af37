"""The pages of the site, in the order of its menu, and where each document of the repository is on it."""

from pathlib import PurePosixPath

# Documents outside docs/, by their place on the site.
OTHERS = {
    "index.md": "README.md",
    "contents.md": "docs/README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "examples.md": "examples/README.md",
    "clients/javascript.md": "clients/javascript/README.md",
    "clients/python.md": "clients/python/README.md",
    "clients/go.md": "clients/go/README.md",
    "packaging.md": "packaging/README.md",
}

# The page that lists all decisions; it is made here, and the menu leaves them out.
DECISIONS = "decisions/index.md"

# `TITLE <PAGE>` where the heading of the page is not what the menu should say.
MENU = {
    "Start": ["Contents <contents>", "guides/first-steps", "examples", "guides/questions", "Other push servers <compare>"],
    "Guides": [
        "guides/access",
        "guides/operate",
        "guides/capacity",
        "guides/deploy",
        "guides/watch",
        "guides/data",
        "guides/channels",
        "guides/state",
        "guides/presence",
        "guides/erase",
        "guides/proxy",
        "guides/tls",
        "guides/limits",
        "guides/callouts",
        "guides/from-pusher",
        "guides/from-reverb",
        "guides/nodes",
        "packaging",
    ],
    "Clients": [
        "JavaScript <clients/javascript>",
        "Python <clients/python>",
        "Go <clients/go>",
        "Flask, FastAPI, Django <guides/python-web>",
    ],
    "Reference": [
        "reference/http",
        "reference/websocket",
        "reference/settings",
        "reference/status",
        "reference/control-socket",
        "reference/formats",
        "reference/frozen-state",
        "lexicon",
    ],
    "Load and figures": [
        "guides/load-test",
        "guides/benchmarks",
        "benchmarks",
        "benchmarks/peers",
        "benchmarks/peers-tls",
        "benchmarks/prices",
    ],
    "The project": ["changelog", "security", "architecture", "guides/engines", "contributing"],
}


def place_of(source):
    """Where a file of the repository is on the site, or None if it is not."""
    for place, other in OTHERS.items():
        if other == str(source):
            return PurePosixPath(place)
    if source.parts[:1] == ("docs",) and source.parts[1:2] != ("site",):
        return PurePosixPath(*source.parts[1:])
    return None
