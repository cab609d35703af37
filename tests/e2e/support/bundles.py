"""Pages of the JavaScript client's package, made by a bundler and run in Chromium."""

import subprocess

from support import TIMEOUT_SECONDS
from support.server import ROOT, clean_environment

CLIENT = ROOT / "clients" / "javascript"


def run(*command):
    """Runs a command in the client's directory."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=CLIENT,
        env=clean_environment({"NO_PROXY": "*"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS * 8,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def bundle(source, target, *options):
    """Bundles a source file of the client's directory."""
    run(
        "node_modules/.bin/esbuild",
        source,
        *("--bundle", "--log-level=warning", "--format=esm", *options, f"--outfile={target}"),
    )


def run_node(script, *arguments):
    """Runs a script of tests/e2e/node."""
    run("node", script, *arguments)
