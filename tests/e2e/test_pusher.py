"""The Pusher protocol: what stock clients and libraries see, what strangers get, and how its channels are those of the
native interface."""

import hashlib
import json
import threading
import time
from itertools import pairwise

import pusher
import pysher
import pytest

from conftest import QUICK
from support import TIMEOUT_SECONDS
from support.pusher import APP, PATH, PREFIX, Peer, call, settings, sign, signed_query
from support.raw import BINARY, CLOSE, Raw, RawWebSocket, frame, handshake_headers
from support.server import Server
from support.stock import Stock


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    """A server with the application, and the headers of a native key."""
    directory = tmp_path_factory.mktemp("pusher")
    headers = settings(directory)
    running = Server(directory, *QUICK)
    running.http.headers.update(headers)
    yield running
    running.stop()


@pytest.fixture(params=["node", "chromium"])
def stock(request, application, node):
    """`pusher-js` in Node or in a page, and the `pusher` library, as a script does what a test tells it."""
    place = "node" if request.param == "node" else request.getfixturevalue("chromium")
    return Stock(node("pusher.mjs", place, application.url, json.dumps(APP)))


def native(channel):
    return f"/channels/{(PREFIX + channel).replace('/', '%2F')}"


def test_stock_clients_follow_and_publish(application, stock, channel):
    room = f"presence-{channel}"
    stock.connect("ann", "ann")
    stock.connect("bob", "bob")
    stock.follow("ann", channel)
    assert stock.library("trigger", channel, "App\\Events\\Shipped", {"größe": 1}) == [200, {}]
    assert stock.wait("ann", "event", channel, "App\\Events\\Shipped") == [{"größe": 1}]
    assert stock.follow("ann", room) == [{"ann": {"name": "ann!"}}]
    both = {name: {"name": f"{name}!"} for name in ("ann", "bob")}
    assert stock.follow("bob", room) == [both]
    assert stock.wait("ann", "event", room, "pusher:member_added")[0]["id"] == "bob"
    stock.tell("bob", "trigger", room, "client-typing", {"t": [1]})
    assert stock.wait("ann", "event", room, "client-typing") == [{"t": [1]}]
    assert stock.wait("ann", "by", room) == ["bob"]
    channels = stock.library(
        "get",
        {
            "path": "/channels",
            "params": {"filter_by_prefix": room, "info": "user_count"},
        },
    )
    assert channels == [200, {"channels": {room: {"user_count": 2}}}]
    status, users = stock.library("get", {"path": f"/channels/{room}/users"})
    assert (status, sorted(user["id"] for user in users["users"])) == (
        200,
        ["ann", "bob"],
    )
    one = stock.library(
        "get",
        {
            "path": f"/channels/{room}",
            "params": {"info": "user_count,subscription_count"},
        },
    )
    assert one == [200, {"occupied": True, "user_count": 2, "subscription_count": 2}]
    stock.tell("bob", "disconnect")
    assert stock.wait("ann", "event", room, "pusher:member_removed")[0]["id"] == "bob"


def test_stock_clients_sign_in_and_are_terminated(application, stock, channel):
    stock.connect("ann", "ann")
    stock.tell("ann", "signin")
    # It may follow private channels before it is answered: those are its application's to sign.
    stock.follow("ann", f"private-{channel}")
    assert stock.library("sendToUser", "ann", "hey", {"n": 1})[0] == 200
    stock.wait("ann", "user", "hey")
    answer = application.http.post("/users/shop%2Fann", json={"n": 2}, headers={"Throng-Event": "native"})
    assert answer.status_code == 201
    assert stock.wait("ann", "user", "native") == [{"n": 2}]
    assert stock.library("terminateUserConnections", "ann")[0] == 200
    stock.wait("ann", "error", 4009)
    stock.wait("ann", "state", "disconnected")


