"""Revocations over several nodes: made on one, they hold on all."""

import shutil
from contextlib import ExitStack

import pytest

from support.access import SECRET, bearer, now, server_key, token
from support.doors import Door
from support.nats import connected, user_of_the_guide
from support.raw import TEXT, Raw, RawWebSocket, frame
from support.server import eventually

GRANTS = {"subscribe": ["*"], "publish": ["*"]}
PATH = "/channels/rooms%2Fa"


@pytest.fixture
def node(tmp_path, strict_broker, start_node):
    """Starts nodes with keys, which may not be connected yet."""
    operator, table = server_key(tmp_path, "operator", "administration")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    started = []

    def begin(door=strict_broker, *flags):
        started.append(start_node(door, "--nats-login", tmp_path / "login", *flags))
        started[-1].http.headers.update(bearer(operator))
        return started[-1]

    begin.is_restricted = False
    yield begin
    for server in started:
        if server.process.poll() is None:
            server.stop()
        assert begin.is_restricted == ("Permissions Violation" in server.log())


def follow(one, credential):
    """A stream of server-sent events, with its head read."""
    client = Raw(one)
    client.request("GET", PATH, {**bearer(credential), "Accept": "text/event-stream"})
    assert client.read_head().status == 200
    return client


def publish(one, credential):
    """What becomes of a publication with this token: a status and an error."""
    answer = one.http.post(PATH, content="x", headers=bearer(credential))
    return answer.status_code, answer.json().get("error")


REVOKED = (401, "token_revoked")
ACCEPTED = (201, None)


def revoke(one, path, **parameters):
    answer = one.http.post(f"/revocations/{path}", params=parameters)
    assert answer.status_code == 201, answer.text


def test_a_revocation_on_one_node_holds_on_all(node):
    both = connected(node()), connected(node())
    ann, bob = token(throng=GRANTS, jti="t1"), token(sub="bob@x.example", throng=GRANTS)
    with follow(both[1], ann) as closed, follow(both[1], bob) as kept:
        revoke(both[0], "tokens/t1")
        assert b"token_revoked" in closed.read_to_end()
        assert [publish(one, ann) for one in both] == [REVOKED, REVOKED]
        assert publish(both[0], bob) == ACCEPTED
        assert b"data: x" in kept.read_until(b"data: x")
        revoke(both[1], "users/bob%40x.example")
        assert b"token_revoked" in kept.read_to_end()
    eventually(lambda: publish(both[0], bob) == REVOKED, "the other node knows")
    third = connected(node())
    assert (publish(third, ann), publish(third, bob)) == (REVOKED, REVOKED)
    lists = [one.http.get("/revocations").json() for one in (*both, third)]
    assert lists[0] == lists[1] == lists[2]
    assert [set(entry) for entry in lists[0]["revocations"]] == [
        {"token_hash", "at"}, {"user", "before"},
    ]
    assert third.http.delete("/revocations/tokens/t1").status_code == 204
    assert publish(third, ann) == ACCEPTED
    for one in both:
        eventually(lambda one=one: publish(one, ann) == ACCEPTED, "it is taken back")
        gone = one.http.delete("/revocations/tokens/t1")
        assert (gone.status_code, gone.json()["error"]) == (404, "not_found")
    fourth = connected(node())
    assert (publish(fourth, ann), publish(fourth, bob)) == (ACCEPTED, REVOKED)


def test_clients_with_newer_tokens_may_come_back(node):
    both = connected(node()), connected(node())
    old, new = (token(throng=GRANTS, iat=now() - age) for age in (100, 0))
    with follow(both[1], old) as one, follow(both[1], new) as other:
        revoke(both[0], "users/ann", before=now() - 50)
        for client in (one, other):
            assert b'"close_code":4100' in client.read_to_end()
    assert (publish(both[1], old), publish(both[1], new)) == (REVOKED, ACCEPTED)
    # An earlier moment takes nothing back, on a node that begins now either.
    revoke(both[0], "users/ann", before=now() - 500)
    assert publish(connected(node()), old) == REVOKED


