"""Several applications of the Pusher protocol on one server: their keys, pages and limits, and reloads."""

import json
import queue
import signal

import pysher
import pytest

import pusher
from conftest import QUICK
from support.access import bearer, server_key, token
from support.pusher import APP, OTHER, OTHER_PREFIX, PREFIX, Peer, call, path_of, settings, table
from support.raw import Raw, RawWebSocket, handshake_headers
from support.server import TIMEOUT_SECONDS, Server, eventually

SUCCEEDED = "pusher_internal:subscription_succeeded"
GONE = "this server does not have the application any more"
OLDER = {**APP, "key": "older-key", "secret": "an-older-secret-of-24-bytes"}
OLDEST = {**APP, "key": "oldest-key", "secret": "the-oldest-secret"}
FURTHER = f"""
keys = [
  {{ key = "{OLDER["key"]}", secret = "{OLDER["secret"]}" }},
  {{ key = "{OLDEST["key"]}", secret = "{OLDEST["secret"]}", enabled = false }},
]"""


@pytest.fixture
def start(tmp_path):
    """Starts a server with tables of applications, and stops it after the test."""
    started = []

    def start(*tables):
        write(tmp_path, *tables)
        started.append(Server(tmp_path, *QUICK))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def write(directory, *tables):
    """Writes the settings, with a key for the native interface; returns its headers."""
    headers = settings(directory)
    text = (directory / "throng.toml").read_text()
    (directory / "throng.toml").write_text(text.split("[[apps]]")[0] + "\n".join(tables))
    return headers


def reload(server):
    """Has the settings read again; returns what the log says of it."""

    def lines():
        return [line for line in server.log().splitlines() if "SIGHUP: " in line]

    count = len(lines())
    server.signal(signal.SIGHUP)
    eventually(lambda: len(lines()) > count, "what came of the reload")
    return lines()[-1]


def event(channel, data="x"):
    return {"name": "ev", "channels": [channel], "data": data}


def status_of(server, app, **headers):
    """The status of a client's request to connect."""
    with Raw(server) as raw:
        raw.request("GET", path_of(app), handshake_headers(**headers))
        return raw.read_head().status


def test_each_enabled_key_signs(start):
    server = start(table(APP, PREFIX, FURTHER))
    newer, older = Peer(server), Peer(server, app=OLDER)
    newer.subscribe("private-a")
    older.subscribe("private-a")
    assert newer.next()["event"] == older.next()["event"] == SUCCEEDED
    # A page with the older key, whose application signs with the newer one.
    older.app = APP
    older.subscribe("private-b")
    assert older.next()["event"] == SUCCEEDED
    for app in (APP, OLDER):
        assert call(server, "POST", "/apps/1/events", event("private-a", app["key"]), app=app) == (200, {})
        assert newer.next()["data"] == older.next()["data"] == app["key"]
    assert call(server, "POST", "/apps/1/events", event("private-a"), app=OLDEST)[0] == 403
    gone = Peer(server, app=OLDEST)
    assert gone.greeting["data"]["code"] == 4003 and gone.read_close()[0] == 4003
    older.app = OLDEST
    older.subscribe("private-c")
    assert older.next()["event"] == "pusher:subscription_error"


def test_stock_libraries_use_an_older_key(start):
    server = start(table(APP, PREFIX, FURTHER))
    credentials = {"app_id": OLDER["id"], "key": OLDER["key"], "secret": OLDER["secret"]}
    library = pusher.Pusher(**credentials, host=server.host, port=server.port, ssl=False)
    peer = Peer(server)
    peer.subscribe("private-a")
    peer.next()
    assert library.trigger("private-a", "ev", {"n": 1}) == {}
    assert peer.next()["data"] == '{"n": 1}'
    client = pysher.Pusher(
        OLDER["key"], custom_host=server.host, port=server.port, secure=False, secret=OLDER["secret"]
    )
    client.connection.bind("pusher:connection_established", lambda _: client.subscribe("private-a"))
    client.connect()
    try:
        count = {"info": "subscription_count"}
        path = "/apps/1/channels/private-a"
        eventually(
            lambda: call(server, "GET", path, **count)[1]["subscription_count"] == 2, "the subscription"
        )
    finally:
        client.disconnect(timeout=0)


