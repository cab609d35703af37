"""Requests in the log: the outcome of each, without secrets."""

import json
import os
import re
import socket
import ssl

import pytest

from support import TIMEOUT_SECONDS
from support.raw import RawWebSocket
from support.server import eventually, run_throng
from support.tls_server import start_tls

SECRET = "s3cret"


def logged(server, pattern):
    """Waits for a line of the log."""
    eventually(lambda: re.search(pattern, server.log(), re.MULTILINE), pattern)


def test_requests_are_logged_at_debug(serve, channel):
    server = serve("--log", "debug")
    path = f"/channels/{channel}"
    secret = {"Authorization": f"Bearer {SECRET}", "Origin": "https://other.example"}
    with RawWebSocket(server, f"{path}?user={SECRET}"):
        server.publish(channel, f"the body is {SECRET}")
        named = {"X-Request-Id": "an-id.1"}
        answer = server.http.get(f"{path}/history", params={"limit": "1"}, headers=named)
        assert answer.headers["X-Request-Id"] == "an-id.1"
        server.http.get("/nowhere", params={"token": SECRET})
        server.http.get("/nowhere", headers=secret)
        server.http.get(path, params={"since": f"!{SECRET}"})
        server.http.get(path, headers=secret)
    peer = r"peer=127\.0\.0\.1:\d+"
    logged(server, rf"GET {path}\?… 101 websocket {peer}$")
    logged(server, rf"POST {path} 201  {peer} us=\d+ request=[0-9a-f]{{16}}$")
    logged(server, rf"GET {path}/history\?… 200  {peer} us=\d+ request=an-id.1$")
    logged(server, rf"GET /nowhere\?… 404 not_found {peer} us=\d+ request=[0-9a-f]{{16}}$")
    logged(server, rf"GET /nowhere 403 origin_refused {peer} us=\d+ request=[0-9a-f]{{16}}$")
    logged(server, rf"GET {path}\?… 400 bad_id {peer}$")
    logged(server, rf"GET {path} 403 origin_refused {peer}$")
    assert SECRET not in server.log()


def test_a_subscription_at_the_admin_listener_is_logged_with_its_peer(serve, channel):
    server = serve("--log", "debug", "--admin-listen", "127.0.0.1:0")
    with server.admin() as admin:
        assert admin.get(f"/channels/{channel}").status_code == 404
    logged(server, rf"GET /channels/{channel} 404 not_found peer=127\.0\.0\.1:\d+$")


def refusals(server):
    """The warnings about refused clients: code and sentence."""
    found = re.findall(r"WARN refused: (.*) code=\"(\w+)\" address=127\.0\.0\.1", server.log())
    return sorted((code, sentence) for sentence, code in found)


def test_refused_clients_are_told_once_for_each_cause(tmp_path, serve, channel):
    config = tmp_path / "throng.toml"
    config.write_text(f"[[token-keys]]\nsecret = '{'k' * 43}'\n")
    server = serve("--config", config)
    path = f"/channels/{channel}"
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2VjcmV0c2lnbmF0dXJl"
    told = {}
    for _ in range(3):
        # Each at a worker and at the control plane.
        for method, what in (("GET", path), ("GET", f"{path}/history")):
            for headers in (
                {"Origin": "https://other.example"},
                {"Host": "other.example"},
                {"Authorization": f"Bearer {token}"},
                {},
            ):
                answer = server.http.request(method, what, headers=headers).json()
                told[answer["error"]] = answer["message"]
    assert set(told) == {"origin_refused", "host_refused", "invalid_token", "unauthorized"}
    # The same sentence that clients got, of both planes together.
    eventually(lambda: len(refusals(server)) >= len(told), "the warnings")
    seen = dict(refusals(server))
    assert len(refusals(server)) == len(seen) == len(told), refusals(server)
    for code in ("origin_refused", "host_refused", "invalid_token"):
        assert seen[code] == told[code]
    assert token not in server.log() and token.split(".")[2] not in server.log()


