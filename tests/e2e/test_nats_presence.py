"""Who is where, over several nodes: what one is asked about all of them, and what all of them do."""

import json

import pytest
from websockets.exceptions import ConnectionClosed

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.nats import connected, know_each_other
from support.server import eventually
from support.transports import WebSocket, subscribe

COUNT = {"count": "all"}


def eventually_whole(ask):
    """The first answer that lacks no node's: on a busy machine one may be late."""
    answers = []

    def is_whole():
        answers.append(ask())
        return "partial" not in answers[-1]

    eventually(is_whole, "an answer of all nodes")
    return answers[-1]


def publish(one, path, body="x", **parameters):
    answer = one.http.post(path, content=body, params=parameters)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_presence_and_numbers_are_those_of_all_nodes(own_node, channel):
    three = know_each_other(own_node(), own_node(), own_node())
    path = f"/channels/{channel}"
    people = [("ann", three[0]), ("bo", three[1]), ("ann", three[1]), (None, three[2])]
    with (
        subscribe("sse", people[0][1], path, user="ann") as first,
        subscribe("stream", people[1][1], path, user="bo") as second,
        subscribe("sse", people[2][1], path, user="ann") as third,
        subscribe("websocket", people[3][1], path) as fourth,
    ):
        for one in three:
            found = eventually_whole(lambda one=one: one.presence(channel))
            assert found == {
                "channel": channel, "connections": 4, "users": ["ann", "bo"], "more": False,
            }
            cut = eventually_whole(lambda one=one: one.presence(channel, limit=1))
            assert (cut["users"], cut["more"], cut["connections"]) == (["ann"], True, 4)
        answer = eventually_whole(lambda: publish(three[2], path, **COUNT))
        assert answer["subscribers"] == 4
        lines = "\n".join(json.dumps({"channel": channel, "data": "all"}) for _ in range(3))
        batch = three[1].http.post("/publish", content=lines, params=COUNT)
        counts = [json.loads(line)["subscribers"] for line in batch.text.splitlines()]
        assert counts == [4, 4, 4], batch.text
        # The messages before it lacked a node's number, if there were any.
        assert publish(three[0], path, "own")["subscribers"] == 1
        for subscriber in (first, second, third, fourth):
            while subscriber.next()[1] != "own":
                pass
    refused = three[0].http.post(path, content="x", params={"count": "some"})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_parameter")


def test_the_devices_of_a_user_are_counted_on_all_nodes(own_node, channel):
    both = know_each_other(own_node(), own_node())
    with (
        subscribe("sse", both[0], f"/users/{channel}"),
        WebSocket(both[1], f"/users/{channel}", None, {}) as there,
    ):
        total = eventually_whole(lambda: publish(both[0], f"/users/{channel}", **COUNT))
        assert total["subscribers"] == 2
        there.close()
        eventually(
            lambda: publish(both[0], f"/users/{channel}", **COUNT)["subscribers"] == 1,
            "one device less",
        )


def test_a_node_that_is_gone_leaves_no_ghosts(own_node, channel):
    both = know_each_other(own_node(), own_node())
    path = f"/channels/{channel}"
    with subscribe("sse", both[0], path, user="ann"):
        with subscribe("sse", both[1], path, user="bo"):
            assert eventually_whole(lambda: both[0].presence(channel))["users"] == ["ann", "bo"]
            both[1].kill()
        # Until it is given up, an answer says that one is missing.
        answers = []

        def is_alone():
            answers.append(both[0].presence(channel))
            return "partial" not in answers[-1]

        eventually(is_alone, "the other node is given up")
        assert {tuple(answer["users"]) for answer in answers} == {("ann",)}
        assert all(answer["partial"] is True for answer in answers[:-1])
        assert both[0].metrics()["throng_nats_other_nodes"] == 0


def test_a_node_that_ends_says_so(own_node, channel):
    both = know_each_other(own_node(), own_node())
    both[1].stop()
    answers = []

    def is_alone():
        answers.append(both[0].presence(channel))
        return both[0].metrics()["throng_nats_other_nodes"] == 0

    eventually(is_alone, "the other node is not waited for")
    # Nobody took it for one that is silent.
    assert not any("partial" in answer for answer in answers), answers


