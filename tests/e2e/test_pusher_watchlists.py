"""Users of the Pusher protocol who are told which of those whom they watch are online."""

import contextlib
import json

import pytest

from conftest import QUICK
from support.access import server_key
from support.nats import connected, know_each_other
from support.pusher import APP, OTHER, OTHER_PREFIX, PREFIX, Peer, table
from support.server import Server
from support.stock import Stock
from support.upgrades import UpgradableServer, is_running


def write_settings(directory, *more):
    """Writes the settings of an application with watchlists, and of one without. Returns a server key."""
    key, keys = server_key(directory, "watch", "administration")
    tables = [*more, keys, table(APP, PREFIX, "watchlists = true"), table(OTHER, OTHER_PREFIX)]
    (directory / "throng.toml").write_text("\n".join(tables))
    return key


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    directory = tmp_path_factory.mktemp("watchlists")
    write_settings(directory)
    running = Server(directory, *QUICK, "--config", "throng.toml")
    yield running
    running.stop()


def sign_in(server, user, watchlist=None, app=APP):
    """A client that signs in and follows its inbox, and the users who were online."""
    peer = Peer(server, app=app)
    peer.sign_in(user, watchlist)
    assert peer.next()["event"] == "pusher:signin_success"
    peer.subscribe(f"#server-to-user-{user}")
    frame, online = peer.next(), []
    if frame["event"] == "pusher_internal:watchlist_events":
        online, frame = read(frame)["online"], peer.next()
    assert frame["event"] == "pusher_internal:subscription_succeeded", frame
    return peer, online


def read(frame):
    """The users of a watchlist event, by its name."""
    assert frame["event"] == "pusher_internal:watchlist_events" and "channel" not in frame, frame
    return {event["name"]: event["user_ids"] for event in json.loads(frame["data"])["events"]}


def wait_for(peer, name, user):
    """Waits until a client is told this; the same may come twice."""
    while read(peer.next()) != {name: [user]}:
        pass


@pytest.mark.parametrize("place", ["node", "chromium"])
def test_stock_clients_see_who_comes_and_goes(request, application, node, place, channel):
    where = "node" if place == "node" else request.getfixturevalue("chromium")
    ann, bob, cat = (f"{name}-{channel}" for name in ("ann", "bob", "cat"))
    stock = Stock(node("pusher.mjs", where, application.url, json.dumps(APP)))
    stock.connect("bob", bob)
    stock.tell("bob", "signin")
    stock.connect("ann", ann, watchlist=[bob, cat])
    stock.tell("ann", "signin")
    assert stock.wait("ann", "watchlist", "online") == [[bob]]
    stock.connect("cat", cat)
    stock.tell("cat", "signin")
    assert stock.wait("ann", "watchlist", "online") == [[cat]]
    stock.tell("bob", "disconnect")
    assert stock.wait("ann", "watchlist", "offline") == [[bob]]


def test_another_application_has_neither_watchlists_nor_these_users(application, channel):
    bob, _ = sign_in(application, f"bob-{channel}")
    other, online = sign_in(application, f"ann-{channel}", [f"bob-{channel}"], app=OTHER)
    assert (online, other.is_well()) == ([], True)
    bob.close()


def test_a_watchlist_goes_on_over_an_upgrade(tmp_path, upgradable):
    write_settings(tmp_path)
    server = upgradable("--config", "throng.toml")
    bob, _ = sign_in(server, "bob")
    ann, online = sign_in(server, "ann", ["bob", "cat"])
    assert online == ["bob"]
    server.upgrade()
    cat, _ = sign_in(server, "cat")
    wait_for(ann, "online", "cat")
    bob.close()
    wait_for(ann, "offline", "bob")
    cat.close()
    wait_for(ann, "offline", "cat")


@pytest.fixture
def nodes(tmp_path, lasting_broker):
    """Two nodes with the application."""
    key = write_settings(tmp_path)
    prefix = tmp_path.name[-32:].replace(".", "-")
    flags = ["--config", "throng.toml", "--engine", "nats", "--nats", lasting_broker.url, "--nats-prefix", prefix]
    with contextlib.ExitStack() as stack:

        def start():
            server = UpgradableServer(tmp_path, *QUICK, *flags)
            stack.callback(lambda: is_running(server.pid) and server.stop())
            server.http.headers["Authorization"] = f"Bearer {key}"
            return connected(server)

        yield know_each_other(start(), start())


def test_users_of_another_node_are_watched(nodes):
    one, other = nodes
    bob, _ = sign_in(other, "bob")
    # It may not have heard of bob yet.
    ann, online = sign_in(one, "ann", ["bob", "cat"])
    if not online:
        wait_for(ann, "online", "bob")
    cat, _ = sign_in(other, "cat")
    wait_for(ann, "online", "cat")
    again, _ = sign_in(one, "cat")
    cat.close()
    bob.close()
    wait_for(ann, "offline", "bob")
    again.close()
    wait_for(ann, "offline", "cat")


def test_users_of_a_node_that_dies_are_gone(nodes):
    one, other = nodes
    ann, _ = sign_in(one, "ann", ["bob"])
    bob, _ = sign_in(other, "bob")
    wait_for(ann, "online", "bob")
    other.kill()
    wait_for(ann, "offline", "bob")
    bob.close()


def test_who_leaves_another_node_during_an_upgrade_is_told(nodes):
    one, other = nodes
    ann, _ = sign_in(one, "ann", ["bob", "cat"])
    bob, _ = sign_in(other, "bob")
    wait_for(ann, "online", "bob")
    one.upgrade()
    bob.close()
    wait_for(ann, "offline", "bob")
    _cat, _ = sign_in(other, "cat")
    wait_for(ann, "online", "cat")
