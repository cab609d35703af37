"""Users of stock clients of the Pusher protocol come back to another node."""

import contextlib
import itertools
import json

import pytest

from support.access import bearer, server_key
from support.nats import QUICK, connected, know_each_other
from support.pusher import APP, Peer, call
from support.relay import Relay
from support.server import Server, eventually
from support.stock import Stock
from test_pusher_resume import begin, check, go_through_cuts, write_settings


@pytest.fixture
def nodes(tmp_path, lasting_broker):
    """Two nodes with an application whose users go on."""
    key, table = server_key(tmp_path, "operator", "administration", "presence")
    write_settings(tmp_path, table)
    prefix = tmp_path.name[-32:].replace(".", "-")
    flags = ["--config", "throng.toml", "--engine", "nats", "--nats", lasting_broker.url, "--nats-prefix", prefix]
    with contextlib.ExitStack() as stack:

        def start():
            server = Server(tmp_path, *QUICK, *flags)
            stack.callback(server.stop)
            server.http.headers.update(bearer(key))
            return connected(server)

        yield know_each_other(start(), start())


@pytest.mark.parametrize("is_at_least_once", [True, False])
@pytest.mark.parametrize("prefix", ["private-", "presence-"])
def test_a_user_goes_on_at_another_node(nodes, node, channel, prefix, is_at_least_once):
    name = f"{prefix}{'all' if is_at_least_once else 'once'}-{channel}"
    stock = Stock(node("pusher.mjs", "node", nodes[0].url, json.dumps(APP)))
    others = itertools.cycle(reversed(nodes))
    with Relay(nodes[0]) as relay:
        begin(nodes[0], stock, relay, name, signs_in=prefix == "private-")

        def move():
            other = next(others)
            relay.target = (other.host, other.port)

        got, last = go_through_cuts(nodes[0], stock, relay, name, between=move)
    check(got, last, is_at_least_once)
    taken = [one.metrics()['throng_bookmarks_ended_total{outcome="taken"}'] for one in nodes]
    # A cut before the client follows the channel again leaves none: not each node has to have taken one.
    assert any(taken), "a node has taken one of the other"


def test_each_page_of_a_user_goes_on_at_another_node(nodes, channel):
    name, (first, other) = f"private-all-{channel}", nodes
    with Relay(first) as relay:
        died = [page(relay, name) for _ in range(2)]
        relay.cut()
        eventually(lambda: first.metrics()["throng_bookmarks_left_total"] == len(died), "two bookmarks")
    event = {"name": "ev", "channel": name, "data": "1"}
    assert call(other, "POST", f"/apps/{APP['id']}/events", event)[0] == 200
    # One that is there before its node has heard of the bookmarks takes none, and stays.
    pages = []

    def go_on():
        pages.append(page(other, name))
        return len(with_place()) == len(died)

    def with_place():
        return [new for new, began in pages if began.get("recovered")]

    eventually(go_on, "both go on")
    for new in with_place():
        assert new.next()["data"] == "1"


def page(server, channel):
    """A page of ann that follows a channel, and what it was told when that began."""
    peer = Peer(server)
    peer.sign_in("ann")
    assert peer.next()["event"] == "pusher:signin_success"
    peer.subscribe(channel)
    return peer, json.loads(peer.next()["data"])
