"""Stock clients of the Pusher protocol while their connections are cut at random, in the midst of frames, before a proxy has
passed on what it took, while the server is upgraded, or moved to another node. With at-least-once nothing is lost, all is in
order, and only behind a subscription does anything come again; with at-most-once nothing comes twice.

`THRONG_STOCK_CUTS` says how often; `make test-long` cuts 300 times. A failure prints its seed, and `THRONG_STOCK_SEED` draws
the same faults again.
"""

import contextlib
import json
import os
import random
import time

import httpx
import pytest

from support.access import bearer, server_key
from support.nats import QUICK as QUICK_NODE
from support.nats import connected, know_each_other
from support.pusher import APP
from support.relay import Relay
from support.server import Server, eventually
from support.stock import Stock
from test_pusher_resume import Traffic, begin, write_settings

CUTS = int(os.environ.get("THRONG_STOCK_CUTS", "10"))
SEED = int(os.environ.get("THRONG_STOCK_SEED", time.time_ns() % 1_000_000))
SUCCEEDED = "pusher:subscription_succeeded"
# How many events a proxy may hold back, and bytes that pass before a cut.
HELD_MAX, PASSED_MAX = 30, 2_000
# Each user, with the name of the channel that the user follows.
CHANNELS = {
    "ann": "private-all-a",
    "bob": "presence-all-b",
    "eve": "private-once-c",
    "dan": "presence-once-d",
}


class Listener:
    """A client, and what has come since each of its subscriptions."""

    def __init__(self, stock, server, user):
        self.stock, self.user, self.channel = stock, user, CHANNELS[user]
        self.relay, self.runs = Relay(server), [[]]
        begin(server, stock, self.relay, self.channel, self.channel.startswith("private-"), user)

    def read(self):
        """Reads one thing that has come of the channel; whether it is a subscription."""
        event, data = self.stock.wait(self.user, "event", self.channel)
        if event == SUCCEEDED:
            self.runs.append([])
            return True
        if event == "ev":
            self.runs[-1].append(data["n"])
        return False

    def last(self):
        return next((run[-1] for run in reversed(self.runs) if run), 0)

    def read_until(self, number):
        while self.last() < number:
            self.read()

    def audit(self):
        """Checks the runs: gaps and repetitions are between them alone."""
        came = []
        for run in self.runs:
            assert run == list(range(run[0], run[0] + len(run))) if run else True, run
            came += run
        if "all" in self.channel:
            seen = list(dict.fromkeys(came))
            assert seen == list(range(1, seen[-1] + 1)), "nothing is lost, and all is in order"
        else:
            assert came == sorted(set(came)), "nothing comes twice"


class World:
    """Servers, the clients at them, and faults that are drawn from a seed."""

    def __init__(self, stock, nodes, may_upgrade):
        self.nodes, self.may_upgrade = nodes, may_upgrade
        self.clients = [Listener(stock, nodes[0], user) for user in CHANNELS]
        self.dice, self.happened = random.Random(SEED), []
        self.traffic = Traffic(nodes[0], *CHANNELS.values())

    def left(self):
        """How many subscriptions have left a place."""
        while True:
            # An upgrade may end the connection.
            with contextlib.suppress(httpx.TransportError):
                return sum(node.metrics()["throng_bookmarks_left_total"] for node in self.nodes)

    def strike(self):
        """Cuts some clients, and waits until they are back."""
        fault = self.dice.choice(["cut", "half a frame", "held back"])
        struck = self.dice.sample(self.clients, self.dice.randint(1, len(self.clients)))
        is_other = self.dice.random() < 0.5
        self.happened.append((fault, [client.user for client in struck], is_other))
        held, passed = self.dice.randint(1, HELD_MAX), self.dice.randint(1, PASSED_MAX)
        for client in struck:
            client.read_until(self.traffic.count)
        left = self.left()
        with contextlib.ExitStack() as stack:
            for client in struck:
                stack.enter_context(client.relay.closed())
            self.cut(fault, struck, held, passed)
            # A client that were back before the server knows would begin anew.
            eventually(lambda: self.left() == left + len(struck), lambda: f"{len(struck)} places, not {self.left() - left}")
            if is_other and self.may_upgrade:
                self.nodes[0].upgrade()
            if is_other and len(self.nodes) > 1:
                for client in struck:
                    node = self.dice.choice(self.nodes)
                    client.relay.target = (node.host, node.port)
        for client in struck:
            while not client.read():
                pass

    def cut(self, fault, struck, held, passed):
        if fault == "half a frame":
            for client in struck:
                client.relay.cut_within(passed)
        elif fault == "cut":
            for client in struck:
                client.relay.cut()
        else:
            with contextlib.ExitStack() as stack:
                for client in struck:
                    stack.enter_context(client.relay.paused())
                enough = self.traffic.count + held
                eventually(lambda: self.traffic.count >= enough, "events")
                for client in struck:
                    client.relay.cut()

    def run(self):
        try:
            for _ in range(CUTS):
                self.strike()
            self.traffic.stop()
            # All are there, so that they get this one.
            self.traffic.publish()
            for client in self.clients:
                client.read_until(self.traffic.count)
                client.audit()
        except BaseException:
            print(f"THRONG_STOCK_SEED={SEED} THRONG_STOCK_CUTS={CUTS}: {self.happened}")
            raise
        finally:
            self.traffic.is_over.set()
            for client in self.clients:
                client.relay.__exit__()
        runs = sum(len(client.runs) for client in self.clients)
        assert runs > len(self.clients)
        print(f"seed {SEED}: {self.traffic.count} events, {runs} subscriptions, {self.happened}")


@pytest.fixture
def key(tmp_path):
    """Settings with rules; the headers that show a native key."""
    key, table = server_key(tmp_path, "operator", "administration", "presence")
    write_settings(tmp_path, table)
    return bearer(key)


def test_stock_clients_through_cuts_and_upgrades(tmp_path, upgradable, node, key):
    server = upgradable("--config", "throng.toml")
    server.http.headers.update(key)
    stock = Stock(node("pusher.mjs", "node", server.url, json.dumps(APP)))
    World(stock, [server], may_upgrade=True).run()


def test_stock_clients_through_cuts_on_two_nodes(tmp_path, lasting_broker, node, key):
    prefix = tmp_path.name[-32:].replace(".", "-")
    flags = ["--config", "throng.toml", "--engine", "nats", "--nats", lasting_broker.url, "--nats-prefix", prefix]
    with contextlib.ExitStack() as stack:

        def start():
            server = Server(tmp_path, *QUICK_NODE, *flags)
            stack.callback(server.stop)
            server.http.headers.update(key)
            return connected(server)

        nodes = know_each_other(start(), start())
        stock = Stock(node("pusher.mjs", "node", nodes[0].url, json.dumps(APP)))
        World(stock, nodes, may_upgrade=False).run()
