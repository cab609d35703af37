"""The hooks for React, in Chromium, in strict mode, where React runs every effect twice."""

import subprocess

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.pages import served
from support.server import ROOT, clean_environment

CLIENT = ROOT / "clients" / "javascript"


def run(*command):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=CLIENT,
        env=clean_environment({"NO_PROXY": "*"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS * 5,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_components_show_what_is_published_to_their_channel(serve, chromium, tmp_path):
    options = ["--bundle", "--jsx=automatic", "--log-level=warning", "--format=esm"]
    # Strict mode does nothing in a build for production.
    options += ['--define:process.env.NODE_ENV="development"', f"--outfile={tmp_path}/page.js"]
    run("node_modules/.bin/esbuild", "tests/react/page.jsx", *options)
    html = '<!doctype html><div id="root"></div><script type="module" src="page.js"></script>'
    (tmp_path / "index.html").write_text(html)
    server = serve()
    with served(tmp_path) as url:
        run("node", HERE / "node" / "react.mjs", chromium, url, server.url)
