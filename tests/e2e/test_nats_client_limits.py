"""Limits per user and address that hold for several nodes together."""

import time
from contextlib import ExitStack

import pytest

from support.access import SECRET, bearer, server_key, token
from support.nats import connected, know_each_other
from support.raw import Raw
from support.server import Server, closed_port, eventually

OTHERS = "throng_limits_other_nodes"


def elsewhere(limit):
    return f'throng_limits_refused_elsewhere_total{{per="user",limit="{limit}"}}'


@pytest.fixture
def nodes(tmp_path, lasting_broker, start_node):
    """Starts nodes with keys and these limits."""

    def begin(count, limits):
        operator, table = server_key(tmp_path, "operator", "administration")
        keys = f"[[token-keys]]\nsecret = '{SECRET}'\n{table}"
        access = "[access]\nsubscribe = 'anyone'\npublish = 'anyone'\n"
        (tmp_path / "throng.toml").write_text(access + limits + keys)
        prefix = ("--nats-prefix", tmp_path.name[-32:].replace(".", "-"))
        started = [start_node(lasting_broker, *prefix) for _ in range(count)]
        for one in started:
            one.http.headers.update(bearer(operator))
            connected(one)
        know_each_other(*started)
        counted = [count - 1] * count
        eventually(lambda: [one.metrics()[OTHERS] for one in started] == counted, "all reports")
        return started

    return begin


def follow(stack, one, user="ann"):
    """The status of a subscription, which stays open."""
    client = stack.enter_context(Raw(one))
    client.request("GET", "/channels/a", bearer(token(sub=user)))
    return client, client.read_head().status


def test_connections_of_a_user_count_on_all_nodes(nodes):
    three = nodes(3, "[per-user]\nmax-connections = 3\n")
    with ExitStack() as stack:
        clients = [follow(stack, one) for one in three[:2]] + [follow(stack, three[0])]
        assert [status for _, status in clients] == [200] * 3

        def is_refused(one):
            with ExitStack() as tried:
                _, status = follow(tried, one)
                return status == 429

        # A second until they know of each other.
        for one in three:
            eventually(lambda one=one: is_refused(one), "a full node")
        assert three[2].metrics()[elsewhere("connections")] >= 1
        assert follow(stack, three[2], "bo")[1] == 200
        clients[0][0].close()
        eventually(lambda: not is_refused(three[2]), "room on another node")


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
