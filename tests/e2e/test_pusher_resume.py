"""Users of stock clients of the Pusher protocol go on after their connections were cut."""

import contextlib
import json
import threading

import httpx
import pytest

from conftest import QUICK
from support.pusher import APP, Peer, call, settings
from support.relay import Relay
from support.server import Server, eventually
from support.stock import Stock

KINDS = {"private": "private-", "presence": "presence-", "public": ""}


def rule(pattern, resume):
    return f'[[channels]]\nmatch = "shop/{pattern}"\nmessages = 10_000\nresume = "{resume}"\n'


# The first that matches applies.
RULES = [*(rule(f"{prefix}once-*", "at-most-once") for prefix in KINDS.values()), rule("*", "at-least-once")]
CUTS = 3
BETWEEN_CUTS = 60


def write_settings(directory, *more):
    """Writes the settings, with rules; returns headers that show a native key."""
    headers = settings(directory, *more)
    path = directory / "throng.toml"
    path.write_text("\n".join([path.read_text(), *RULES]))
    return headers


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    """A server with an application whose users go on. Its headers show a native key."""
    directory = tmp_path_factory.mktemp("resume")
    headers = write_settings(directory)
    running = Server(directory, *QUICK)
    running.http.headers.update(headers)
    yield running
    running.stop()


class Traffic(threading.Thread):
    """Publishes events with growing numbers, each to all of the channels, until it is stopped."""

    def __init__(self, server, *channels):
        super().__init__(daemon=True)
        self.server, self.channels = server, channels
        self.is_over, self.count = threading.Event(), 0
        self.start()

    def publish(self):
        self.count += 1
        event = {"name": "ev", "channels": self.channels, "data": json.dumps({"n": self.count})}
        key = {"Idempotency-Key": f"{self.channels[0]}-{self.count}"}

        def is_published():
            # An upgrade may end the connection.
            with contextlib.suppress(httpx.TransportError):
                return call(self.server, "POST", f"/apps/{APP['id']}/events", event, headers=key)[0] == 200
            return False

        eventually(is_published, "a publication")

    def run(self):
        while not self.is_over.wait(0.005):
            self.publish()

    def stop(self):
        """Publishes no more; returns the last number."""
        self.is_over.set()
        self.join()
        return self.count


def numbers_until(stock, channel, number):
    """The numbers that a client gets, up to this one or a later one."""
    got = []
    while not got or got[-1] < number:
        got.append(stock.wait("ann", "event", channel, "ev")[0]["n"])
    return got


def begin(server, stock, relay, channel, signs_in, user="ann"):
    """A client of a user that follows a channel through a relay."""
    options = {"wsHost": relay.host, "wsPort": relay.port}
    stock.tell(user, "connect", {"user": user, "options": options})
    stock.wait(user, "state", "connected")
    if signs_in:
        stock.tell(user, "signin")
    stock.follow(user, channel)
    if signs_in:
        # It follows its inbox once it has signed in.
        presence = f"/users/shop%2F{user}/presence"
        eventually(lambda: server.http.get(presence).json()["connections"] == 1, "a user")


def go_through_cuts(server, stock, relay, channel, between=lambda: None):
    """Cuts the connection in the midst of traffic; returns the numbers that came, and the last one."""
    traffic, got = Traffic(server, channel), []
    for _ in range(CUTS):
        got += numbers_until(stock, channel, (got or [0])[-1] + BETWEEN_CUTS)
        relay.cut()
        stock.wait("ann", "state", "connecting")
        between()
        stock.wait("ann", "event", channel, "pusher:subscription_succeeded")
    got += numbers_until(stock, channel, (got or [0])[-1] + BETWEEN_CUTS)
    traffic.stop()
    # The client is there, so that it gets this one, whatever it has missed.
    traffic.publish()
    return got + numbers_until(stock, channel, traffic.count), traffic.count


def first_times(numbers):
    """Each number once, where it has come first."""
    return list(dict.fromkeys(numbers))


def check(got, last, is_at_least_once):
    """Audits what a client got."""
    if is_at_least_once:
        assert first_times(got) == list(range(1, last + 1)), "nothing is lost, and all is in order"
    else:
        assert got == sorted(set(got)), "nothing comes twice"


@pytest.mark.parametrize("is_at_least_once", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cut_takes_comes_again_as_the_rule_says(application, node, channel, kind, is_at_least_once):
    name = f"{KINDS[kind]}{'all' if is_at_least_once else 'once'}-{channel}"
    stock = Stock(node("pusher.mjs", "node", application.url, json.dumps(APP)))
    with Relay(application) as relay:
        # On presence channels the user is the member.
        begin(application, stock, relay, name, signs_in=kind != "presence")
        got, last = go_through_cuts(application, stock, relay, name)
    check(got, last, is_at_least_once)


def test_a_user_goes_on_after_a_cut_while_the_server_is_upgraded(upgradable, node, tmp_path, channel):
    headers = write_settings(tmp_path)
    server = upgradable("--config", "throng.toml")
    server.http.headers.update(headers)
    name = f"private-{channel}"
    stock = Stock(node("pusher.mjs", "node", server.url, json.dumps(APP)))
    with Relay(server) as relay:
        begin(server, stock, relay, name, signs_in=True)
        # The new process knows where the user goes on.
        got, last = go_through_cuts(server, stock, relay, name, between=server.upgrade)
    check(got, last, True)


def test_another_user_gets_nothing_of_it(application, channel):
    name = f"private-{channel}"
    with Relay(application) as relay:
        ann = Peer(relay)
        ann.sign_in("ann")
        assert ann.next()["event"] == "pusher:signin_success"
        ann.subscribe(name)
        ann.next()
        relay.cut()
        bob = Peer(application)
        bob.say("pusher:signin", {"auth": "app-key:00", "user_data": '{"id":"ann"}'})
        assert bob.next()["data"]["code"] == 4009
        bob.sign_in("bob")
        bob.next()
        bob.subscribe(name)
        assert json.loads(bob.next()["data"]) == {}
        assert bob.is_well()


def test_a_user_who_is_terminated_goes_on_nowhere(application, channel):
    """Also if the connection had died before: the application wants the user gone."""
    name, user = f"private-{channel}", f"ann-{channel}"
    with Relay(application) as relay:
        first = Peer(relay)
        first.sign_in(user)
        assert first.next()["event"] == "pusher:signin_success"
        first.subscribe(name)
        first.next()
        relay.cut()
        presence = f"/channels/shop%2F{name}/presence"
        eventually(lambda: application.http.get(presence).json()["connections"] == 0, "the end of a connection")
        assert call(application, "POST", f"/apps/{APP['id']}/users/{user}/terminate_connections")[0] == 200
        event = {"name": "ev", "channels": [name], "data": "missed"}
        assert call(application, "POST", f"/apps/{APP['id']}/events", event)[0] == 200
        again = Peer(application)
        again.sign_in(user)
        assert again.next()["event"] == "pusher:signin_success"
        again.subscribe(name)
        assert json.loads(again.next()["data"]) == {}
        assert again.is_well()
