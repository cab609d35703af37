"""Channels that are created, over real sockets: their type, the end of their time, and that they must exist."""

import json
import threading
import time

import pytest
from support import TIMEOUT_SECONDS
from support.durable import SETTINGS
from support.server import Server, eventually
from support.transports import subscribe
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.sync.client import connect

MUST_EXIST = """
[[channels]]
match = "made/*"
must-exist = true
"""

NOT_CREATED = (404, "not_created")


def create(server, channel, **properties):
    """The status of a creation, and what is created or the error."""
    answer = server.http.put(f"/channels/{channel}/creation", json=properties)
    found = answer.json()
    return answer.status_code, found.get("error", found)


def now_ms():
    return int(time.time() * 1000)


def refused(answer):
    return answer.status_code, answer.json()["error"]


def created(server, channel):
    """The creation of a channel; `None` without one."""
    answer = server.http.get(f"/channels/{channel}/creation")
    return answer.json() if answer.status_code == 200 else None


@pytest.fixture
def strict(serve, tmp_path):
    """A server with channels that have to be created."""
    file = tmp_path / "strict.toml"
    file.write_text(MUST_EXIST)
    return serve("--config", file)


def test_of_two_creators_one_is_first(serve, channel):
    server = serve()
    types = ["application/json", "text/plain"] * 8
    outcomes = {}

    def ask(number):
        outcomes[number] = create(server, channel, content_type=types[number])

    threads = [threading.Thread(target=ask, args=[number]) for number in range(len(types))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    winner = created(server, channel)["content_type"]
    statuses = {number: status for number, (status, _) in outcomes.items()}
    assert sorted(statuses.values()).count(201) == 1
    assert all((status == 409) == (types[number] != winner) for number, status in statuses.items())


def test_a_channel_that_must_exist_is_refused_over_every_transport(strict):
    path = "/channels/made%2Fa"
    http = strict.http
    assert refused(http.post(path, content="x")) == NOT_CREATED
    assert refused(http.post(f"{path}/end")) == NOT_CREATED
    for what in ("history", "state", "state/key", "presence"):
        assert refused(http.get(f"{path}/{what}")) == NOT_CREATED
    assert refused(http.get(path)) == NOT_CREATED
    assert refused(http.get(path, headers={"Accept": "text/event-stream"})) == NOT_CREATED
    assert refused(http.get(path, params={"wait": 1})) == NOT_CREATED
    assert refused(http.get("/subscribe", params={"channel": ["other", "made/a"]})) == NOT_CREATED
    assert http.head(path).status_code == 404
    lines = [{"channel": "made/a", "data": "x"}, {"channel": "other", "data": "x"}]
    ndjson = {"Content-Type": "application/x-ndjson"}
    answer = http.post("/publish", content="\n".join(map(json.dumps, lines)), headers=ndjson)
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert results[0]["error"] == "not_created" and "id" in results[1]
    with pytest.raises(InvalidStatus) as status:
        connect(f"{strict.ws}{path}")
    assert status.value.response.status_code == 404
    with connect(f"{strict.ws}/subscribe", subprotocols=["throng.v1"]) as socket:
        socket.recv(TIMEOUT_SECONDS)
        for number, command in enumerate([
            {"type": "subscribe", "channel": "made/a"},
            {"type": "publish", "channel": "made/a", "data": "x"},
            {"type": "history", "channel": "made/a"},
        ]):
            socket.send(json.dumps({**command, "ref": number}))
            assert json.loads(socket.recv(TIMEOUT_SECONDS))["code"] == "not_created"
        assert create(strict, "made%2Fa")[0] == 201
        socket.send(json.dumps({"type": "subscribe", "channel": "made/a"}))
        assert json.loads(socket.recv(TIMEOUT_SECONDS))["type"] == "subscribed"
        strict.publish("made/a", "x")
        assert json.loads(socket.recv(TIMEOUT_SECONDS))["data"] == "x"


def test_the_end_of_its_time_comes_to_subscribers_and_leaves_nothing(strict):
    path = "/channels/made%2Fa"
    assert create(strict, "made%2Fa", ttl=2)[0] == 201
    followers = [subscribe(transport, strict, path) for transport in ("sse", "websocket")]
    with followers[0] as events, followers[1] as socket:
        strict.publish("made/a", "in time")
        assert [event.event for event in events.events if event.data] == ["message", "ended"]
        assert socket.next()[1] == "in time"
        with pytest.raises(ConnectionClosedOK) as closed:
            socket.next()
        assert closed.value.rcvd.reason == "the channel has ended"
    eventually(lambda: refused(strict.http.post(path, content="late")) == NOT_CREATED, "the channel to be erased")
    assert create(strict, "made%2Fa", content_type="application/json")[0] == 201
    strict.publish("made/a", "[1]")
    assert [it["data"] for it in strict.history("made/a")["messages"]] == [[1]]


def test_publications_during_the_end_are_in_time_or_refused(strict):
    path = "/channels/made%2Fa"
    assert create(strict, "made%2Fa", expires_at=now_ms() + 2_000)[0] == 201
    with subscribe("sse", strict, path) as events:
        accepted = []
        while True:
            answer = strict.http.post(path, content=str(len(accepted)))
            if answer.status_code != 201:
                break
            accepted.append(str(len(accepted)))
        # It has ended, or is gone already.
        assert refused(answer) in [(409, "closed"), NOT_CREATED]
        told = [event for event in events.events if event.data]
    # What was accepted before the end has come before it, in order.
    assert [event.data for event in told[:-1]] == accepted
    assert told[-1].event == "ended"
    eventually(lambda: create(strict, "made%2Fa")[0] == 201, "the name to be free")
    strict.publish("made/a", "anew")
    assert [it["data"] for it in strict.history("made/a")["messages"]] == ["anew"]


def test_nobody_opens_a_channel_whose_time_is_over(strict):
    assert create(strict, "made%2Fa", expires_at=now_ms() + 1_000)[0] == 201
    while strict.http.post("/channels/made%2Fa", content="early").status_code == 201:
        pass
    # What would be published to it then would be erased with it.
    answers = set()
    while create(strict, "made%2Fa")[0] != 201:
        answers.add(strict.http.delete("/channels/made%2Fa/end").status_code)
    assert answers <= {404, 503}


def test_a_creation_outlives_upgrades_and_its_time_goes_on(upgradable, channel):
    server = upgradable()
    assert create(server, channel, content_type="application/json")[0] == 201
    assert create(server, "mortal", expires_at=now_ms() + 4_000)[0] == 201
    with subscribe("websocket", server, "/channels/mortal") as socket:
        server.upgrade()
        late = server.http.post(f"/channels/{channel}", content="no JSON")
        assert refused(late) == (415, "other_type")
        with pytest.raises(ConnectionClosedOK):
            socket.next()
    eventually(lambda: created(server, "mortal") is None, "the channel to go")
    assert create(server, channel, content_type="application/json")[0] == 200


def test_a_durable_creation_outlives_the_process(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    server = Server(tmp_path, *flags)
    assert create(server, "kept%2Fa", expires_at=now_ms() + 2_000)[0] == 201
    assert create(server, "kept%2Fb", content_type="application/json")[0] == 201
    server.publish("kept/b", "[1]")
    server.kill()
    server = Server(tmp_path, *flags)
    late = server.http.post("/channels/kept%2Fb", content="no JSON")
    assert refused(late) == (415, "other_type")
    assert create(server, "kept%2Fb", content_type="application/json")[0] == 200
    # Its name is free once it is erased, which is later than the end of its time.
    eventually(lambda: create(server, "kept%2Fa", content_type="text/plain")[0] == 201, "the name to be free")
    server.stop()


def test_a_plain_frame_of_another_type_closes_its_socket(serve, channel):
    server = serve()
    assert create(server, channel, content_type="application/json")[0] == 201
    with connect(f"{server.ws}/channels/{channel}") as socket:
        socket.send("[1]")
        assert socket.recv(TIMEOUT_SECONDS) == "[1]"
        socket.send("no JSON")
        with pytest.raises(ConnectionClosedError) as closed:
            socket.recv(TIMEOUT_SECONDS)
        assert closed.value.rcvd.code == 1008
