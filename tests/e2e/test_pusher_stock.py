"""Stock clients of the Pusher protocol over TLS, on encrypted channels, when they lag, in a storm, and over restarts and upgrades."""

import json
import threading
from contextlib import ExitStack

import pysher
import pytest

from conftest import QUICK
from support import TIMEOUT_SECONDS
from support.access import bearer, server_key
from support.pusher import APP, call, settings
from support.relay import Relay
from support.server import Server, eventually
from support.stock import Stock
from support.tls_server import start_tls
from test_storm import storm, storm_server

EVENTS = f"/apps/{APP['id']}/events"
# More than the server's buffers can hold for a client whose window is closed.
PIECE_BYTES, PIECES_MAX = 48 * 1024, 2000
LAGGED = 'throng_disconnects_total{reason="lag"}'
RULE = """
[[channels]]
match = "shop/private-*"
messages = 100_000
bytes = "256MiB"
resume = "at-least-once"
"""


def publish(server, channel, data):
    event = {"name": "ev", "channel": channel, "data": json.dumps(data)}
    assert call(server, "POST", EVENTS, event) == (200, {})


@pytest.fixture(params=["node", "chromium"])
def stock(request, serve, tmp_path, node):
    """`pusher-js` in Node or in a page."""
    settings(tmp_path)
    place = "node" if request.param == "node" else request.getfixturevalue("chromium")
    return Stock(node("pusher.mjs", place, serve().url, json.dumps(APP)))


@pytest.mark.parametrize("kind", ["", "cache-"])
def test_stock_clients_read_encrypted_channels(stock, channel, kind):
    name = f"private-encrypted-{kind}{channel}"
    stock.connect("ann", "ann")
    stock.follow("ann", name)
    assert stock.library("trigger", name, "ev", {"größe": 1}) == [200, {}]
    assert stock.wait("ann", "event", name, "ev") == [{"größe": 1}]
    if kind:
        stock.connect("bob", "bob")
        stock.follow("bob", name)
        assert stock.wait("bob", "event", name, "ev") == [{"größe": 1}]
        found = stock.library("get", {"path": f"/channels/{name}", "params": {"info": "cache"}})[1]
        assert set(json.loads(found["cache"]["data"])) == {"nonce", "ciphertext"}


def test_stock_clients_work_over_tls(tmp_path, node):
    headers = settings(tmp_path)
    tls = start_tls(tmp_path)
    trust = {"NODE_EXTRA_CA_CERTS": str(tls.certificate)}
    url = f"https://localhost:{tls.port}"
    stock = Stock(node("pusher.mjs", "node", url, json.dumps(APP), environment=trust))
    stock.connect("ann", "ann")
    stock.tell("ann", "signin")
    room = "presence-a"
    assert stock.follow("ann", room) == [{"ann": {"name": "ann!"}}]
    stock.connect("bob", "bob")
    stock.follow("bob", room)
    assert stock.wait("ann", "event", room, "pusher:member_added")[0]["id"] == "bob"
    large = "x" * 40_000
    assert stock.library("trigger", room, "ev", large) == [200, {}]
    assert stock.wait("ann", "event", room, "ev") == [large]
    stock.tell("bob", "trigger", room, "client-x", {"n": 1})
    assert stock.wait("ann", "event", room, "client-x") == [{"n": 1}]
    # Its inbox is there once it has signed in.
    inbox = "/users/shop%2Fann/presence"
    eventually(lambda: tls.plain.http.get(inbox, headers=headers).json()["connections"] == 1, "an inbox")
    assert stock.library("sendToUser", "ann", "hey", {"n": 1})[0] == 200
    assert stock.wait("ann", "user", "hey") == [{"n": 1}]
    tls.plain.stop()


