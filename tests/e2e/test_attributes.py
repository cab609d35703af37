"""Attributes of messages: an event, tags and a sender, by each way in and each way out."""

import json

import pytest
from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.application import NEW, OLD, Application
from support.durable import SETTINGS
from support.nats import connected
from support.raw import Raw
from support.server import Server, eventually, run_throng
from support.transports import subscribe
from websockets.sync.client import connect

# Names of the server's own events, of every EventSource, and those reserved for later ones.
RESERVED = [
    "answer",
    "binary",
    "closed",
    "conflated",
    "erased",
    "error",
    "expired",
    "expiring",
    "gap",
    "late",
]
RESERVED += ["numbers", "presence", "resumed", "welcome", "message", "open", "throng-", "throng-x"]

TAGS = {"symbol": "ACME", "n": 2}
HEADERS = {"Throng-Event": "price", "Throng-Tags": json.dumps(TAGS)}
FIELDS = {"event": "price", "tags": TAGS}


def by_header(server, channel, credential=None, **fields):
    """Publishes by a request of its own. Returns whether that was accepted, and the answer."""
    headers = credentials(credential)
    if "event" in fields:
        headers["Throng-Event"] = fields["event"].encode()
    if "tags" in fields:
        headers["Throng-Tags"] = json.dumps(fields["tags"])
    path = f"/channels/{channel}" + ("?volatile=true" if fields.get("volatile") else "")
    response = server.http.post(path, content=fields.get("data", "x"), headers=headers)
    return response.status_code < 300, response.json()


def by_batch(server, channel, credential=None, **fields):
    line = json.dumps({"channel": channel, "data": "x", **fields})
    response = server.http.post("/publish", content=line, headers=credentials(credential))
    assert response.status_code == 200, response.text
    return "error" not in response.json(), response.json()


def by_command(server, channel, credential=None, **fields):
    headers = credentials(credential)
    url = f"{server.ws}/subscribe"
    with connect(url, subprotocols=["throng.v1"], additional_headers=headers) as socket:
        receive(socket)
        socket.send(json.dumps({"type": "publish", "channel": channel, "data": "x", **fields}))
        answer = receive(socket)
    return answer["type"] == "published", {**answer, "error": answer.get("code")}


def credentials(credential):
    return bearer(credential) if credential else {}


WAYS_IN = {"header": by_header, "batch": by_batch, "command": by_command}


def receive(socket):
    return json.loads(socket.recv(TIMEOUT_SECONDS))


def shown(envelope):
    """The attributes in an envelope."""
    return {name: envelope[name] for name in ["event", "tags", "from"] if name in envelope}


class Commands:
    """A connection with `throng.v1` that follows one channel."""

    def __init__(self, server, channel, query=""):
        self.context = connect(
            f"{server.ws}/channels/{channel}?{query}", subprotocols=["throng.v1"]
        )

    def __enter__(self):
        self.socket = self.context.__enter__()
        return self

    def __exit__(self, *error):
        return self.context.__exit__(*error)

    def message(self):
        """The next message, as it came."""
        while True:
            frame = receive(self.socket)
            if isinstance(frame, list) or frame["type"] == "message":
                return frame


@pytest.mark.parametrize("volatile", [False, True])
@pytest.mark.parametrize("way", WAYS_IN)
def test_each_way_in_and_each_way_out(server, channel, way, volatile):
    path = f"/channels/{channel}"
    with (
        Commands(server, channel) as v1,
        Commands(server, channel, "envelope=compact") as compact,
        subscribe("stream", server, path) as stream,
        subscribe("sse", server, path) as events,
        subscribe("sse", server, path, envelope="true") as enveloped,
        connect(f"{server.ws}{path}") as plain,
    ):
        server.wait_for_connections(channel, 6)
        is_published, answer = WAYS_IN[way](
            server, channel, data="hello", volatile=volatile, **FIELDS
        )
        assert is_published, answer
        assert shown(v1.message()) == FIELDS
        [[_, _, data, rest]] = compact.message()[1:]
        assert (data, rest) == ("hello", FIELDS)
        assert shown(stream.next_line()) == FIELDS
        event = next(event for event in events.events if event.data)
        assert (event.event, event.data) == ("price", "hello")
        event = next(event for event in enveloped.events if event.data)
        assert (event.event, shown(json.loads(event.data))) == ("message", FIELDS)
        assert plain.recv(TIMEOUT_SECONDS) == "hello"
    page = server.history(channel)["messages"]
    assert [shown(envelope) for envelope in page] == ([] if volatile else [FIELDS])