def test_stock_clients_and_native_ones_share_channels(application, stock, channel):
    name = f"private-{channel}"
    stock.connect("ann", "ann")
    stock.follow("ann", name)
    with application.http.stream("GET", native(name) + "?envelope=true") as answer:
        lines = answer.iter_lines()
        assert application.http.post(native(name), json=[1], headers={"Throng-Event": "ev"}).status_code == 201
        assert json.loads(next(lines))["data"] == [1]
        assert stock.wait("ann", "event", name, "ev") == [[1]]
        stock.library("trigger", name, "back", "a text")
        message = json.loads(next(lines))
        assert (message["event"], message["data"], message["channel"]) == (
            "back",
            "a text",
            PREFIX + name,
        )
        stock.tell("ann", "trigger", name, "client-x", {"n": 1})
        message = json.loads(next(lines))
        assert (message["event"], message["data"], "id" in message) == (
            "client-x",
            {"n": 1},
            False,
        )
    history = application.http.get(native(name) + "/history").json()["messages"]
    assert [message["data"] for message in history] == [[1], "a text"], "nobody keeps what clients publish"


def test_stock_clients_are_told_of_caches(application, stock, channel):
    stock.connect("ann", "ann")
    name = f"private-cache-{channel}"
    stock.follow("ann", name)
    stock.wait("ann", "event", name, "pusher:cache_miss")
    stock.library("trigger", name, "ev", {"n": 1})
    stock.wait("ann", "event", name, "ev")
    stock.connect("bob", "bob")
    stock.follow("bob", name)
    assert stock.wait("bob", "event", name, "ev") == [{"n": 1}]
    found = stock.library("get", {"path": f"/channels/{name}", "params": {"info": "cache"}})[1]
    assert found["cache"]["data"] == '{"n":1}' and 0 < found["cache"]["ttl"] <= 3600


def test_stock_clients_come_back_after_a_restart(tmp_path, node):
    headers = settings(tmp_path)
    server = Server(tmp_path, *QUICK)
    stock = Stock(node("pusher.mjs", "node", server.url, json.dumps(APP)))
    stock.connect("ann", "ann")
    stock.follow("ann", "private-a")
    server.stop()
    # It comes back by itself, with a new signature of its new connection.
    again = Server(tmp_path, *QUICK, port=server.port)
    stock.wait("ann", "event", "private-a", "pusher:subscription_succeeded")
    answer = again.http.post(native("private-a"), content="after", headers=headers)
    assert answer.status_code == 201
    assert stock.wait("ann", "event", "private-a", "message") == ["after"]
    again.stop()


def test_an_upgrade_keeps_stock_clients(tmp_path, upgradable, node):
    headers = settings(tmp_path)
    server = upgradable()
    stock = Stock(node("pusher.mjs", "node", server.url, json.dumps(APP)))
    stock.connect("ann", "ann")
    stock.follow("ann", "presence-a")
    server.upgrade()
    assert server.http.post(native("presence-a"), content="after", headers=headers).status_code == 201
    assert stock.wait("ann", "event", "presence-a", "message") == ["after"]
    # The signature is of the connection's first name.
    stock.follow("ann", "private-b")
    assert ["ann", "state", "connecting"] not in stock.lines


def python_library(server):
    return pusher.Pusher(
        app_id=APP["id"],
        key=APP["key"],
        secret=APP["secret"],
        host=server.host,
        port=server.port,
        ssl=False,
    )


def test_the_library_for_python(application, channel):
    library = python_library(application)
    ann = Peer(application)
    ann.subscribe(f"presence-{channel}", {"user_id": 7, "user_info": {"n": 1}})
    ann.next()
    assert library.trigger(f"presence-{channel}", "ev", {"a": 1}) == {}
    assert json.loads(ann.next()["data"]) == {"a": 1}
    assert library.channels_info("presence-", ["user_count"])["channels"][f"presence-{channel}"] == {"user_count": 1}
    assert library.channel_info(f"presence-{channel}", ["user_count"]) == {
        "occupied": True,
        "user_count": 1,
    }
    assert library.users_info(f"presence-{channel}") == {"users": [{"id": "7"}]}
    batch = [{"channel": f"presence-{channel}", "name": "b", "data": "text"}]
    assert library.trigger_batch(batch) == {}
    assert ann.next()["data"] == "text"
    ann.sign_in("ann")
    assert ann.next()["event"] == "pusher:signin_success"
    library.send_to_user("ann", "hey", "x")
    ann.subscribe("#server-to-user-ann")
    assert ann.next()["event"] == "pusher_internal:subscription_succeeded"
    library.send_to_user("ann", "hey", "x")
    hey = ann.next()
    assert (hey["event"], hey["channel"], hey["data"]) == ("hey", "#server-to-user-ann", "x")
    library.terminate_user_connections("ann")
    assert ann.next()["data"]["code"] == 4009
    assert ann.read_close()[0] == 4009