def test_a_refused_page_is_told_whatever_its_transport(serve, channel):
    server = serve()
    handshake = {
        "Origin": "https://other.example",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    assert server.http.get(f"/channels/{channel}", headers=handshake).status_code == 403
    logged(server, r"WARN refused: pages of https://other\.example may not use this server; allow")


def test_a_client_that_does_not_trust_the_certificate_is_told(tmp_path):
    tls = start_tls(tmp_path)
    for _ in range(2):
        with tls.tcp() as plain, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    sentence = "the client does not trust the certificate of this server"
    eventually(lambda: refusals(tls.plain) == [("tls", sentence)], "the warning")
    tls.plain.stop()


def test_requests_are_not_logged_by_default(serve, channel):
    server = serve()
    server.publish(channel, "x")
    server.http.get("/nowhere")
    with RawWebSocket(server, f"/channels/{channel}"):
        pass
    server.stop()
    assert "/nowhere" not in server.log() and channel not in server.log()
    assert "connection ended" not in server.log()


def test_json_has_one_object_a_line(serve, channel):
    server = serve("--log", "debug", "--log-format", "json")
    server.publish(channel, SECRET, idempotency_key=SECRET)
    eventually(lambda: f"POST /channels/{channel}" in server.log(), "the request")
    server.stop()
    lines = [json.loads(line) for line in server.output if line.startswith("{")]
    assert all({"timestamp", "level", "message"} <= set(line) for line in lines)
    (request,) = [line for line in lines if line["message"].startswith(f"POST /channels/{channel} 201")]
    assert request["level"] == "DEBUG" and request["us"] > 0
    assert re.fullmatch(r"127\.0\.0\.1:\d+", request["peer"])
    assert any(line["message"].startswith("SIGTERM: stopping") for line in lines)
    assert SECRET not in server.log()


def test_the_end_of_a_connection_is_logged_on_request(serve, channel):
    server = serve("--log-connections", "--log-format", "json")
    path = f"/channels/{channel}"
    with RawWebSocket(server, f"{path}?user=ann"):
        pass
    logged(server, r'"message":"connection ended"')
    with server.http.stream("GET", path, headers={"Accept": "text/event-stream"}):
        server.wait_for_connections(channel, 1)
        assert server.http.delete(f"{path}/connections").status_code == 200
    server.stop()
    ends = [json.loads(line) for line in server.output if '"message":"connection ended"' in line]
    assert [(end["transport"], end.get("user"), end["reason"]) for end in ends] == [
        ("websocket", "ann", "peer"),
        ("sse", None, "disconnected"),
    ]
    for end in ends:
        assert end["level"] == "INFO" and end["seconds"] >= 0
        assert re.fullmatch(r"127\.0\.0\.1:\d+", end["address"]) and "proxy" not in end


def test_the_start_is_one_line_without_keys(serve):
    server = serve()
    logged(server, rf" INFO started version=\".+\" listen=127\.0\.0\.1:{server.port} public_access=this-machine ")
    assert "admin_access" not in server.log()


def test_the_start_says_what_is_open_to_whom(serve, tmp_path):
    (tmp_path / "throng.toml").write_text(
        f'access = {{ subscribe = "user" }}\n[[token-keys]]\nsecret = "{SECRET * 8}"\n'
        '[[channels]]\nmatch = "news"\nsubscribe = "anyone"\n'
    )
    (tmp_path / "throng.toml").chmod(0o600)
    flags = ["--admin-listen", "127.0.0.1:0", "--clients-publish=false", "--max-message-bytes", "1234"]
    server = serve("--log-format", "json", *flags)
    logged(server, r'^\{.*"message":"started"')
    (line,) = [json.loads(line) for line in server.output if '"message":"started"' in line]
    expected = {
        "level": "INFO",
        "listen": f"{server.host}:{server.port}",
        "public_access": "controlled",
        "admin_access": "this-machine",
        "subscribe": "user",
        "publish": "nobody",
        "history": "granted",
        "access_rules": 1,
        "token_keys": 1,
        "server_keys": 0,
        "callouts": 0,
        "max_message_bytes": 1234,
    }
    assert expected.items() <= line.items()
    with server.admin() as admin:
        assert f"http://{line['admin_listen']}" == str(admin.base_url).rstrip("/")
    assert run_throng("version", directory=tmp_path).stdout.startswith(f"throng {line['version']}\n")
    assert line["max_connections"] > 0
    assert SECRET not in server.log()


def test_a_full_disk_for_the_log_does_not_end_the_server(serve, channel):
    def log_to_a_full_disk():
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

    server = serve("--log", "trace", prepare=log_to_a_full_disk)
    # A worker logs the subscription, and the control plane the message.
    with RawWebSocket(server, f"/channels/{channel}") as websocket:
        server.publish(channel, "delivered")
        assert websocket.read_message() == b"delivered"
    failed = 'throng_stderr_lines_dropped_total{reason="write_failed"}'
    eventually(lambda: server.metrics()[failed] > 0, "lines are counted")


def pipelined_requests(server, count):
    """Sends requests whose lines in the log are long, and waits for their responses."""
    head = f"GET /{'x' * 250} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode()
    with socket.create_connection((server.host, server.port), TIMEOUT_SECONDS) as client:
        client.sendall(head * (count - 1) + head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert received.count(b"HTTP/1.1 404 ") == count


def test_a_log_that_nobody_reads_blocks_nothing_and_says_what_is_missing(serve, channel):
    unread, log = os.pipe()
    try:
        server = serve("--log", "debug", prepare=lambda: os.dup2(log, 2))
    finally:
        os.close(log)
    dropped = 'throng_stderr_lines_dropped_total{reason="unread"}'
    with open(unread, errors="replace") as reader:
        for _ in range(50):
            pipelined_requests(server, 1000)
            if server.metrics()[dropped]:
                break
        else:
            pytest.fail("the queue has no end")
        # A worker logs the subscription, and the control plane the message.
        with RawWebSocket(server, f"/channels/{channel}") as websocket:
            server.publish(channel, "delivered")
            assert websocket.read_message() == b"delivered"
        lines = iter(reader.readline, "")
        assert any(re.search(r"WARN \d+ lines of this log were dropped", line) for line in lines)
        server.http.get("/after")
        assert any("GET /after 404" in line for line in lines)
        server.stop()
        assert any(" INFO stopped: " in line for line in lines)


def test_a_server_whose_log_nobody_reads_can_be_stopped(serve):
    unread, log = os.pipe()
    try:
        server = serve("--log", "debug", prepare=lambda: os.dup2(log, 2))
    finally:
        os.close(log)
    # More than a pipe holds.
    pipelined_requests(server, 1000)
    server.stop()
    os.close(unread)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_logged_at_any_level(serve, channel, tmp_path, form):
    made = run_throng("key", "--scopes", "publish,history,administration", directory=tmp_path)
    (key,) = re.findall(r"\bthrong_key_\w+", made.stdout + made.stderr)
    (digest,) = re.findall(r"sha256:\w+", made.stdout + made.stderr)
    token_secret = "0123456789abcdef" * 4
    (tmp_path / "throng.toml").write_text(
        f'access = {{ subscribe = "anyone" }}\n[[token-keys]]\nsecret = "{token_secret}"\n'
        f'[[server-keys]]\nname = "a"\nhash = "{digest}"\n'
        'scopes = ["publish", "history", "administration"]\nchannels = ["*"]\n'
    )
    (tmp_path / "throng.toml").chmod(0o600)
    server = serve("--log", "trace", "--log-format", form)
    bearer, bad = {"Authorization": f"Bearer {key}"}, {"Authorization": f"Bearer x.{SECRET}.y"}
    path = f"/channels/{channel}"
    with RawWebSocket(server, path) as websocket:
        assert server.http.post(path, content=f"payload {SECRET}", headers=bearer).status_code == 201
        assert SECRET in websocket.read_message().decode()
    assert server.http.get(f"{path}/history", headers=bearer).status_code == 200
    assert server.http.post(path, content=SECRET, headers=bad).status_code == 401
    assert server.http.get(f"{path}?token=x.{SECRET}.y").status_code == 401
    assert server.http.get("/status.json", headers=bearer).status_code == 200
    login = {"Origin": server.url, "Content-Type": "application/x-www-form-urlencoded"}
    server.http.post("/status/login", content=f"key={key}", headers=login)
    eventually(lambda: "/status/login" in server.log(), "the last request")
    server.stop()
    for secret in (SECRET, key, digest, token_secret):
        assert secret not in server.log(), secret