def test_a_stock_client_that_lags_comes_back_by_itself(serve, tmp_path, node):
    key, table = server_key(tmp_path, "operator", "administration", "presence")
    settings(tmp_path, table)
    with (tmp_path / "throng.toml").open("a") as file:
        file.write(RULE)
    server = serve("--max-lag-messages", 100, "--max-lag-bytes", "4MiB", "--lag-policy", "close", "--heartbeat", "1h")
    server.http.headers.update(bearer(key))
    name = "private-a"
    stock = Stock(node("pusher.mjs", "node", server.url, json.dumps(APP)))
    with Relay(server, receive_buffer_bytes=16 * 1024) as relay:
        stock.tell("ann", "connect", {"user": "ann", "options": {"wsHost": relay.host, "wsPort": relay.port}})
        stock.wait("ann", "state", "connected")
        stock.tell("ann", "signin")
        stock.follow("ann", name)
        # It follows its inbox once it has signed in.
        inbox = "/users/shop%2Fann/presence"
        eventually(lambda: server.http.get(inbox).json()["connections"] == 1, "a user")
        publish(server, name, {"n": 0})
        assert stock.wait("ann", "event", name, "ev") == [{"n": 0}]
        count = 1
        with relay.paused():
            while server.metrics()[LAGGED] == 0:
                publish(server, name, {"n": count, "x": "x" * PIECE_BYTES})
                count += 1
                assert count < PIECES_MAX
        publish(server, name, {"n": count})
        got = [0]
        while got[-1] < count:
            got.append(stock.wait("ann", "event", name, "ev")[0]["n"])
        # pusher-js comes back at once after this code.
        assert bytes(relay.relayed[0].from_server).rpartition(b"\x88")[2][1:3] == (4200).to_bytes(2, "big")
    assert list(dict.fromkeys(got)) == list(range(count + 1)), "nothing is lost, and all is in order"
    assert server.metrics()['throng_bookmarks_ended_total{outcome="taken"}'] == 1


def test_stock_clients_that_a_storm_refuses_come_back_by_themselves(serve, tmp_path, node):
    key, table = server_key(tmp_path, "operator", "administration")
    settings(tmp_path, table)
    server = storm_server(serve)
    server.http.headers.update(bearer(key))
    stock = Stock(node("pusher.mjs", "node", server.url, json.dumps(APP)))
    names = ("ann", "bob")
    with Relay(server) as relay, ExitStack() as stack:

        def wait_in_the_queue():
            options = {"wsHost": relay.host, "wsPort": relay.port}
            for name in names:
                stock.tell(name, "connect", {"user": name, "options": options})
            asked = b"\r\n\r\n"
            eventually(lambda: sum(asked in one.from_client for one in relay.relayed) == len(names), "their requests")

        storm(stack, server, [], between=wait_in_the_queue)
        for name in names:
            stock.wait(name, "state", "connected")
        refused = [bytes(one.from_server) for one in relay.relayed[: len(names)]]
        # Before the upgrade, because a close code would bring them back within a second.
        assert all(head.startswith(b"HTTP/1.1 503 ") for head in refused), refused
        stock.follow("ann", "private-a")
        publish(server, "private-a", {"n": 1})
        assert stock.wait("ann", "event", "private-a", "ev") == [{"n": 1}]
    assert server.metrics()['throng_refused_total{reason="storm"}'] >= len(names)


def pysher_client(server, channel):
    """pysher, which follows a channel: the client, and what it hears."""
    heard, told = [], threading.Condition()
    client = pysher.Pusher(
        APP["key"],
        custom_host=server.host,
        port=server.port,
        secure=False,
        secret=APP["secret"],
        user_data={"user_id": "py"},
        reconnect_interval=1,
    )

    def hear(name):
        def add(data):
            with told:
                heard.append((name, data))
                told.notify()

        return add

    def wait(name, count=1):
        with told:
            assert told.wait_for(lambda: [one for one, _ in heard].count(name) >= count, TIMEOUT_SECONDS), heard
            return [data for one, data in heard if one == name]

    def begin(_):
        joined = client.subscribe(channel)
        joined.bind("pusher_internal:subscription_succeeded", hear("joined"))
        joined.bind("ev", hear("ev"))

    client.connection.bind("pusher:connection_established", begin)
    client.connect()
    return client, wait


def test_pysher_comes_back_after_a_restart(tmp_path):
    settings(tmp_path)
    server = Server(tmp_path, *QUICK)
    client, wait = pysher_client(server, "presence-a")
    try:
        wait("joined")
        publish(server, "presence-a", 1)
        wait("ev")
        server.stop()
        server = Server(tmp_path, *QUICK, port=server.port)
        wait("joined", 2)
        publish(server, "presence-a", 2)
        assert wait("ev", 2) == ["1", "2"]
    finally:
        client.disconnect(timeout=0)
        server.stop()


def test_an_upgrade_keeps_pysher(tmp_path, upgradable):
    settings(tmp_path)
    server = upgradable()
    client, wait = pysher_client(server, "presence-a")
    try:
        wait("joined")
        server.upgrade()
        publish(server, "presence-a", 1)
        assert wait("ev") == ["1"]
        assert len(wait("joined")) == 1
    finally:
        client.disconnect(timeout=0)