def test_pysher(application, channel):
    got, connected = threading.Event(), threading.Event()
    heard = []
    client = pysher.Pusher(
        APP["key"],
        custom_host=application.host,
        port=application.port,
        secure=False,
        secret=APP["secret"],
        user_data={"user_id": "py"},
    )

    def begin(_):
        joined = client.subscribe(f"presence-{channel}")
        joined.bind("pusher_internal:subscription_succeeded", lambda data: connected.set())
        joined.bind("ev", lambda data: (heard.append(json.loads(data)), got.set()))

    client.connection.bind("pusher:connection_established", begin)
    client.connect()
    try:
        assert connected.wait(TIMEOUT_SECONDS)
        python_library(application).trigger(f"presence-{channel}", "ev", {"a": 1})
        assert got.wait(TIMEOUT_SECONDS) and heard == [{"a": 1}]
        client.connection.send_ping()
        assert call(application, "GET", f"/apps/1/channels/presence-{channel}/users")[1] == {"users": [{"id": "py"}]}
    finally:
        # Its thread does not end before its own timers.
        client.disconnect(timeout=0)


def test_names_of_connections_are_numbers_and_never_return(application):
    first, second = Peer(application), Peer(application)
    one, other = first.socket_id.split("."), second.socket_id.split(".")
    assert one[0] == other[0] and one[1] != other[1]
    # 64 random bits of this process: signatures of channels have no other bound.
    assert int(one[0]) > 2**40


def test_whoever_is_excluded_gets_nothing(application, channel):
    ann, bob = Peer(application), Peer(application)
    for peer in (ann, bob):
        peer.subscribe(channel)
        peer.next()
    body = {
        "name": "ev",
        "channels": [channel],
        "data": "x",
        "socket_id": ann.socket_id,
    }
    assert call(application, "POST", "/apps/1/events", body) == (200, {})
    assert bob.next()["data"] == "x"
    assert ann.is_well()


def test_requests_of_others_are_refused(application):
    path, body = "/apps/1/events", {"name": "a", "channels": ["refused"], "data": "x"}
    content = json.dumps(body).encode()
    good = signed_query("POST", path, content)
    peer = Peer(application)
    peer.subscribe("refused")
    peer.next()
    for status, method, target, query in [
        (401, "POST", path, ""),
        (401, "POST", path, good[:-1] + ("0" if good[-1] != "0" else "1")),
        (401, "POST", path, good.replace("auth_key=app-key", "auth_key=other")),
        (401, "POST", path, good + "&info=user_count"),
        (
            401,
            "POST",
            path,
            signed_query("POST", path, content, at=int(time.time()) - 601),
        ),
        (
            401,
            "POST",
            path,
            signed_query("POST", path, content, at=int(time.time()) + 620),
        ),
        (401, "POST", path, signed_query("POST", path, content + b" ")),
        (401, "POST", path, signed_query("POST", path)),
        (401, "POST", "/apps/1/batch_events", good),
        (
            404,
            "POST",
            "/apps/2/events",
            signed_query("POST", "/apps/2/events", content),
        ),
        (405, "GET", path, signed_query("GET", path)),
        (
            405,
            "POST",
            "/apps/1/channels",
            signed_query("POST", "/apps/1/channels", content),
        ),
        (404, "GET", "/apps/1/others", signed_query("GET", "/apps/1/others")),
        (401, "GET", "/apps/1/channels", signed_query("GET", "/apps/1/channels", body_md5="0" * 32)),
        (200, "GET", "/apps/1/channels", signed_query("GET", "/apps/1/channels", body_md5=hashlib.md5(b"").hexdigest())),
    ]:
        assert call(application, method, target, body if method == "POST" else None, query)[0] == status, (
            target,
            query,
        )
    assert peer.is_well(), "nothing was published"


