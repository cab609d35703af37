"""Users of stock clients of the Pusher protocol come back to another node."""

import contextlib
import itertools
import json

import pytest

from support.access import bearer, server_key
from support.nats import QUICK, connected, know_each_other
from support.pusher import APP
from support.relay import Relay
from support.server import Server
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
    assert all(taken), "each node has taken one of the other"
