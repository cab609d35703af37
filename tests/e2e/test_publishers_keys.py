"""Idempotency keys are their publisher's own: of a user on all transports, of a server key, or nobody's."""

import json

import pytest

from support.access import SECRET, bearer, server_key, token
from support.raw import TEXT, Raw, frame, handshake_headers

GRANTS = {"subscribe": ["*"], "publish": ["*"]}


@pytest.fixture
def server(upgradable, tmp_path):
    key, table = server_key(tmp_path, "app", "publish", "subscribe", "history")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    running = upgradable()
    running.key = key
    return running


def post(server, credential, key, body="x"):
    """Publishes over HTTP. Returns the id, and whether it is a duplicate."""
    headers = bearer(credential) | {"Idempotency-Key": key}
    answer = server.http.post("/channels/room", headers=headers, content=body).json()
    return answer["id"], answer.get("duplicate", False)


def open_socket(server, credential):
    raw = Raw(server)
    headers = handshake_headers(Sec_WebSocket_Protocol="throng.v1", **bearer(credential))
    raw.request("GET", "/channels/other", headers)
    assert raw.read_response().status == 101
    return raw


def say(raw, key):
    """Publishes over `throng.v1`. Returns the same."""
    command = {"type": "publish", "channel": "room", "data": 1, "key": key}
    raw.send(frame(TEXT, json.dumps(command).encode()))
    while True:
        first, length = raw.read(2)
        if length == 126:
            length = int.from_bytes(raw.read(2), "big")
        answer = raw.read(length)
        if first & 0x0F == TEXT and json.loads(answer)["type"] == "published":
            answer = json.loads(answer)
            return answer["id"], answer.get("duplicate", False)


def test_a_key_that_a_client_has_guessed_keeps_nobody_else_from_publishing(server):
    mallory, ann = (token(sub=name, throng=GRANTS) for name in ("mallory", "ann"))
    nobody = token(sub=None, throng=GRANTS)
    ids = [post(server, who, "order-1") for who in (mallory, nobody, server.key, ann)]
    assert [is_duplicate for _, is_duplicate in ids] == [False] * 4
    line = json.dumps({"channel": "room", "data": "paid", "key": "order-2"})
    assert not post(server, mallory, "order-2")[1]
    for is_duplicate in (False, True):
        answer = server.http.post("/publish", headers=bearer(server.key), content=line + "\n")
        assert answer.json().get("duplicate", False) == is_duplicate


def test_a_retry_is_recognised_on_another_transport_with_a_renewed_token_and_after_an_upgrade(server):
    first = token(sub="ann", jti="1", throng=GRANTS)
    socket = open_socket(server, first)
    published, is_duplicate = say(socket, "k")
    assert not is_duplicate
    renewed = token(sub="ann", jti="2", throng=GRANTS)
    assert post(server, renewed, "k") == (published, True)
    assert say(open_socket(server, renewed), "k") == (published, True)
    by_key = post(server, server.key, "l")
    assert say(open_socket(server, server.key), "l") == (by_key[0], True)
    server.upgrade()
    assert say(socket, "k") == (published, True)
    assert post(server, renewed, "k") == (published, True)
    assert post(server, server.key, "k")[1] is False
