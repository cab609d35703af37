"""Who is behind: the list over HTTP, on the command line and on the status page; closing by hand and
by rule."""

import json
import time

import pytest

from support.access import SECRET, bearer, server_key, token
from support.raw import CLOSE, TEXT, Raw, RawWebSocket
from support.server import eventually, run_throng
from support.transports import subscribe

PIECE = "x" * 16_000
# Far more than loopback's buffers hold for a reader with the smallest window.
PIECES = 60


def behind(server, key=None, **parameters):
    """The answer to a request for the list."""
    headers = bearer(key) if key else {}
    parameters = {"sort": "behind", **parameters}
    response = server.http.get("/connections", params=parameters, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def one_behind(server, key=None):
    """The list once it has one entry: its worker may come to the messages later than others."""
    eventually(lambda: behind(server, key)["count"] == 1, "a slow connection")
    return behind(server, key)


def fill(server, channel, key=None):
    """Publishes until a reader that stands still is behind."""
    headers = bearer(key) if key else {}
    for _ in range(PIECES):
        server.publish(channel, PIECE, **headers)


def gauge(server):
    return server.metrics()["throng_connections_behind"]


# More than is published, so that nobody exceeds them.
ROOM = ["--max-lag-messages", "10k", "--max-lag-bytes", "64MiB", "--history-messages", 1000]


def test_a_reader_that_stops_is_listed_until_it_reads_again(serve, channel, tmp_path):
    server = serve(*ROOM, "--history-bytes", "64MiB")
    before_ms = time.time() * 1000
    path = f"/subscribe?channel={channel}&user=ann"
    with RawWebSocket(server, path, "throng.v1", receive_buffer_bytes=4096) as slow:
        with subscribe("websocket", server, f"/channels/{channel}") as good:
            fill(server, channel)
            good.take(PIECES)
            found = one_behind(server)
            assert (found["count"], found["more"]) == (1, False)
            (entry,) = found["connections"]
            assert entry["user"] == "ann" and entry["transport"] == "websocket"
            assert (entry["channels"], entry["inboxes"]) == ([channel], ["ann"])
            assert entry["subscriptions"] == 2
            host, _, port = entry["address"].rpartition(":")
            assert (host, int(port)) == slow.socket.getsockname()
            assert before_ms - 2000 < entry["behind_since"] <= time.time() * 1000 + 1000
            assert 0 < entry["messages"] < PIECES
            # Of each message the body, and some overhead.
            assert entry["bytes"] >= entry["messages"] * len(PIECE)
            assert entry["kernel_bytes"] > 0
            assert gauge(server) == 1
            connection = entry["connection"]
            listed = run_throng("connections", "--server", server.url, directory=tmp_path)
            lines = listed.stdout.splitlines()
            assert [json.loads(line)["connection"] for line in lines] == [connection]
            # It reads, and has everything.
            got = 0
            while got < PIECES:
                got += json.loads(slow.read_message())["type"] == "message"
            eventually(lambda: behind(server)["count"] == 0, "the end of the lag")
            assert gauge(server) == 0


def test_one_of_the_list_is_closed_by_hand(serve, channel):
    server = serve(*ROOM)
    with RawWebSocket(server, f"/channels/{channel}", receive_buffer_bytes=4096) as slow:
        with subscribe("sse", server, f"/channels/{channel}") as good:
            fill(server, channel)
            good.take(PIECES)
            (entry,) = one_behind(server)["connections"]
            path = f"/connections/{entry['connection']}?reason=you%20do%20not%20read"
            assert server.http.delete(path).json() == {"disconnected": 1}
            assert behind(server)["count"] == 0
            opcode, payload = TEXT, b""
            while opcode == TEXT:
                opcode, payload = slow.read_frame()
            assert (opcode, payload[2:]) == (CLOSE, b"you do not read")
            assert int.from_bytes(payload[:2], "big") == 4100
            server.publish(channel, "bystanders stay")
            assert list(good.take(1)) == ["bystanders stay"]


@pytest.mark.parametrize("place", ["flag", "table"])
def test_one_that_does_not_catch_up_in_time_is_closed(serve, channel, tmp_path, place):
    flags = ["--slow-timeout", "1s"]
    if place == "table":
        flags = ["--slow-timeout", "1h"]
        table = f"[[channels]]\nmatch = '{channel}'\nslow-timeout = '1s'\n"
        (tmp_path / "throng.toml").write_text(table)
    server = serve(*ROOM, *flags)
    with Raw(server, receive_buffer_bytes=4096) as slow:
        slow.request("GET", f"/channels/{channel}")
        assert slow.read_head().status == 200
        with subscribe("stream", server, f"/channels/{channel}") as good:
            # It reads each piece, so that it is never behind itself.
            for _ in range(PIECES):
                server.publish(channel, PIECE)
                good.take(1)
            name = 'throng_disconnects_total{reason="slow"}'
            eventually(lambda: server.metrics()[name] == 1, "the end of the slow connection")
            assert behind(server)["count"] == 0
            # Its stream ends without a last chunk.
            assert not slow.read_to_end().endswith(b"0\r\n\r\n")
            server.publish(channel, "bystanders stay")
            assert list(good.take(1)) == ["bystanders stay"]
            assert server.metrics()[name] == 1


def test_those_that_hold_most_come_first(serve, channel):
    server = serve(*ROOM)
    names = [f"{channel}-{nth}" for nth in range(3)]
    clients = [RawWebSocket(server, f"/channels/{name}", receive_buffer_bytes=4096) for name in names]
    try:
        for rounds, name in enumerate(names, 1):
            for _ in range(rounds):
                fill(server, name)
        eventually(lambda: behind(server)["count"] == 3, "three slow connections")
        found = behind(server, limit=2)
        assert (found["count"], found["more"]) == (3, True)
        assert [entry["channels"] for entry in found["connections"]] == [[names[2]], [names[1]]]
    finally:
        for client in clients:
            client.close()
    eventually(lambda: behind(server)["count"] == 0, "the end of their connections")


def test_the_list_is_for_operators(serve, channel, tmp_path):
    operator, operator_table = server_key(tmp_path, "operator", "administration")
    app, app_table = server_key(tmp_path, "app", "publish")
    tables = f"[[token-keys]]\nsecret = '{SECRET}'\n{operator_table}{app_table}"
    (tmp_path / "throng.toml").write_text(tables)
    server = serve(*ROOM)
    user = token(sub="ann", throng={"subscribe": ["*"]})
    path = f"/channels/{channel}?token={user}"
    with RawWebSocket(server, path, receive_buffer_bytes=4096):
        for _ in range(PIECES):
            response = server.http.post(f"/channels/{channel}", content=PIECE, headers=bearer(app))
            assert response.status_code == 201
        one_behind(server, operator)
        for headers, status in (({}, 401), (bearer(app), 403), (bearer(user), 403)):
            response = server.http.get("/connections?sort=behind", headers=headers)
            assert response.status_code == status, response.text
        # The status page's login counts for it.
        with_login = server.http.post(
            "/status/login", data={"key": operator}, headers={"Origin": server.url}
        )
        cookie = with_login.headers["Set-Cookie"].partition(";")[0]
        response = server.http.get("/connections?sort=behind", headers={"Cookie": cookie})
        assert response.status_code == 200, response.text
        refused = server.http.delete("/connections/1", headers={"Cookie": cookie})
        assert refused.status_code == 401, "a login closes nobody"
