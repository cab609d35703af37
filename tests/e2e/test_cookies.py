"""A token in a cookie: pages of listed origins may use it, and foreign pages may not.

A browser sends the cookie with what a foreign page requests, so the server must see by the page's
origin that it does not count. In a real Chromium, over every way that a page has.
"""

import http.server
import json
import subprocess
import threading
import time

import httpx
import jwt
import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.server import clean_environment

SECRET = "a secret of thirty-two bytes or more"
GRANTS = {"subscribe": ["*"], "publish": ["*"], "history": ["*"]}
SETTINGS = f"""
token-cookie = "session"
allowed-origins = ["http://{{listed}}", "*"]

[[token-keys]]
secret = "{SECRET}"
"""


def token(user="ann"):
    claims = {"sub": user, "iat": int(time.time()), "exp": int(time.time()) + 600}
    return jwt.encode({**claims, "throng": GRANTS}, SECRET, algorithm="HS256")


class Blank(http.server.BaseHTTPRequestHandler):
    """Answers every request with an empty page."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def pages():
    """The ports of two web servers with a page each."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_port for server in servers]
    for server in servers:
        server.shutdown()


@pytest.fixture
def protected(serve, pages, tmp_path):
    """A server that takes tokens from a cookie and lists the first of the pages."""
    settings = SETTINGS.format(listed=f"127.0.0.1:{pages[0]}")
    (tmp_path / "throng.toml").write_text(settings)
    server = serve()
    server.http.headers["Authorization"] = f"Bearer {token()}"
    return server


def visit(chromium, server, page, channel, same_site, *sent):
    """What a page can do with the cookie, which the browser sends with these queries."""
    arguments = [chromium, page, server.url, channel, token(), same_site, *sent]
    done = subprocess.run(
        ["node", HERE / "node" / "cookies.mjs", *arguments],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 4,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def kept(server, channel):
    return [message["data"] for message in server.history(channel)["messages"]]


def test_a_page_of_a_listed_origin_uses_the_cookie(protected, chromium, pages, channel):
    protected.publish(channel, "hello")
    found = visit(chromium, protected, f"http://127.0.0.1:{pages[0]}/", channel, "Lax")
    outcomes = found["outcomes"]
    assert outcomes["websocket"] == "hello", found
    assert outcomes["events"] and outcomes["get"] and outcomes["post"], found
    assert {"hello", "over a WebSocket", "by fetch", "by a form"} == set(kept(protected, channel))


# Another port is another origin of the same site, so that the browser sends every cookie.
@pytest.mark.parametrize("same_site", ["Lax", "Strict"])
def test_a_foreign_page_cannot_use_the_cookie(protected, chromium, pages, channel, same_site):
    protected.publish(channel, "secret")
    # The browser sends the cookie: without it the status would be 401, and a WebSocket would be
    # opened to be closed with 4003.
    sent = ["?history=1&_=events", "?_=form"]
    page = f"http://127.0.0.1:{pages[1]}/"
    found = visit(chromium, protected, page, channel, same_site, *sent)
    assert set(found["outcomes"].values()) == {None}, found
    assert kept(protected, channel) == ["secret"]
    assert set(sent) <= set(found["sent"]), found
    assert found["closeCode"] == 1006, found
    assert set(found["statuses"].values()) == {403}, found


@pytest.mark.parametrize("same_site", ["Lax", "None"])
def test_a_page_without_an_origin_cannot_use_the_cookie(protected, chromium, channel, same_site):
    """Its origin is `null`, as that of every sandboxed page."""
    protected.publish(channel, "secret")
    page = "data:text/html,<!doctype html><title>a page</title>"
    found = visit(chromium, protected, page, channel, same_site)
    assert set(found["outcomes"].values()) == {None}, found
    assert kept(protected, channel) == ["secret"]


def test_the_rules_of_cookies_without_a_browser(protected, pages, channel):
    protected.publish(channel, "hello")
    cookie = {"Cookie": f"session={token()}"}
    listed, foreign = (f"http://127.0.0.1:{port}" for port in pages)

    def status(method, path, **headers):
        with httpx.Client(
            base_url=protected.url, trust_env=False, timeout=TIMEOUT_SECONDS
        ) as client:
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            response = client.request(method, path, headers={**cookie, **headers}, content=b"")
            return response.status_code, response.headers

    target = f"/channels/{channel}"
    for path in (f"{target}/history", f"{target}?history=1&wait=0"):
        assert status("GET", path)[0] == 200
        assert status("GET", path, Sec_Fetch_Site="none")[0] == 200
        assert status("GET", path, Sec_Fetch_Site="same-origin")[0] == 200
        for site in ("same-site", "cross-site"):
            assert status("GET", path, Sec_Fetch_Site=site)[0] == 403
            code, headers = status("GET", path, Sec_Fetch_Site=site, Origin=listed)
            assert code == 200
            assert headers["Access-Control-Allow-Credentials"] == "true"
            assert headers["Access-Control-Allow-Origin"] == listed
        code, headers = status("GET", path, Origin=foreign)
        assert code == 403 and "Access-Control-Allow-Credentials" not in headers
    assert status("POST", target)[0] == 403
    assert status("POST", target, Sec_Fetch_Site="same-origin")[0] == 403
    assert status("POST", target, Origin=foreign)[0] == 403
    assert status("POST", target, Origin="null")[0] == 403
    assert status("POST", target, Origin=listed)[0] == 201
    other = {"Authorization": f"Bearer {token('bo')}"}
    assert status("GET", f"{target}/history", **other)[0] == 400
