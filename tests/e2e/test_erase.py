"""Erasure of messages, histories and channels, over real sockets."""

import json
import re
import threading

import pytest
from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.durable import SETTINGS
from support.nats import connected
from support.raw import Raw
from support.server import Server, eventually
from support.transports import subscribe
from websockets.sync.client import connect


def erase(server, path, **options):
    return server.http.request("DELETE", path, **options)


def erased(server, path, **options):
    answer = erase(server, path, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer):
    return answer.status_code, answer.json()["error"]


def kept(server, channel):
    """The data of the messages in the history; of a notice, what it names."""
    messages = server.history(channel)["messages"]
    return [it["data"] if it["type"] == "message" else (it["erased"],) for it in messages]


@pytest.fixture(params=["memory", "disk", "nats"])
def place(request, tmp_path):
    """Starts servers that keep messages in each place."""
    if request.param == "nats":
        broker, start_node = map(request.getfixturevalue, ("broker", "start_node"))
        yield lambda: connected(start_node(broker))
        return
    flags = []
    if request.param == "disk":
        (tmp_path / "throng.toml").write_text(SETTINGS)
        flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    started = []

    def start():
        started.append(Server(tmp_path, *flags))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def test_a_message_is_gone_for_everybody_and_a_notice_comes(place):
    server = place()
    channel = "kept/one"
    ids = [server.publish(channel, text)["id"] for text in ("first", "secret", "third")]
    with subscribe("sse", server, f"/channels/kept%2Fone", since=ids[2]) as events:
        answer = erased(server, f"/channels/kept%2Fone/messages/{ids[1]}")
        assert answer["erased"] == ids[1]
        notice = next(event for event in events.events if event.event == "erased")
        assert (notice.id, json.loads(notice.data)) == (answer["id"], {"erased": ids[1]})
    assert kept(server, channel) == ["first", "third", (ids[1],)]
    # A client that was away, by each transport: it has no gap, and no body of the erased message.
    with connect(
        f"{server.ws}/channels/kept%2Fone?since={ids[0]}", subprotocols=["throng.v1"]
    ) as socket:
        frames = [json.loads(socket.recv(TIMEOUT_SECONDS)) for _ in range(4)]
    assert frames[1]["recovered"] is True
    assert (frames[2]["data"], frames[3]["type"]) == ("third", "erased")
    assert (frames[3]["id"], frames[3]["erased"]) == (answer["id"], ids[1])
    server.publish(channel, "next")
    with Raw(server) as client:
        client.request("GET", f"/channels/kept%2Fone?since={ids[0]}&wait=0")
        response = client.read_response()
    assert response.body == b"third\nnext", "bodies alone"
    assert response.header("throng-recovered") == "true"
    # Offsets that never were, that are erased, and those of another epoch.
    epoch, _, offset = ids[2].rpartition("-")
    unknown = (ids[1], f"{epoch}-0", f"{epoch}-{int(offset) + 99}", f"z{epoch[1:]}-{offset}")
    for gone in unknown:
        answer = erase(server, f"/channels/kept%2Fone/messages/{gone}")
        assert refused(answer) == (404, "not_found"), gone


def test_a_history_and_a_channel_are_gone(place):
    server = place()
    path, channel = "/channels/kept%2Fall", "kept/all"
    ids = [server.publish(channel, str(number))["id"] for number in range(5)]
    answer = erased(server, f"{path}/history")
    assert answer["erased_up_to"] == ids[-1]
    page = server.history(channel)
    assert [it["type"] for it in page["messages"]] == ["erased"]
    assert page["messages"][0]["erased_up_to"] == ids[-1]
    assert server.history(channel, after=ids[1])["recovered"] is False
    after = server.publish(channel, "after")["id"]
    assert int(after.rpartition("-")[2]) > int(ids[-1].rpartition("-")[2])
    with subscribe("sse", server, path, since=after) as events:
        answer = erased(server, path)
        assert answer["erased_up_to"] == after
        notice = next(event for event in events.events if event.event == "erased")
        assert json.loads(notice.data) == {"erased_up_to": after}
    assert server.history(channel)["messages"] == []
    anew = server.publish(channel, "anew")["id"]
    assert int(anew.rpartition("-")[2]) > int(after.rpartition("-")[2])


