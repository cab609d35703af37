"""Pages of the JavaScript client's package, made by a bundler and run in Chromium."""

from support.commands import run
from support.server import ROOT

CLIENT = ROOT / "clients" / "javascript"


def bundle(source, target, *options):
    """Bundles a source file of the client's directory."""
    run(
        "node_modules/.bin/esbuild",
        source,
        *("--bundle", "--log-level=warning", "--format=esm", *options, f"--outfile={target}"),
        directory=CLIENT,
    )


def run_node(script, *arguments):
    """Runs a script of tests/e2e/node, in the client's directory."""
    run("node", script, *arguments, directory=CLIENT)
