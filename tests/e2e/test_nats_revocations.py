"""Revocations over several nodes: made on one, they hold on all."""

import shutil

import pytest

from support.access import SECRET, bearer, now, server_key, token
from support.nats import Door, NatsServer, connected, start_node, user_of_the_guide
from support.raw import Raw
from support.server import eventually

GRANTS = {"subscribe": ["*"], "publish": ["*"]}
PATH = "/channels/rooms%2Fa"


@pytest.fixture
def broker(tmp_path):
    """A server whose users have the permissions of the guide, and no others."""
    server = NatsServer(tmp_path, f"authorization {{ users: [ {user_of_the_guide()} ] }}")
    (tmp_path / "login").write_text("node:s3")
    yield server
    server.stop()


@pytest.fixture
def node(tmp_path, broker):
    """Starts nodes with keys, which may not be connected yet, and stops them."""
    operator, table = server_key(tmp_path, "operator", "administration")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    started = []

    def begin(door=broker, *flags):
        started.append(start_node(tmp_path, door, "--nats-login", tmp_path / "login", *flags))
        started[-1].http.headers.update(bearer(operator))
        return started[-1]

    yield begin
    for server in started:
        assert "Permissions Violation" not in server.log()
        if server.process.poll() is None:
            server.stop()


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


def test_a_node_that_is_cut_off_catches_up_and_says_how_old_its_revocations_are(node, broker):
    door = Door(broker)
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
            refused = far.http.post("/revocations/users/bob")
            assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
            assert "Retry-After" in refused.headers
            assert far.http.get("/revocations/users/bob").status_code == 404
        assert b"token_revoked" in closed.read_to_end()
        connected(far)
        assert publish(far, ann) == REVOKED
        eventually(lambda: age() < 3, "it is up to date")
        assert publish(near, bob) == ACCEPTED
        assert b"data: x" in kept.read_until(b"data: x")
    door.stop()


def test_revocations_survive_the_broker_and_a_node_without_it_serves_nobody(node, broker):
    first = connected(node())
    ann = token(throng=GRANTS)
    revoke(first, "users/ann")
    broker.kill()
    second = node()
    with Raw(second) as client:
        client.request("GET", PATH, bearer(ann))
        assert client.read_head().status == 503
    broker.launch()
    connected(first)
    for one in (first, connected(second)):
        assert publish(one, ann) == REVOKED


def test_a_bucket_that_is_lost_is_written_again_by_who_knows_it(node, broker, tmp_path):
    first = connected(node())
    ann, bob = token(throng=GRANTS, jti="t1"), token(sub="bob", throng=GRANTS)
    revoke(first, "tokens/t1")
    revoke(first, "users/bob")
    broker.kill()
    shutil.rmtree(tmp_path / "store")
    broker.launch()
    connected(first)
    assert "the bucket of revocations in NATS has lost entries" in first.log()
    assert (publish(first, ann), publish(first, bob)) == (REVOKED, REVOKED)
    second = connected(node())

    def knows_both():
        return (publish(second, ann), publish(second, bob)) == (REVOKED, REVOKED)

    eventually(knows_both, "what the first node knew")