def test_pages_of_other_origins_are_closed_for_good(start):
    server = start(table(APP, PREFIX, 'allowed-origins = ["https://shop.example"]'), table(OTHER, OTHER_PREFIX))
    evil = {"Origin": "https://evil.example"}
    assert status_of(server, APP, Origin="https://shop.example") == 101
    assert status_of(server, OTHER, **evil) == 101
    assert Peer(server).is_well(), "a program has no origin"
    with Raw(server) as raw:
        raw.request("GET", path_of(APP), handshake_headers(**evil))
        assert raw.read_head().status == 101
        rest = raw.read_to_end()
        assert b"4009" in rest and b"pages of this origin" in rest


def test_connections_of_an_application_are_limited_before_the_upgrade(start, tmp_path):
    watch, watch_table = server_key(tmp_path, "watch", "administration")
    server = start(watch_table, table(APP, PREFIX, "max-connections = 2"), table(OTHER, OTHER_PREFIX))
    first, second = Peer(server), Peer(server)
    # pusher-js waits for 15 seconds and more after a status, and one after any close code that it
    # comes back after.
    assert status_of(server, APP) == 429
    assert Peer(server, app=OTHER).is_well()
    first.sign_in("ann")
    assert first.next()["event"] == "pusher:signin_success"
    first.close()
    eventually(lambda: status_of(server, APP) == 101, "a place is free")
    assert second.is_well()
    server.http.headers.update(bearer(watch))
    assert server.metrics()['throng_limits_refused_total{per="app",limit="connections"}'] >= 1


def test_subscriptions_and_messages_of_an_application_are_limited_in_band(start):
    limits = ("max-subscriptions = 2", "publish-rate = 3")
    server = start(table(APP, PREFIX, *limits), table(OTHER, OTHER_PREFIX))
    ann, other = Peer(server), Peer(server, app=OTHER)
    for channel in ("private-a", "private-b"):
        ann.subscribe(channel)
        assert ann.next()["event"] == SUCCEEDED
    ann.subscribe("private-c")
    assert ann.next()["event"] == "pusher:subscription_error"
    assert ann.next()["data"]["code"] == 4300
    other.subscribe("private-a")
    assert other.next()["event"] == SUCCEEDED
    batch = {"batch": [{"name": "ev", "channel": "private-a", "data": "x"}] * 3}
    assert call(server, "POST", "/apps/1/batch_events", batch) == (200, {})
    assert [ann.next()["event"] for _ in range(3)] == ["ev"] * 3
    for _ in range(2):
        assert call(server, "POST", "/apps/2/events", event("private-a"), app=OTHER)[0] == 200
    # The rate is that of requests and clients together, and it is a limit of this application.
    answers = [call(server, "POST", "/apps/1/batch_events", batch)[0] for _ in range(3)]
    assert 429 in answers
    ann.say("client-t", {}, "private-a")
    while (frame := ann.next())["event"] == "ev":
        pass
    assert (frame["event"], frame["data"]["code"]) == ("pusher:error", 4301)
    assert ann.is_well()