def test_bodies_that_mean_nothing_are_refused(application):
    event = {"name": "a", "channels": ["x"], "data": "x"}
    for status, change in [
        (400, {"name": ""}),
        (400, {"name": "e" * 201}),
        (400, {"name": "pusher:error"}),
        (400, {"data": {"a": 1}}),
        (400, {"channels": []}),
        (400, {"channels": [f"c{at}" for at in range(101)]}),
        (400, {"channels": ["good", "bad/name"]}),
        (400, {"channels": ["x" * 201]}),
        (400, {"channels": ["é"]}),
        (400, {"channels": "x"}),
        (400, {"socket_id": "x"}),
        (400, {"info": "everything"}),
        (413, {"data": "x" * 65537}),
    ]:
        got = call(application, "POST", "/apps/1/events", {**event, **change})
        assert got[0] == status, (change, got)
    assert call(application, "POST", "/apps/1/events", [event])[0] == 400
    one = {"name": "a", "channel": "x", "data": "x"}
    assert call(application, "POST", "/apps/1/batch_events", {"batch": [one] * 11})[0] == 400
    assert call(application, "POST", "/apps/1/batch_events", {"batch": [one] * 10}) == (
        200,
        {},
    )
    for path, parameters in [
        ("/apps/1/channels", {"info": "user_count"}),
        ("/apps/1/channels/news", {"info": "user_count"}),
        ("/apps/1/channels/news", {"info": "cache"}),
        ("/apps/1/channels/news/users", {}),
        ("/apps/1/channels", {"filter_by_prefix": "*"}),
    ]:
        assert call(application, "GET", path, **parameters)[0] == 400, path
    # No name, but names begin so.
    assert call(application, "GET", "/apps/1/channels", filter_by_prefix=".")[0] == 200
    assert call(application, "GET", "/apps/1/channels/nobody") == (
        200,
        {"occupied": False},
    )


def test_all_channels_are_checked_before_the_first_is_written(application, channel):
    body = {"name": "a", "channels": [channel, "bad/name"], "data": "x"}
    assert call(application, "POST", "/apps/1/events", body)[0] == 400
    history = application.http.get(native(channel) + "/history").json()
    assert history["messages"] == []


def test_a_repeated_event_is_published_once(application, channel):
    body = json.dumps({"name": "a", "channels": [channel, f"{channel}-2"], "data": "x"}).encode()
    for _ in range(2):
        query = signed_query("POST", "/apps/1/events", body)
        answer = application.http.post(
            f"/apps/1/events?{query}",
            content=body,
            headers={"Idempotency-Key": channel},
        )
        assert answer.status_code == 200
    for name in (channel, f"{channel}-2"):
        assert len(application.http.get(native(name) + "/history").json()["messages"]) == 1


def test_a_public_key_opens_no_native_channel(application):
    peer = Peer(application)
    for name in ("other/news", "../news", "shop/news", "*", "", "a b"):
        peer.subscribe(name)
        assert peer.next()["event"] == "pusher:subscription_error"
        assert peer.next()["data"]["code"] == 4300
    peer.subscribe("news")
    peer.next()
    assert application.http.post("/channels/news", content="native").status_code == 201
    assert peer.is_well()
    bare = Raw(application)
    bare.request("GET", "/channels/shop%2Fnews", {"Authorization": "Bearer app-key"})
    assert bare.read_response().status == 401


