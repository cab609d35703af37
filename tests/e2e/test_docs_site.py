"""The documentation as a site: what docs/site/build makes of it, and how the server serves that."""

import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.commands import run
from support.server import BINARY, ROOT, clean_environment

# Attributes from which a page loads something.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset"}
# Links of `link` that only say how pages belong together.
ABOUT = {"next", "prev", "search", "index", "canonical"}

# One of each kind: text with a picture, a page of blocks and tables, one of wide tables, charts.
LOOKED_AT = ["index.html", "guides/watch.html", "reference/settings.html", "benchmarks/peers.html"]


class Page(HTMLParser):
    """What a page links, loads and has within itself."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.ids, self.inline = [], [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        if "id" in has:
            self.ids.add(has["id"])
        if tag == "a" and has.get("href"):
            self.links.append(has["href"])
        if tag in LOADED and has.get(LOADED[tag]) and has.get("rel") not in ABOUT:
            self.loaded.append(has[LOADED[tag]])
        is_script = tag == "script" and "src" not in has
        if is_script or tag == "style" or "style" in has or any(name.startswith("on") for name in has):
            self.inline.append(f"{tag} {has}")


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The directory of the site."""
    directory = tmp_path_factory.mktemp("site") / "html"
    run(ROOT / "docs" / "site" / "build", directory, timeout=TIMEOUT_SECONDS * 12)
    return directory


@pytest.fixture(scope="module")
def pages(html):
    return {path: Page(path) for path in html.rglob("*.html")}


def test_the_site_has_every_document(html):
    for path in (ROOT / "docs").rglob("*.md"):
        page = path.relative_to(ROOT / "docs").with_suffix(".html")
        page = Path("contents.html") if page == Path("README.html") else page
        assert (html / page).is_file(), page


def test_every_link_leads_somewhere(html, pages):
    dead = []
    for path, page in pages.items():
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_there = to.is_file() and to.is_relative_to(html)
            # `#` alone is the top of the page.
            if is_there and parts.fragment and to in pages:
                is_there = unquote(parts.fragment) in pages[to].ids
            if not is_there:
                dead.append(f"{path.relative_to(html)}: {target}")
    assert dead == []


def test_pages_need_nothing_from_elsewhere_and_have_no_code_within(html, pages):
    for path, page in pages.items():
        foreign = [target for target in page.loaded if urlsplit(target).netloc]
        assert (foreign, page.inline) == ([], []), path.relative_to(html)
    for path in html.rglob("*.css"):
        assert "url(http" not in path.read_text() and "@import" not in path.read_text(), path


def test_every_file_is_served_under_the_policy(serve, html):
    server = serve("--docs", html)
    assert f"{server.url}/docs/" in server.log()
    answer = server.http.get("/docs")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/docs/")
    assert server.http.get("/docs/").content == (html / "index.html").read_bytes()
    for path in sorted(html.rglob("*")):
        if path.is_file():
            answer = server.http.get(f"/docs/{path.relative_to(html)}")
            assert (answer.status_code, answer.content) == (200, path.read_bytes()), path
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert answer.headers["Content-Type"] != "application/octet-stream", path
    etag = server.http.get("/docs/").headers["ETag"]
    assert server.http.get("/docs/", headers={"If-None-Match": etag}).status_code == 304
    for path in ("nowhere.html", "guides", "guides/", "..%2fthrong", "_static", ".buildinfo"):
        assert server.http.get(f"/docs/{path}").status_code == 404, path


def test_without_the_setting_there_is_no_documentation(server):
    for path in ("/docs", "/docs/", "/docs/index.html"):
        answer = server.http.get(path)
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_directory_that_is_no_site_is_named(tmp_path, command):
    done = subprocess.run(
        [BINARY, command, "--listen", "127.0.0.1:0", "--docs", tmp_path],
        env=clean_environment({}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 78
    assert f"docs: {tmp_path} has no index.html" in done.stderr


@pytest.mark.parametrize("scenario", ["search", "words", "copy", "menu", *LOOKED_AT])
def test_in_a_browser(serve, chromium, html, scenario):
    server = serve("--docs", html)
    url = f"{server.url}/docs/"
    run("node", HERE / "node" / "docs.mjs", chromium, url, scenario, timeout=TIMEOUT_SECONDS * 12)