def test_a_reload_replaces_keys_and_closes_applications_that_are_gone(start, tmp_path):
    server = start(table(APP, PREFIX, "max-connections = 5"), table(OTHER, OTHER_PREFIX))
    stays, goes = Peer(server), Peer(server, app=OTHER)
    goes.subscribe("private-a")
    goes.next()
    assert call(server, "POST", "/apps/2/events", event("private-a", "kept"), app=OTHER)[0] == 200
    assert goes.next()["data"] == "kept"
    newer = {**APP, "key": "newest-key", "secret": "the-newest-secret"}
    older = f'keys = [{{ key = "{APP["key"]}", secret = "{APP["secret"]}" }}]'
    headers = write(tmp_path, table(newer, PREFIX, "max-connections = 1", older))
    said = reload(server)
    assert "applications" in said and "wait" not in said
    # It has not said a word, and is told nevertheless.
    assert goes.next()["data"] == {"code": 4009, "message": GONE}
    assert goes.read_close()[0] == 4009
    assert call(server, "GET", "/apps/2/channels", app=OTHER)[0] == 404
    stays.app = newer
    stays.subscribe("private-a")
    assert stays.next()["event"] == SUCCEEDED, "its socket id is what it was"
    assert status_of(server, newer) == 429
    # What it has published stays until it is erased.
    history = server.http.get("/channels/mall%2Fprivate-a/history", headers=headers)
    assert [message["data"] for message in history.json()["messages"]] == ["kept"]
    # The rules of a new one's channels are not there before an upgrade.
    another = {"id": "3", "key": "third", "secret": "a-secret-of-16-bytes"}
    write(tmp_path, table(newer, PREFIX, "max-connections = 1", older), table(another, "third/"))
    assert "waits for `throng upgrade` or a restart: apps (new)" in reload(server)
    assert call(server, "GET", "/apps/3/channels", app=another)[0] == 404
    assert stays.is_well()


def test_an_upgrade_closes_clients_of_applications_that_are_gone(upgradable, tmp_path):
    write(tmp_path, table(APP, PREFIX), table(OTHER, OTHER_PREFIX))
    server = upgradable()
    stays, goes = Peer(server), Peer(server, app=OTHER)
    for peer in (stays, goes):
        peer.subscribe("private-a")
        assert peer.next()["event"] == SUCCEEDED
    headers = write(tmp_path, table(APP, PREFIX))
    server.upgrade()
    # It says nothing, and would follow its channels for ever.
    assert goes.next()["data"] == {"code": 4009, "message": GONE}
    assert goes.read_close()[0] == 4009
    answer = server.http.post("/channels/shop%2Fprivate-a", content="after", headers=headers)
    assert answer.status_code == 201
    assert stays.next()["data"] == "after" and stays.is_well()


def test_clients_of_one_application_know_nothing_of_another(start):
    server = start(table(APP, PREFIX), table(OTHER, OTHER_PREFIX))
    shop, mall = Peer(server), Peer(server, app=OTHER)
    for peer in (shop, mall):
        peer.subscribe("presence-a", {"user_id": "ann"})
        assert '"count":1' in peer.next()["data"].replace(" ", ""), "the other ann is somebody else"
        peer.sign_in("ann")
        assert peer.next()["event"] == "pusher:signin_success"
        peer.subscribe("#server-to-user-ann")
        assert peer.next()["event"] == SUCCEEDED
    key = {"Idempotency-Key": "the same"}
    for app in (APP, OTHER):
        path = f"/apps/{app['id']}/events"
        body = event("presence-a", app["key"])
        assert call(server, "POST", path, body, app=app, headers=key) == (200, {})
    assert (shop.next()["data"], mall.next()["data"]) == (APP["key"], OTHER["key"])
    assert call(server, "POST", "/apps/1/events", event("#server-to-user-ann", "hey"))[0] == 200
    assert shop.next()["data"] == "hey"
    # Neither signature counts for the other, and a socket id of one excludes nobody of the other.
    excluding = {**event("presence-a"), "socket_id": shop.socket_id}
    assert call(server, "POST", "/apps/2/events", excluding, app=OTHER) == (200, {})
    assert mall.next()["data"] == "x"
    mixed = {**OTHER, "secret": APP["secret"]}
    assert call(server, "POST", "/apps/2/events", event("presence-a"), app=mixed)[0] == 401
    assert call(server, "GET", "/apps/2/channels", app=APP)[0] == 401
    mall.app = APP
    mall.subscribe("private-b")
    assert mall.next()["event"] == "pusher:subscription_error"
    mall.next()
    assert call(server, "POST", "/apps/2/users/ann/terminate_connections", {}, app=OTHER) == (200, {})
    assert mall.next()["data"]["code"] == 4009
    assert shop.is_well()


