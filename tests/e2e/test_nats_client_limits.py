"""Limits per user and address that hold for several nodes together."""

import time
from contextlib import ExitStack

import pytest

from support.access import SECRET, bearer, server_key, token
from support.nats import QUICK, connected, know_each_other
from support.raw import Raw
from support.server import Server, closed_port, eventually
from support.upgrades import UpgradableServer

OTHERS = "throng_limits_other_nodes"


def elsewhere(limit, per="user"):
    return f'throng_limits_refused_elsewhere_total{{per="{per}",limit="{limit}"}}'


@pytest.fixture
def nodes(tmp_path, lasting_broker, start_node):
    """Starts nodes with keys and these limits."""

    def begin(count, limits, more=""):
        operator, table = server_key(tmp_path, "operator", "administration")
        write_settings(tmp_path, limits, table + more)
        prefix = ("--nats-prefix", tmp_path.name[-32:].replace(".", "-"))
        started = [start_node(lasting_broker, *prefix) for _ in range(count)]
        for one in started:
            one.http.headers.update(bearer(operator))
            connected(one)
        know_each_other(*started)
        hear_each_other(*started)
        return started

    return begin


def write_settings(directory, limits, tables):
    keys = f"[[token-keys]]\nsecret = '{SECRET}'\n{tables}"
    access = "[access]\nsubscribe = 'anyone'\npublish = 'anyone'\n"
    (directory / "throng.toml").write_text(access + limits + keys)


def hear_each_other(*nodes):
    """Waits until each node knows what clients use on all others."""
    counted = [len(nodes) - 1] * len(nodes)
    eventually(lambda: [one.metrics()[OTHERS] for one in nodes] == counted, "all reports")


def follow(stack, one, user="ann", shown=None):
    """The status of a subscription, which stays open."""
    client = stack.enter_context(Raw(one))
    client.request("GET", "/channels/a", bearer(shown or token(sub=user)))
    return client, client.read_head().status


def is_refused(one, **client):
    """Whether a further connection of the client is one too many."""
    with ExitStack() as tried:
        _, status = follow(tried, one, **client)
        assert status in (200, 429)
        return status == 429


def test_connections_of_a_user_count_on_all_nodes(nodes):
    three = nodes(3, "[per-user]\nmax-connections = 3\n")
    with ExitStack() as stack:
        clients = [follow(stack, one) for one in three[:2]] + [follow(stack, three[0])]
        assert [status for _, status in clients] == [200] * 3
        # A second until they know of each other.
        for one in three:
            eventually(lambda one=one: is_refused(one), "a full node")
        assert three[2].metrics()[elsewhere("connections")] >= 1
        assert follow(stack, three[2], "bo")[1] == 200
        clients[0][0].close()
        eventually(lambda: not is_refused(three[2]), "room on another node")


def test_connections_of_an_address_count_on_all_nodes(nodes):
    three = nodes(3, "[per-address]\nmax-connections = 3\n")

    def connects(stack, one, source):
        client = stack.enter_context(Raw(one, source=source))
        client.request("GET", "/channels/a")
        return client, client.read_head().status

    def is_full(one, source):
        with ExitStack() as tried:
            return connects(tried, one, source)[1] == 429

    # The tests' own questions come from another address.
    ours, others = "127.0.0.7", "127.0.0.8"
    with ExitStack() as stack:
        clients = [connects(stack, one, ours) for one in (*three[:2], three[0])]
        assert [status for _, status in clients] == [200] * 3
        for one in three:
            eventually(lambda one=one: is_full(one, ours), "a node that is full for the address")
        assert three[2].metrics()[elsewhere("connections", "address")] >= 1
        assert connects(stack, three[2], others)[1] == 200
        clients[0][0].close()
        eventually(lambda: not is_full(three[2], ours), "room on another node")