def test_bad_frames_leave_the_connection(application):
    peer = Peer(application)
    for text in (
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"event":1}',
        '{"event":"news"}',
        '{"event":"pusher:subscribe"}',
    ):
        peer.send(frame(1, text))
        assert peer.next()["data"]["code"] == 4200, text
    peer.send(frame(BINARY, b"{}"))
    assert peer.next()["data"]["code"] == 4200
    peer.send(frame(1, '{"event":"pusher:later","data":{}}'))
    for ping in (
        '{"event":"pusher:ping","data":{}}',
        '{"event":"pusher:ping","data":""}',
        '{"event":"pusher:ping"}',
    ):
        peer.send(frame(1, ping))
        assert peer.next()["event"] == "pusher:pong"


def test_bad_signatures_are_refused_in_band(application):
    peer, other = Peer(application), Peer(application)
    large = json.dumps({"user_id": "a", "user_info": {"x": "y" * 2000}})
    for channel, more in [
        ("private-a", {"auth": ""}),
        ("private-a", {"auth": "app-key:" + "0" * 64}),
        ("private-a", {"auth": f"other:{sign(f'{peer.socket_id}:private-a')}"}),
        ("private-a", {"auth": f"app-key:{sign(f'{other.socket_id}:private-a')}"}),
        ("private-a", {"auth": f"app-key:{sign(f'{peer.socket_id}:private-b')}"}),
        (
            "presence-a",
            {
                "auth": f"app-key:{sign(f'{peer.socket_id}:presence-a')}",
                "channel_data": '{"user_id":"a"}',
            },
        ),
        ("#server-to-user-ann", {}),
    ]:
        peer.subscribe(channel, **more)
        refused = peer.next()
        assert refused["event"] == "pusher:subscription_error" and refused["channel"] == channel
        assert json.loads(refused["data"])["status"] == 401
        assert peer.next()["data"]["code"] == 4009
    # Signed as one text, and sent as another.
    signed = f"app-key:{sign(peer.socket_id + ':presence-a:' + json.dumps({'user_id': 'a'}))}"
    peer.subscribe("presence-a", auth=signed, channel_data='{"user_id":"a"}')
    assert peer.next()["event"] == "pusher:subscription_error" and peer.next()["data"]["code"] == 4009
    # Signed well, and no member.
    for data in ("{}", '{"user_id":""}', '{"user_id":null}', "[]", "ann", large):
        peer.subscribe("presence-a", data)
        assert peer.next()["event"] == "pusher:subscription_error", data
        assert peer.next()["data"]["code"] == 4300
    peer.say("pusher:signin", {"auth": "app-key:0", "user_data": '{"id":"ann"}'})
    assert peer.next()["data"]["code"] == 4009
    assert peer.is_well()


def test_a_megabyte_of_channel_data_ends_the_connection(application):
    peer = Peer(application)
    peer.subscribe("presence-a", json.dumps({"user_id": "a" * (1 << 20)}))
    assert peer.read_close()[0] == 1009


def test_clients_publish_where_they_may_and_not_too_often(application, channel):
    peer, other = Peer(application), Peer(application)
    for name in ("news", "private-encrypted-a", f"private-{channel}"):
        peer.say("client-a", {}, name)
        assert peer.next()["data"]["code"] == 4301, name
    for one in (peer, other):
        one.subscribe(f"private-{channel}")
        one.next()
    count = 1000
    for _ in range(count):
        peer.say("client-a", {}, f"private-{channel}")
    peer.say("pusher:ping")
    refused = 0
    while (got := peer.next())["event"] != "pusher:pong":
        assert got["data"]["code"] == 4301
        refused += 1
    # What is not refused arrives.
    for _ in range(count - refused):
        assert other.next()["event"] == "client-a"
    assert refused > 0 and other.is_well()


def test_a_connection_has_so_many_channels(application):
    peer = Peer(application)
    answers = []
    for at in range(140):
        peer.subscribe(f"c{at}")
        answers.append(peer.next()["event"])
        if answers[-1] == "pusher:subscription_error":
            assert peer.next()["data"]["code"] == 4300
    assert answers.count("pusher_internal:subscription_succeeded") == 128
    assert peer.is_well()