def test_a_presence_channel_has_as_many_members_as_its_application_says(start):
    server = start(table(APP, PREFIX, "max-members = 120"))
    peers = []
    for at in range(120):
        peers.append(Peer(server))
        peers[-1].subscribe("presence-r", {"user_id": str(at), "user_info": {"n": at}})
        succeeded = peers[-1].next()
        assert succeeded["event"] == SUCCEEDED, succeeded
    presence = json.loads(succeeded["data"])["presence"]
    assert presence["count"] == len(presence["ids"]) == len(presence["hash"]) == 120
    assert presence["hash"]["7"] == {"n": 7}
    late = Peer(server)
    late.subscribe("presence-r", {"user_id": "late"})
    refused = late.next()
    assert (refused["event"], json.loads(refused["data"])["status"]) == ("pusher:subscription_error", 507)
    # A stock client, which is a member already, has all of them in its list.
    client = pysher.Pusher(
        APP["key"],
        custom_host=server.host,
        port=server.port,
        secure=False,
        secret=APP["secret"],
        user_data={"user_id": "7", "user_info": {"n": 7}},
    )
    told = queue.Queue()

    def follow(_):
        channel = client.subscribe("presence-r")
        channel.bind(SUCCEEDED, told.put)

    client.connection.bind("pusher:connection_established", follow)
    client.connect()
    try:
        assert json.loads(told.get(timeout=TIMEOUT_SECONDS))["presence"]["count"] == 120
    finally:
        client.disconnect(timeout=0)


def test_log_lines_of_refusals_name_the_application(start):
    server = start(table(APP, PREFIX), table(OTHER, OTHER_PREFIX))
    for app in (APP, OTHER):
        thief = {**app, "secret": "not-the-secret-of-it"}
        path = f"/apps/{app['id']}/channels"
        assert call(server, "GET", path, app=thief)[0] == 401
        # One for each, within the same minute.
        assert f"app={app['id']}" in server.says("refused: ", count=int(app["id"]))


TOKEN_SECRETS = ["the shop signs tokens with this secret", "and the mall with another one, as long"]


def of_app(app, nth, **claims):
    """A native token that an application has signed, and the headers that show it."""
    return bearer(token(TOKEN_SECRETS[nth], headers={"kid": app["key"]}, **claims))


def with_tokens(app, prefix, nth, *more):
    return table(app, prefix, f'token-secret = "{TOKEN_SECRETS[nth]}"', *more)


def test_an_application_signs_tokens_for_its_own_names_only(start):
    server = start(with_tokens(APP, PREFIX, 0), with_tokens(OTHER, OTHER_PREFIX, 1))
    grants = {right: ["*"] for right in ("subscribe", "publish", "history")}
    ann = of_app(APP, 0, sub="shop/ann", throng=grants)
    peer = Peer(server)
    peer.subscribe("news")
    peer.next()
    published = server.http.post("/channels/shop%2Fnews", content="hello", headers=ann)
    assert published.status_code == 201, published.text
    assert peer.next()["data"] == "hello"
    history = server.http.get("/channels/shop%2Fnews/history", headers=ann).json()
    assert [message["data"] for message in history["messages"]] == ["hello"]
    assert server.http.get("/users/shop%2Fann?wait=0", headers=ann).status_code == 204
    for path in ("/channels/mall%2Fnews", "/channels/news", "/channels/shops%2Fnews", "/users/mall%2Fann"):
        assert server.http.get(path + "?wait=0", headers=ann).status_code == 403, path
    for headers, words in (
        (of_app(APP, 1, sub="shop/ann", throng=grants), "signature"),
        (of_app(OTHER, 0, sub="mall/ann", throng=grants), "signature"),
        (of_app(APP, 0, sub="mall/ann", throng=grants), "not one of its application"),
        (of_app(APP, 0, sub="ann", throng=grants), "not one of its application"),
        (bearer(token(TOKEN_SECRETS[0], sub="shop/ann", throng=grants)), "kid"),
    ):
        refused = server.http.get("/channels/shop%2Fnews?wait=0", headers=headers)
        assert refused.status_code == 401 and words in refused.text, refused.text