def test_a_node_that_is_frozen_is_missing(own_node, channel):
    both = know_each_other(own_node(), own_node())
    path = f"/channels/{channel}"
    with subscribe("sse", both[1], path, user="bo"):
        assert eventually_whole(lambda: both[0].presence(channel))["connections"] == 1
        with both[1].frozen():
            found = both[0].presence(channel)
            assert (found["connections"], found.get("partial")) == (0, True)
            assert publish(both[0], path, **COUNT).get("partial") is True
        know_each_other(*both)
        # Anew: after some seconds it would be given up.
        with both[1].frozen():
            listed = both[0].http.get(f"{path}/connections").json()
            assert (listed["count"], listed.get("partial")) == (0, True)
        whole = eventually_whole(lambda: both[0].presence(channel))
        eventually(lambda: both[0].presence(channel)["connections"] == 1, f"it is back: {whole}")


def test_without_nats_an_answer_is_partial(own_node, lasting_broker, channel):
    alone = own_node()
    with subscribe("sse", alone, f"/channels/{channel}", user="ann"):
        assert eventually_whole(lambda: alone.presence(channel))["users"] == ["ann"]
        with lasting_broker.cut_off():
            eventually(lambda: alone.presence(channel).get("partial"), "nobody can be asked")
            assert alone.presence(channel)["users"] == ["ann"]
        connected(alone)


def keys(directory):
    """Settings with keys, and the operator's."""
    operator, table = server_key(directory, "operator", "administration")
    (directory / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    return bearer(operator)


def test_connections_are_listed_and_closed_on_all_nodes(tmp_path, own_node, channel):
    operator = keys(tmp_path)
    both = know_each_other_keyed(operator, own_node(), own_node())
    ann = token(sub="ann", throng={"subscribe": ["*"]})
    bob = token(sub="bob", throng={"subscribe": ["*"]})

    def request(method, path, one, **parameters):
        answer = one.http.request(method, path, params=parameters, headers=operator)
        assert answer.status_code == 200, answer.text
        return answer.json()

    path = f"/channels/{channel}"
    with (
        WebSocket(both[0], path, None, {"token": ann}) as here,
        WebSocket(both[1], path, None, {"token": ann}) as there,
        WebSocket(both[1], path, None, {"token": bob}) as other,
    ):
        for one in both:
            page = eventually_whole(lambda one=one: request("GET", "/users/ann/connections", one))
            names = {found["connection"] for found in page["connections"]}
            assert (page["count"], names) == (2, {here.connection, there.connection})
            cut = eventually_whole(
                lambda one=one: request("GET", f"{path}/connections", one, limit=2)
            )
            assert (cut["count"], len(cut["connections"]), cut["more"]) == (3, 2, True)
        closed = request("DELETE", f"/connections/{other.connection}", both[0], reconnect="false")
        assert closed["disconnected"] == 1 or closed["partial"]
        assert closing_code(other) == 4500
        reason = {"reason": "go away", "code": 4123}
        closed = request("DELETE", "/users/ann/connections", both[1], **reason)
        assert closed["disconnected"] == 2 or closed["partial"]
        assert (closing_code(here), closing_code(there)) == (4123, 4123)
    gone = eventually_gone(both[0], here.connection, operator)
    assert gone.json()["error"] == "not_found"


def know_each_other_keyed(operator, *nodes):
    for one in nodes:
        one.http.headers.update(operator)
    return know_each_other(*nodes)


def closing_code(subscriber):
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            subscriber.socket.recv(timeout=TIMEOUT_SECONDS)
    return closed.value.rcvd.code


def eventually_gone(one, connection, operator):
    """The answer of a node that has heard all others."""
    answers = []

    def is_known():
        answers.append(one.http.delete(f"/connections/{connection}", headers=operator))
        return answers[-1].status_code == 404

    eventually(is_known, "it is nowhere")
    return answers[-1]