def test_a_list_has_ten_thousand_channels_and_no_more(tmp_path, serve):
    settings(tmp_path)
    server = serve("--max-channels-per-connection", 10_000)
    many, one = Peer(server), Peer(server)
    for begin in range(0, 10_000, 100):
        for number in range(begin, begin + 100):
            many.subscribe(f"many-{number}")
        for _ in range(100):
            assert many.next()["event"] == "pusher_internal:subscription_succeeded"
    status, answer = call(server, "GET", "/apps/1/channels")
    assert (status, len(answer["channels"])) == (200, 10_000)
    one.subscribe("one")
    one.next()
    assert call(server, "GET", "/apps/1/channels")[0] == 413
    assert call(server, "GET", "/apps/1/channels", filter_by_prefix="on") == (200, {"channels": {"one": {}}})
    assert many.is_well()


def test_an_unknown_key_is_closed_behind_the_upgrade(application):
    for path, code in (
        (PATH.replace("app-key", "other"), 4001),
        (PATH.replace("protocol=7", "protocol=3"), 4007),
    ):
        peer = Peer(application, path)
        assert peer.greeting["event"] == "pusher:error" and peer.greeting["data"]["code"] == code
        assert peer.read_close()[0] == code


def test_pages_of_any_origin_may_connect(application):
    raw = Raw(application)
    raw.request("GET", PATH, handshake_headers(Origin="https://shop.example"))
    assert raw.read_response().status == 101


def test_without_applications_there_is_no_such_path(tmp_path, server):
    raw = Raw(server)
    raw.request("GET", PATH, handshake_headers())
    assert raw.read_response().status == 404
    for method, path in (
        ("POST", "/apps/1/events"),
        ("GET", "/apps/1/channels"),
        ("GET", "/app/app-key"),
    ):
        assert server.http.request(method, path).status_code == 404


def test_a_drain_sends_stock_clients_to_come_back(tmp_path):
    settings(tmp_path)
    server = Server(tmp_path, *QUICK)
    peer = Peer(server)
    peer.subscribe("news")
    peer.next()
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert peer.next()["data"]["code"] == 4200
    assert peer.read_frame()[0] == CLOSE
    peer.close()
    stopping.join()


def test_a_plain_websocket_shows_that_the_protocol_is_another(application):
    """The path of the protocol is no channel of ours, and has no commands of `throng.v1`."""
    peer = RawWebSocket(application, PATH, "throng.v1")
    assert peer.response.header("sec-websocket-protocol") is None
    assert json.loads(peer.read_message())["event"] == "pusher:connection_established"


def test_a_member_that_shows_something_else_harms_nobody(application, channel):
    """The protocol has no word for that. So many members get a message in one call to the kernel."""
    name = f"presence-{channel}"
    everybody = [Peer(application) for _ in range(8)]
    for n, peer in enumerate(everybody):
        peer.subscribe(name, member={"user_id": f"u{n}", "user_info": {"n": 1}})
    # Each may be served by another worker.
    for peer in everybody:
        while peer.next()["event"] != "pusher_internal:subscription_succeeded":
            pass
    again = Peer(application)
    again.subscribe(name, member={"user_id": "u0", "user_info": {"n": 2}})
    expected = {"pusher_internal:member_added", "pusher:pong"}
    while again.next()["event"] != "pusher_internal:subscription_succeeded":
        pass
    body = {"name": "ev", "channels": [name], "data": "after"}
    assert call(application, "POST", "/apps/1/events", body) == (200, {})
    for peer in [*everybody, again]:
        while (event := peer.next())["event"] != "ev":
            assert event["event"] in expected, event
        assert event["data"] == "after"


def test_nobody_foresees_the_name_of_a_connection(application):
    peers = [Peer(application) for _ in range(3)]
    numbers = sorted(int(peer.socket_id.partition(".")[2]) for peer in peers)
    # Three numbers of 64 bits are so near each other in one of a million runs.
    assert min(b - a for a, b in pairwise(numbers)) > 1 << 42