def test_clients_with_tokens_of_an_application_count_for_its_limits(start):
    server = start(with_tokens(APP, PREFIX, 0, "max-connections = 2"))
    headers = of_app(APP, 0, sub="shop/ann", throng={"subscribe": ["shop/*"]})
    first = Peer(server)
    with server.http.stream("GET", "/channels/shop%2Fa", headers=headers) as answer:
        assert answer.status_code == 200
        assert server.http.get("/channels/shop%2Fa?wait=0", headers=headers).status_code == 429
        assert status_of(server, APP) == 429
    eventually(lambda: status_of(server, APP) == 101, "a place is free")
    assert first.is_well()


def test_clients_with_tokens_go_with_their_application_and_stay_over_an_upgrade(upgradable, tmp_path):
    write(tmp_path, with_tokens(APP, PREFIX, 0), with_tokens(OTHER, OTHER_PREFIX, 1))
    server = upgradable("--config", "throng.toml")
    headers = [
        of_app(app, nth, sub=f"{prefix}ann", throng={"subscribe": ["*"]})
        for nth, (app, prefix) in enumerate([(APP, PREFIX), (OTHER, OTHER_PREFIX)])
    ]
    sockets = [
        RawWebSocket(server, f"/channels/{prefix[:-1]}%2Fa", headers=own)
        for prefix, own in zip((PREFIX, OTHER_PREFIX), headers, strict=True)
    ]
    server.upgrade()
    native = write(tmp_path, with_tokens(APP, PREFIX, 0))
    assert "applications" in reload(server)
    assert sockets[1].read_close()[0] == 4004
    published = server.http.post("/channels/shop%2Fa", content="still here", headers=native)
    assert published.status_code == 201, published.text
    assert sockets[0].read_frame()[1] == b"still here"
    assert server.http.get("/channels/mall%2Fa?wait=0", headers=headers[1]).status_code == 401


def test_an_application_has_so_many_channels_and_no_more(start, tmp_path):
    server = start(with_tokens(APP, PREFIX, 0, "max-channels = 2"), table(OTHER, OTHER_PREFIX))
    ann, bob, other = Peer(server), Peer(server), Peer(server, app=OTHER)
    for channel in ("a", "b"):
        ann.subscribe(channel)
        assert ann.next()["event"] == SUCCEEDED
        other.subscribe(channel)
        assert other.next()["event"] == SUCCEEDED
    bob.subscribe("c")
    refused = bob.next()
    assert (refused["event"], json.loads(refused["data"])["status"]) == ("pusher:subscription_error", 429)
    assert bob.next()["data"]["code"] == 4300
    native = of_app(APP, 0, sub="shop/ann", throng={"subscribe": ["*"]})
    assert server.http.get("/channels/shop%2Fc?wait=0", headers=native).status_code == 429
    assert server.http.get("/channels/shop%2Fb?wait=0", headers=native).status_code == 204
    # Those that are there are open to others, and make room when they are left.
    bob.subscribe("a")
    assert bob.next()["event"] == SUCCEEDED
    ann.say("pusher:unsubscribe", {"channel": "b"})
    assert ann.is_well()
    bob.subscribe("c")
    assert bob.next()["event"] == SUCCEEDED
    # A reload replaces the number, and names what it cannot replace.
    write(tmp_path, with_tokens(APP, PREFIX, 0, "max-channels = 3"), table(OTHER, OTHER_PREFIX))
    assert "wait" not in reload(server)
    bob.subscribe("d")
    assert bob.next()["event"] == SUCCEEDED
    bob.subscribe("e")
    assert bob.next()["event"] == "pusher:subscription_error"
    assert bob.next()["data"]["code"] == 4300
    more = ("max-channels = 9", "watchlists = true")
    write(tmp_path, with_tokens(APP, PREFIX, 0, *more), table(OTHER, OTHER_PREFIX, "max-channels = 9"))
    assert "restart: apps (max-channels), apps (watchlists)" in reload(server)
    bob.subscribe("e")
    assert bob.next()["event"] == "pusher:subscription_error", "all of it waits"
