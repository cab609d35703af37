"""The hooks for React, in Chromium, in strict mode, where React runs every effect twice."""

from conftest import HERE
from support.bundles import bundle, run_node
from support.pages import served


def test_components_show_what_is_published_to_their_channel(serve, chromium, tmp_path):
    # Strict mode does nothing in a build for production.
    options = ["--jsx=automatic", '--define:process.env.NODE_ENV="development"']
    bundle("tests/react/page.jsx", tmp_path / "page.js", *options)
    html = '<!doctype html><div id="root"></div><script type="module" src="page.js"></script>'
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "throng.toml").write_text(
        '[[channels]]\nmatch = "marked"\nread-markers = true\n'
        '[[channels]]\nmatch = "desk"\nmembers = "user"\n'
    )
    server = serve("--presence-events")
    with served(tmp_path) as url:
        run_node(HERE / "node" / "react.mjs", chromium, url, server.url)
