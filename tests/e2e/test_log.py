"""Requests in the log: the outcome of each, without secrets."""

import re

from support.raw import RawWebSocket
from support.server import eventually

SECRET = "s3cret"


def logged(server, pattern):
    """Waits for a line of the log."""
    eventually(lambda: re.search(pattern, server.log(), re.MULTILINE), pattern)


def test_requests_are_logged_at_debug(serve, channel):
    server = serve("--log", "debug")
    path = f"/channels/{channel}"
    secret = {"Authorization": f"Bearer {SECRET}", "Origin": f"https://{SECRET}.example"}
    with RawWebSocket(server, f"{path}?user={SECRET}"):
        server.publish(channel, f"the body is {SECRET}")
        server.http.get(f"{path}/history", params={"limit": "1"})
        server.http.get("/nowhere", params={"token": SECRET})
        server.http.get("/nowhere", headers=secret)
        server.http.get(path, params={"since": f"!{SECRET}"})
        server.http.get(path, headers=secret)
    peer = r"peer=127\.0\.0\.1:\d+"
    logged(server, rf"GET {path}\?… 101 websocket {peer}$")
    logged(server, rf"POST {path} 201  {peer} us=\d+$")
    logged(server, rf"GET {path}/history\?… 200  {peer} us=\d+$")
    logged(server, rf"GET /nowhere\?… 404 not_found {peer} us=\d+$")
    logged(server, rf"GET /nowhere 403 origin_refused {peer} us=\d+$")
    logged(server, rf"GET {path}\?… 400 bad_id {peer}$")
    logged(server, rf"GET {path} 403 origin_refused {peer}$")
    assert SECRET not in server.log()


def test_a_subscription_at_the_admin_listener_is_logged_with_its_peer(serve, channel):
    server = serve("--log", "debug", "--admin-listen", "127.0.0.1:0")
    with server.admin() as admin:
        assert admin.get(f"/channels/{channel}").status_code == 404
    logged(server, rf"GET /channels/{channel} 404 not_found peer=127\.0\.0\.1:\d+$")


def test_requests_are_not_logged_by_default(serve, channel):
    server = serve()
    server.publish(channel, "x")
    server.http.get("/nowhere")
    server.stop()
    assert "/nowhere" not in server.log() and channel not in server.log()
