"""The crates that a program is built from, as `cargo metadata` knows them."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata(target):
    """The workspace and all its dependencies on a platform."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"cargo metadata failed:\n{done.stderr}")
    return json.loads(done.stdout)


def is_macro(package):
    """True if it runs in the compiler only."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def linked(graph, names):
    """The crates that the programs of these packages contain, ours included, as {id: ids of dependencies}."""
    packages = {package["id"]: package for package in graph["packages"]}
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    queue = [id for id, package in packages.items() if package["name"] in names]
    found = {}
    while queue:
        at = queue.pop()
        if at in found:
            continue
        found[at] = sorted(
            dependency["pkg"]
            for dependency in nodes[at]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            and not is_macro(packages[dependency["pkg"]])
        )
        queue += found[at]
    return found