def test_an_erased_message_is_not_back_after_a_kill(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    server = Server(tmp_path, *flags)
    ids = [server.publish("kept", text)["id"] for text in ("first", "secret")]
    erased(server, f"/channels/kept/messages/{ids[1]}")
    server.kill()
    server = Server(tmp_path, *flags)
    assert kept(server, "kept") == ["first", (ids[1],)]
    server.stop()


BIG = "x" * 60_000


def test_a_slow_reader_never_gets_what_is_erased_meanwhile(upgradable, channel):
    server = upgradable("--max-lag-bytes", "64MiB")
    path = f"/channels/{channel}"
    with Raw(server, receive_buffer_bytes=4096) as slow:
        slow.request("GET", path, version="HTTP/1.0")
        slow.read_head()
        server.wait_for_connections(channel, 1)
        # Far more than the buffers of the kernel take, so that one of them is half written.
        ids = [server.publish(channel, f"<{number}>{BIG}")["id"] for number in range(100)]
        last = ids[-1]
        erased(server, f"{path}/messages/{last}")
        erased(server, f"{path}/messages/{ids[-2]}")
        server.upgrade()
        erased(server, f"{path}/messages/{ids[-3]}")
        server.publish(channel, "<end>\n")
        text = slow.read_until(b"<end>").decode()
    numbers = [int(number) for number in re.findall(r"<(\d+)>", text)]
    assert numbers == list(range(97)), "each one that is left, in order"
    for number, body in zip(numbers, text.split("\n")):
        assert body == f"<{number}>{BIG}", "a message that had begun is whole"


@pytest.mark.parametrize("is_durable", [False, True])
def test_what_is_erased_during_an_upgrade_stays_erased(upgradable, tmp_path, is_durable):
    flags = []
    if is_durable:
        (tmp_path / "throng.toml").write_text(SETTINGS)
        flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    server = upgradable(*flags)
    lines = [{"channel": "kept", "data": str(number)} for number in range(90)]
    ids = [answer["id"] for answer in server.publish_batch(lines)]
    gone, is_over = [], threading.Event()

    def erase_all():
        for id in ids[:60]:
            answer = erase(server, f"/channels/kept/messages/{id}")
            if answer.status_code == 200:
                gone.append(id)
            else:
                # While nobody serves.
                assert answer.status_code == 503, answer.text
            if is_over.is_set() and len(gone) > 5:
                return

    eraser = threading.Thread(target=erase_all)
    eraser.start()
    server.upgrade()
    is_over.set()
    eraser.join()
    page = server.history("kept", limit=1000)["messages"]
    left = [it["id"] for it in page if it["type"] == "message"]
    # Of one that was refused it is not known whether it is gone.
    assert not {*left} & {*gone} and left[-30:] == ids[60:]
    assert {it["erased"] for it in page if it["type"] == "erased"} >= {*gone}


def test_all_before_is_erased_while_it_is_delivered(serve, channel):
    server = serve("--max-lag-bytes", "64MiB", "--heartbeat", "1h")
    path = f"/channels/{channel}"
    with Raw(server, receive_buffer_bytes=4096) as slow:
        slow.request("GET", path, version="HTTP/1.0")
        slow.read_head()
        server.wait_for_connections(channel, 1)
        ids = [server.publish(channel, f"<{number}>{BIG}")["id"] for number in range(100)]
        assert erased(server, f"{path}/history")["erased_up_to"] == ids[-1]
        server.publish(channel, "<end>\n")
        text = slow.read_until(b"<end>").decode()
    numbers = [int(number) for number in re.findall(r"<(\d+)>", text)]
    assert numbers == list(range(len(numbers))) and len(numbers) < 97
    for number, body in zip(numbers, text.split("\n")):
        assert body == f"<{number}>{BIG}", "the one that was half written is whole"


def test_other_nodes_drop_it_and_a_cut_off_one_says_when(broker, start_node):
    near, far = connected(start_node(broker)), connected(start_node(broker))
    ids = [near.publish("news", text)["id"] for text in ("first", "secret", "third")]
    eventually(lambda: len(kept(far, "news")) == 3, "the messages there")
    with subscribe("sse", far, "/channels/news", since=ids[2]) as events:
        erased(near, f"/channels/news/messages/{ids[1]}")
        notice = next(event for event in events.events if event.event == "erased")
        assert json.loads(notice.data) == {"erased": ids[1]}
    assert kept(far, "news") == ["first", "third", (ids[1],)]
    with broker.cut_off():
        answer = erase(near, f"/channels/news/messages/{ids[0]}")
        assert answer.status_code in (503, 504), answer.text
        assert answer.status_code == 504 or "Retry-After" in answer.headers
    eventually(
        lambda: erase(far, f"/channels/news/messages/{ids[2]}").status_code == 200, "it is back"
    )
    # Until it is back as well, it reads nothing.
    connected(near)
    eventually(lambda: kept(near, "news")[0] == "first" and "third" not in kept(near, "news"), "it")


def test_only_a_right_of_its_own_erases(serve, tmp_path):
    keys = {}
    tables = ""
    for name, scopes in {
        "eraser": ["erase"],
        "other": ["publish", "history", "presence", "subscribe", "listing", "administration"],
    }.items():
        keys[name], table = server_key(tmp_path, name, *scopes)
        tables += table
    (tmp_path / "throng.toml").write_text(
        f"""
{tables}
[[token-keys]]
secret = "{SECRET}"

[[channels]]
match = "open*"
publish = "anyone"
history = "anyone"

[[channels]]
match = "free*"
publish = "anyone"
erase = "user"
"""
    )
    server = serve("--config", tmp_path / "throng.toml")
    everything = {name: ["*"] for name in ("subscribe", "publish", "history", "presence")}
    granted = token(throng={"erase": ["open*"]})
    ungranted = token(throng=everything)
    ids = [server.publish("open", str(number))["id"] for number in range(2)]
    for path in (f"/channels/open/messages/{ids[0]}", "/channels/open/history", "/channels/open"):
        assert refused(erase(server, path)) == (401, "unauthorized")
        for credential in (ungranted, keys["other"]):
            assert refused(erase(server, path, headers=bearer(credential))) == (403, "forbidden")
    first, second = (f"/channels/open/messages/{id}" for id in ids)
    assert erased(server, first, headers=bearer(granted))["erased"] == ids[0]
    assert erased(server, second, headers=bearer(keys["eraser"]))["erased"] == ids[1]
    server.publish("free", "x")
    assert erased(server, "/channels/free/history", headers=bearer(ungranted))["messages"] == 1


AUTHORS = f"""
[[token-keys]]
secret = "{SECRET}"

[[channels]]
match = "users"
from = "user"

[[channels]]
match = "names"
from = "name"
"""


def test_publishers_replace_their_own_messages_alone(serve, tmp_path):
    (tmp_path / "throng.toml").write_text(AUTHORS)
    server = serve("--config", tmp_path / "throng.toml")
    rights = {name: ["*"] for name in ("subscribe", "publish", "history", "erase")}
    by = {
        user: bearer(token(sub=user, name="Ann", throng=rights)) for user in ("ann", "bo")
    }
    moderator = bearer(token(sub="mo", throng={"publish": ["*"], "edit": ["*"]}))

    def put(channel, id, body, headers):
        path = f"/channels/{channel}/messages/{id}"
        return server.http.put(path, content=body, headers=headers)

    for channel in ("users", "names"):
        by_ann = server.publish(channel, "teh", **by["ann"])["id"]
        assert refused(put(channel, by_ann, "rude", by["bo"])) == (403, "forbidden")
        answer = put(channel, by_ann, "the", by["ann"])
        if channel == "names":
            assert refused(answer) == (403, "forbidden"), "a name proves nothing"
            continue
        assert answer.json()["replaces"] == by_ann
        again = put(channel, answer.json()["id"], "The", by["ann"]).json()
        page = server.http.get(f"/channels/{channel}/history", headers=by["bo"]).json()
        (message,) = page["messages"]
        assert (message["data"], message["from"], message["id"]) == ("The", "ann", again["id"])
        moderated = put(channel, again["id"], "***", moderator).json()
        assert moderated["replaces"] == again["id"]
        assert refused(put(channel, moderated["id"], "mine", by["ann"])) == (403, "forbidden")


def test_readers_get_the_new_message_in_place_of_the_old_one(place):
    server = place()
    ids = [server.publish("kept", text)["id"] for text in ("first", "old", "third")]
    with subscribe("sse", server, "/channels/kept", since=ids[2], envelope="true") as events:
        answer = server.http.put(f"/channels/kept/messages/{ids[1]}", content="new").json()
        assert answer["replaces"] == ids[1]
        event = next(event for event in events.events if "new" in event.data)
        assert json.loads(event.data)["replaces"] == ids[1]
    messages = server.history("kept")["messages"]
    assert [it["data"] for it in messages] == ["first", "third", "new"]
    assert messages[2]["replaces"] == ids[1]
    page = server.history("kept", after=ids[0])
    assert (page["recovered"], len(page["messages"])) == (True, 2)
    gone = server.http.put(f"/channels/kept/messages/{ids[1]}", content="late")
    assert refused(gone) == (404, "not_found")


def test_a_channel_that_keeps_nothing_says_so(serve, tmp_path):
    (tmp_path / "throng.toml").write_text("[[channels]]\nmatch = 'brief'\nmessages = 0\n")
    server = serve("--config", tmp_path / "throng.toml")
    id = server.publish("brief", "x")["id"]
    for path in (f"/channels/brief/messages/{id}", "/channels/brief/history", "/channels/brief"):
        answer = erase(server, path)
        assert refused(answer) == (404, "not_found")
        assert "keeps no messages" in answer.json()["message"]