def test_a_message_without_them_is_as_ever(server, channel):
    path = f"/channels/{channel}"
    with subscribe("sse", server, path) as events, subscribe("stream", server, path) as stream:
        server.wait_for_connections(channel, 2)
        by_header(server, channel, data="plain", tags={})
        event = next(event for event in events.events if event.data)
        assert (event.event, event.data) == ("message", "plain")
        assert set(stream.next_line()) == {"type", "channel", "id", "time", "data"}


def test_sse_has_the_event_on_a_line_of_its_own(server, channel):
    image = {"Content-Type": "image/png", "Throng-Event": "logo"}
    with Raw(server) as client:
        client.request("GET", f"/channels/{channel}", {"Accept": "text/event-stream"})
        server.wait_for_connections(channel, 1)
        server.publish(channel, "a\nb", **HEADERS)
        body = client.read_until(b"data: b\n\n")
        assert b"\nevent: price\ndata: a\ndata: b\n\n" in body
        server.publish(channel, b"\xff", **image)
        assert b"\nevent: binary\ndata: /w==\n\n" in client.read_until(b"/w==\n\n")
    envelope = server.history(channel)["messages"][-1]
    assert (envelope["event"], envelope["encoding"]) == ("logo", "base64")


def test_a_browser_chooses_a_handler_by_the_event(server, node, chromium, channel):
    child = node("events.mjs", chromium, server.url, channel)

    def got():
        return json.loads(child.stdout.readline())

    assert got() == {"type": "opened"}
    ids = [
        server.publish(channel, str(n), **headers)["id"] for n, headers in enumerate([HEADERS, {}])
    ]
    assert [got() for _ in ids] == [
        {"type": "price", "data": "0", "lastEventId": ids[0]},
        {"type": "message", "data": "1", "lastEventId": ids[1]},
    ]


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize(
    "fields, problem",
    [
        *[({"event": name}, "reserved") for name in RESERVED],
        ({"event": ""}, "1 to 128 bytes"),
        ({"event": "e" * 129}, "1 to 128 bytes"),
        ({"event": "a\tb"}, "without control characters"),
        ({"tags": {"a": {"b": 1}}}, "strings and finite numbers"),
        ({"tags": {"a": [1]}}, "strings and finite numbers"),
        ({"tags": {"a": True}}, "strings and finite numbers"),
        ({"tags": {"a": None}}, "strings and finite numbers"),
        ({"tags": [1]}, "JSON object"),
        ({"tags": "symbol"}, "JSON object"),
        ({"tags": {f"t{n}": n for n in range(17)}}, "more than 16 tags"),
        ({"tags": {"n" * 65: 1}}, "1 to 64 bytes"),
        ({"tags": {"": 1}}, "1 to 64 bytes"),
        ({"tags": {"a\nb": 1}}, "without control characters"),
        ({"tags": {"a": "t" * 257}}, "more than 256 bytes"),
        ({"tags": {f"t{n}": "t" * 250 for n in range(4)}}, "more than 1024 bytes"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_labels_beyond_the_rules_are_refused(server, channel, way, fields, problem):
    is_published, answer = WAYS_IN[way](server, channel, **fields)
    assert not is_published
    assert answer["error"] == ("bad_parameter" if way == "header" else "bad_request"), answer
    assert problem in answer["message"], answer
    # It is about what is malformed, by the name that its publisher has used.
    [field] = fields
    assert {"header": f"`Throng-{field.title()}`"}.get(way, f"`{field}`") in answer["message"]
    assert server.history(channel)["messages"] == []


def test_labels_at_their_limits_are_taken(server, channel):
    tags = {f"{'n' * 63}{n:x}": n for n in range(12)}
    most = {"a" * 64: "t" * 256, "é": "ü" * 128, **{f"t{n}": n / 2 for n in range(14)}}
    for way in WAYS_IN.values():
        for fields in [{"event": "ü" * 64}, {"tags": tags}, {"tags": most}]:
            is_published, answer = way(server, channel, **fields)
            assert is_published, answer
            assert shown(server.history(channel)["messages"][-1]) == fields


@pytest.mark.parametrize(
    "value", ['{"a":1e999}', '{"a":NaN}', '{"a":1,"a":2}', '{"a":"\\ud83d"}', "{"]
)
def test_tags_that_parsers_read_differently_are_refused(server, channel, value):
    response = server.http.post(f"/channels/{channel}", content="x", headers={"Throng-Tags": value})
    assert (response.status_code, response.json()["error"]) == (400, "bad_parameter")


def test_a_line_break_ends_the_header_and_not_the_check(server, channel):
    # What follows is a header of its own, so that no event has a line break.
    lines = [
        f"POST /channels/{channel} HTTP/1.1",
        "Host: localhost",
        "Content-Length: 1",
        "Connection: close",
    ]
    request = "".join(line + "\r\n" for line in lines)
    for value, status in [("a\r\nX: b", 201), ("a\nX: b", 201), ("a\rb", 400), ("a\0b", 400)]:
        with Raw(server) as client:
            client.send(f"{request}Throng-Event: {value}\r\n\r\nx".encode())
            response = client.read_response()
            assert response.status in (status, 400), (value, response.body)
    for envelope in server.history(channel)["messages"]:
        assert envelope["event"] == "a"


@pytest.mark.parametrize("name", ["Throng-Event", "Throng-Tags"])
def test_each_header_comes_once(server, channel, name):
    value = HEADERS[name]
    response = server.http.post(f"/channels/{channel}", content="x", headers=[(name, value)] * 2)
    assert (response.status_code, response.json()["error"]) == (400, "bad_request")
    assert "given twice" in response.json()["message"]


def test_no_client_can_say_who_publishes(server, channel):
    for way in ["batch", "command"]:
        is_published, answer = WAYS_IN[way](server, channel, **{"from": "ann"})
        assert not is_published
        assert (answer["error"], "`from` is unknown" in answer["message"]) == ("bad_request", True)
    # A tag of that name is a tag.
    assert by_header(server, channel, tags={"from": "ann"})[0]
    assert shown(server.history(channel)["messages"][0]) == {"tags": {"from": "ann"}}


def test_the_command_line_sets_them(tmp_path, server, channel):
    flags = ["--event", "price", "--tag", "symbol=ACME", "--tag", "n=2", "--tag", "zip=01234"]
    for more, lines in [
        (["hello"], None),
        (["--lines"], "one\ntwo\n"),
        (["--volatile", "gone"], None),
    ]:
        done = run_throng(
            "publish",
            "--server",
            server.url,
            channel,
            *flags,
            *more,
            directory=tmp_path,
            input=lines,
        )
        assert done.returncode == 0, done.stderr
    expected = {"event": "price", "tags": {"n": 2, "symbol": "ACME", "zip": "01234"}}
    assert [shown(envelope) for envelope in server.history(channel)["messages"]] == [expected] * 3
    refused = ["publish", "--server", server.url, channel, "--event", "gap", "hello"]
    done = run_throng(*refused, directory=tmp_path)
    assert done.returncode == 64 and "--event" in done.stderr and "reserved" in done.stderr


def test_they_survive_a_restart_and_are_exported(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    flags = ["--data", tmp_path / "data", "--drain-window", "0ms"]
    first = Server(tmp_path, *flags)
    first.publish("kept", "hello", **HEADERS)
    first.kill()
    second = Server(tmp_path, *flags)
    assert shown(second.history("kept")["messages"][0]) == FIELDS
    with subscribe("sse", second, "/channels/kept?history=1") as events:
        assert next(event.event for event in events.events if event.data) == "price"
    second.stop()
    done = run_throng("data", "export", tmp_path / "data", directory=tmp_path)
    assert FIELDS in [shown(json.loads(line)) for line in done.stdout.splitlines()], done.stderr


def test_two_nodes_show_the_same(broker, start_node, channel):
    here, there = start_node(broker), start_node(broker)
    connected(here)
    connected(there)
    with (
        Commands(there, channel) as v1,
        subscribe("sse", there, f"/channels/{channel}") as events,
    ):
        there.wait_for_connections(channel, 2)
        for volatile in [False, True]:
            assert by_header(here, channel, volatile=volatile, **FIELDS)[0]
            assert shown(v1.message()) == FIELDS
            assert next(event.event for event in events.events if event.data) == "price"
    for one in [here, there]:
        eventually(lambda one=one: one.history(channel)["messages"], "the message")
        assert shown(one.history(channel)["messages"][0]) == FIELDS


def test_a_callout_reads_them_and_replaces_the_body_alone(serve, tmp_path, channel):
    application = Application()
    table = f"[[callouts]]\nurl = '{application.url}'\nsecrets = ['{OLD}', '{NEW}']\n"
    (tmp_path / "throng.toml").write_text(f"{table}decides = ['publish']\nmax-content = '1KiB'\n")
    server = serve()
    application.decide = lambda request, _: {"allow": True, "data": "***"}
    for way in WAYS_IN.values():
        is_published, answer = way(server, channel, data="rude", **FIELDS)
        assert is_published, answer
    for request in application.requests:
        content = request["data"]["content"]
        assert content == {"bytes": 4, "data": "rude", **FIELDS}
    messages = server.history(channel)["messages"]
    assert [(envelope["data"], shown(envelope)) for envelope in messages] == [("***", FIELDS)] * 3
    application.close()


def test_they_stay_over_an_upgrade(upgradable, channel):
    server = upgradable()
    server.publish(channel, "hello", **HEADERS)
    with subscribe("sse", server, f"/channels/{channel}") as events:
        server.wait_for_connections(channel, 1)
        server.upgrade()
        assert shown(server.history(channel)["messages"][0]) == FIELDS
        server.publish(channel, "again", **HEADERS)
        assert next(event.event for event in events.events if event.data) == "price"


SENDERS = f"""
[[token-keys]]
secret = "{SECRET}"

[access]
subscribe = "anyone"
publish = "anyone"
history = "anyone"
presence = "anyone"

[[channels]]
match = "by-user*"
from = "user"

[[channels]]
match = "by-name*"
from = "name"

[[channels]]
users = "*"
from = "user"
"""


def senders(server, channel):
    """The sender of each message that the channel keeps."""
    return [envelope.get("from") for envelope in server.history(channel)["messages"]]


@pytest.fixture
def keyed(serve, tmp_path):
    """A server whose rules show senders, and a key of the application."""
    key, table = server_key(tmp_path, "app", "publish", "subscribe", "history")
    (tmp_path / "throng.toml").write_text(SENDERS + table)
    return serve(), key


ANN = {"sub": "ann", "name": "Ann Ä."}
SHOWN = {"by-user": "ann", "by-name": "Ann Ä.", "other": None}


@pytest.mark.parametrize("volatile", [False, True])
@pytest.mark.parametrize("way", WAYS_IN)
def test_the_rule_says_what_readers_see_of_a_sender(keyed, way, volatile):
    server, key = keyed
    publish = WAYS_IN[way]
    for channel, expected in SHOWN.items():
        with Commands(server, channel) as v1:
            server.wait_for_connections(channel, 1)
            for credential, sender in [(token(**ANN), expected), (key, None), (None, None)]:
                is_published, answer = publish(
                    server, channel, credential, volatile=volatile, **FIELDS
                )
                assert is_published, answer
                expected_fields = {**FIELDS, "from": sender} if sender else FIELDS
                assert shown(v1.message()) == expected_fields
        assert senders(server, channel) == ([] if volatile else [expected, None, None])


def test_a_plain_websocket_shows_its_user(keyed):
    server, key = keyed
    for channel, expected in SHOWN.items():
        for credential in [token(**ANN), key, None]:
            headers = credentials(credential)
            with connect(f"{server.ws}/channels/{channel}", additional_headers=headers) as socket:
                socket.send("hello")
                # Without envelopes there is nothing beside the body.
                assert socket.recv(TIMEOUT_SECONDS) == "hello"
        assert senders(server, channel) == [expected, None, None]


def test_inboxes_have_a_rule_of_their_own(keyed):
    server, _ = keyed
    server.publish_to_user("bob", "hello", **bearer(token(**ANN)))
    page = server.http.get("/users/bob/history").json()
    assert [envelope["from"] for envelope in page["messages"]] == ["ann"]


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "ann"},
        {"sub": "ann", "name": 7},
        {"sub": "ann", "name": ""},
        {"sub": "ann", "name": "a\nb"},
        {"sub": "ann", "name": "n" * 257},
        {"sub": None, "name": "Nobody"},
    ],
    ids=json.dumps,
)
def test_without_a_name_there_is_no_sender(keyed, way, claims):
    server, _ = keyed
    assert WAYS_IN[way](server, "by-name", token(**claims))[0]
    assert WAYS_IN[way](server, "by-user", token(**claims))[0]
    assert (senders(server, "by-name"), senders(server, "by-user")) == ([None], [claims["sub"]])


@pytest.mark.parametrize("way", ["batch", "command"])
def test_a_client_with_a_token_cannot_claim_another_sender(keyed, way):
    server, _ = keyed
    for field in ["from", "user_name", "sender"]:
        is_published, answer = WAYS_IN[way](server, "by-user", token(**ANN), **{field: "bob"})
        assert not is_published
        assert (answer["error"], "is unknown" in answer["message"]) == ("bad_request", True)
    # Tags say what they say, beside the sender; headers of others say nothing.
    assert by_header(server, "by-user", token(**ANN), tags={"from": "bob"})[0]
    headers = {**bearer(token(**ANN)), "From": "bob@example.org"}
    own = headers | {"Throng-From": "bob"}
    assert server.http.post("/channels/by-user", content="x", headers=own).status_code == 400
    server.publish("by-user", "x", **headers)
    assert senders(server, "by-user") == ["ann", "ann"]


def test_a_server_without_keys_shows_no_claimed_user(serve, tmp_path):
    (tmp_path / "throng.toml").write_text("[[channels]]\nmatch = '*'\nfrom = 'user'\n")
    server = serve()
    with connect(f"{server.ws}/channels/a?user=ann", subprotocols=["throng.v1"]) as socket:
        socket.send(json.dumps({"type": "publish", "channel": "a", "data": "x"}))
        eventually(lambda: senders(server, "a") == [None], "the message")


def test_a_rule_names_nothing_else(tmp_path):
    (tmp_path / "throng.toml").write_text("[[channels]]\nmatch = '*'\nfrom = 'email'\n")
    done = run_throng("check", "--config", "throng.toml", directory=tmp_path)
    assert done.returncode == 78, done.stdout
    assert "none" in done.stderr and "user" in done.stderr and "name" in done.stderr


def test_senders_stay_over_an_upgrade(upgradable, tmp_path):
    (tmp_path / "throng.toml").write_text(SENDERS)
    server = upgradable()
    headers = bearer(token(**ANN))
    with (
        connect(f"{server.ws}/channels/by-user", additional_headers=headers) as plain,
        connect(f"{server.ws}/channels/by-name", additional_headers=headers) as named,
        connect(
            f"{server.ws}/subscribe", subprotocols=["throng.v1"], additional_headers=headers
        ) as v1,
    ):
        receive(v1)
        for upgrades in range(2):
            if upgrades:
                server.upgrade()
            for socket in [plain, named]:
                socket.send("hello")
                # It also gets what the others have published.
                while socket.recv(TIMEOUT_SECONDS) != "hello":
                    pass
            for channel in ["by-user", "by-name"]:
                v1.send(json.dumps({"type": "publish", "channel": channel, "data": "x"}))
                assert receive(v1)["type"] == "published"
    assert senders(server, "by-user") == ["ann"] * 4
    assert senders(server, "by-name") == ["Ann Ä."] * 4


def test_a_client_that_signs_in_later_has_a_sender(keyed):
    server, _ = keyed
    headers = bearer(token(sub="ann", name="Ann"))
    url = f"{server.ws}/subscribe"
    with connect(url, subprotocols=["throng.v1"], additional_headers=headers) as socket:
        receive(socket)
        socket.send(json.dumps({"type": "auth", "token": token(sub="ann", name="Ann B.")}))
        assert receive(socket)["type"] == "authenticated"
        socket.send(json.dumps({"type": "publish", "channel": "by-name", "data": "x"}))
        assert receive(socket)["type"] == "published"
    assert senders(server, "by-name") == ["Ann B."]