def test_a_node_that_is_cut_off_catches_up_and_says_how_old_its_revocations_are(node, strict_broker):
    door = Door(lambda: strict_broker.upstream)
    near, far = connected(node()), connected(node(door))

    def age():
        return far.metrics()["throng_nats_revocations_age_seconds"]

    ann, bob = token(throng=GRANTS), token(sub="bob", throng=GRANTS)
    with follow(far, ann) as closed, follow(far, bob) as kept:
        with door.cut_off():
            revoke(near, "users/ann")
            assert publish(near, ann) == REVOKED
            eventually(lambda: age() >= 3, "it says that it may not know all")
            eventually(lambda: far.metrics()["throng_nats_connected"] == 0, "it is cut off")

            def says_so():
                shown = far.http.get("/status.json").json()["cluster"]
                is_old = shown["revocations_age_ms"] >= 3_000
                return not shown["open"] and is_old and shown["nodes"][0]["suspect"]

            eventually(says_so, "the status says so, too")
            refused = far.http.post("/revocations/users/bob")
            assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
            assert "Retry-After" in refused.headers
            # It does not know whether another node has revoked them.
            refused = far.http.delete("/revocations/users/ann")
            assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
            assert far.http.get("/revocations/users/bob").status_code == 404
        assert b"token_revoked" in closed.read_to_end()
        connected(far)
        assert publish(far, ann) == REVOKED
        eventually(lambda: age() < 3, "it is up to date")
        assert publish(near, bob) == ACCEPTED
        assert b"data: x" in kept.read_until(b"data: x")
    door.close()


def test_revocations_survive_the_broker_and_a_node_without_it_serves_nobody(node, strict_broker):
    first = connected(node())
    ann, bob, cem = (
        token(sub=name, jti=name, throng=GRANTS) for name in ("ann", "bob", "cem")
    )
    revoke(first, "users/ann")
    revoke(first, "tokens/bob")
    strict_broker.kill()
    second = node()
    with Raw(second) as client:
        client.request("GET", PATH, bearer(ann))
        assert client.read_head().status == 503
    for path in ("/revocations", "/revocations/users/ann"):
        unknown = second.http.get(path)
        assert (unknown.status_code, unknown.json()["error"]) == (503, "unavailable")
    # A WebSocket follows nothing when it opens, so it need not wait for NATS.
    with ExitStack() as stack:
        of_ann, of_bob, of_cem = (
            stack.enter_context(RawWebSocket(second, f"/subscribe?token={one}", "throng.v1"))
            for one in (ann, bob, cem)
        )
        strict_broker.launch()
        # The second node need not know whether clients with newer tokens may come back.
        assert of_ann.read_close()[0] == 4100
        assert of_bob.read_close()[0] == 4004
        for one in (connected(first), connected(second)):
            assert publish(one, ann) == publish(one, bob) == REVOKED
        of_cem.send(frame(TEXT, b'{"type":"subscribe","channel":"rooms/a"}'))
        while b'"subscribed"' not in of_cem.read_message():
            pass


def test_a_change_that_nats_does_not_allow_is_refused(node, brokers):
    user = user_of_the_guide().replace('"$KV.throng-revocations.>", ', "")
    node.is_restricted = True
    refused = connected(node(brokers(f"authorization {{ users: [ {user} ] }}"))).http.post("/revocations/users/ann")
    assert (refused.status_code, refused.json()["error"]) == (507, "not_stored")


def test_a_bucket_that_is_lost_is_written_again_by_who_knows_it(node, strict_broker):
    first = connected(node())
    ann, bob = token(throng=GRANTS, jti="t1"), token(sub="bob", throng=GRANTS)
    revoke(first, "tokens/t1")
    revoke(first, "users/bob")
    strict_broker.kill()
    shutil.rmtree(strict_broker.directory / "store")
    strict_broker.launch()
    connected(first)
    first.says("the bucket of revocations in NATS has lost entries")
    assert (publish(first, ann), publish(first, bob)) == (REVOKED, REVOKED)
    second = connected(node())

    def knows_both():
        return (publish(second, ann), publish(second, bob)) == (REVOKED, REVOKED)

    eventually(knows_both, "what the first node knew")