def test_use_of_a_key_counts_on_all_nodes(nodes, tmp_path):
    shown, table = server_key(tmp_path, "application", "publish,subscribe")
    second, other_table = server_key(tmp_path, "other", "publish,subscribe")
    limits = "[per-key]\nmax-connections = 2\npublish-byte-rate = '1KiB'\n"
    both = nodes(2, limits, table + other_table)
    with ExitStack() as stack:
        clients = [follow(stack, both[0], shown=shown) for _ in range(2)]
        assert [status for _, status in clients] == [200] * 2
        for one in both:
            eventually(lambda one=one: is_refused(one, shown=shown), "a node that is full for the key")
        assert both[1].metrics()[elsewhere("connections", "key")] >= 1
        assert follow(stack, both[1], shown=second)[1] == 200
        clients[0][0].close()
        eventually(lambda: not is_refused(both[1], shown=shown), "room on another node")

    def publish(one, of):
        return one.http.post("/channels/a", content="x" * 64 * 1024, headers=bearer(of)).status_code

    # One message of a minute's worth, which the other node hears of.
    assert publish(both[0], shown) == 201
    # With an empty message: one that is admitted costs next to nothing.
    eventually(
        lambda: both[1].http.post("/channels/a", content="", headers=bearer(shown)).status_code == 429,
        "a key that has used up its rate on another node",
    )
    assert both[1].metrics()[elsewhere("published_bytes", "key")] >= 1
    assert publish(both[1], second) == 201


def test_limits_that_come_with_an_upgrade_count_on_all_nodes(tmp_path, lasting_broker):
    operator, table = server_key(tmp_path, "operator", "administration")
    write_settings(tmp_path, "", table)
    flags = ["--config", "throng.toml", "--engine", "nats", "--nats", lasting_broker.url]
    flags += ["--nats-prefix", tmp_path.name[-32:].replace(".", "-"), *QUICK]
    with ExitStack() as stack:
        both = []
        for _ in range(2):
            one = UpgradableServer(tmp_path, *flags)
            stack.callback(one.stop)
            one.http.headers.update(bearer(operator))
            both.append(connected(one))
        know_each_other(*both)
        write_settings(tmp_path, "[per-user]\nmax-connections = 1\n", table)
        for one in both:
            one.upgrade()
            connected(one)
        hear_each_other(*both)
        assert follow(stack, both[0])[1] == 200
        for one in both:
            eventually(lambda one=one: is_refused(one), "a full node")
        assert all("of this node alone" not in one.log() for one in both)


def test_all_nodes_together_admit_the_rate_of_one(nodes):
    three = nodes(3, "[per-user]\npublish-rate = 20\n")
    headers = bearer(token(sub="ann"))
    begun, admitted, refused = time.monotonic(), 0, None
    while time.monotonic() < begun + 8:
        for one in three:
            answer = one.http.post("/channels/a", content="x", headers=headers)
            assert answer.status_code in (201, 429), answer.text
            admitted += answer.status_code == 201
            refused = answer if answer.status_code == 429 else refused
    seconds = time.monotonic() - begun
    # Each has a burst, and a second or two of its own before it hears of the others.
    assert admitted <= 20 * seconds + 3 * 20 * 2, f"{admitted} in {seconds} s"
    assert refused is not None and int(refused.headers["Retry-After"]) >= 1
    assert sum(one.metrics()[elsewhere("publishes")] for one in three) > 0


def test_clients_of_a_frozen_node_count_no_more_after_three_seconds(nodes):
    both = nodes(2, "[per-user]\nmax-connections = 1\n")
    with ExitStack() as stack:
        assert follow(stack, both[1])[1] == 200

        def status():
            with ExitStack() as tried:
                return follow(tried, both[0])[1]

        eventually(lambda: status() == 429, "the report of the other node")
        with both[1].frozen():
            eventually(lambda: status() == 200, "a node that counts alone")
            assert both[0].metrics()[OTHERS] == 0
        eventually(lambda: status() == 429, "the other node again")


def test_a_node_that_starts_without_nats_counts_alone(tmp_path):
    (tmp_path / "throng.toml").write_text("[per-address]\nmax-connections = 50\n")
    with closed_port() as port:
        one = Server(tmp_path, "--engine", "nats", "--nats", f"nats://127.0.0.1:{port}")
    try:
        one.says("limits count the clients of this node alone")
    finally:
        one.stop()
