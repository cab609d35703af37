"""Presence events of several nodes: each tells who joins and leaves on all of them, and says when it cannot know."""

import json
from contextlib import ExitStack, contextmanager

from test_presence_events import Watcher, connect

from support import TIMEOUT_SECONDS
from support.doors import Door
from support.nats import connected, know_each_other
from support.transports import subscribe

EVENTS = ["--presence-events", "--presence-grace"]


class Follower:
    """A user who follows a channel and its presence events, and what it was told since the last look."""

    def __init__(self, node, channel, user):
        self.watcher = Watcher(node, "v1", channel, user=user)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watcher.stack.close()

    def until(self, *users, partial=False):
        """Reads until these users are there, and others may be missing or not. Returns who has left, and the event."""
        left = []
        while True:
            event = self.watcher.next()
            left += [each["user"] for each in event.get("left", [])]
            if (event["users"], event.get("partial", False)) == ([*users], partial):
                return left, event

    def until_connections(self, number, *users):
        """Reads until so many connections of these users are there. Returns who has left."""
        gone = []
        while True:
            left, event = self.until(*users)
            gone += left
            if event["connections"] == number:
                return gone


@contextmanager
def later_inbox(node, channel, user):
    """A connection that follows a channel as nobody, and then gets a user."""
    with connect(f"{node.ws}/channels/{channel}", subprotocols=["throng.v1"]) as socket:

        def become():
            socket.send(json.dumps({"type": "subscribe", "user": user, "ref": 1}))
            while json.loads(socket.recv(TIMEOUT_SECONDS)).get("ref") != 1:
                pass

        yield become


def test_who_joins_and_leaves_anywhere_is_told_everywhere(own_node, channel):
    three = know_each_other(*[own_node(*EVENTS, "1s") for _ in range(3)])
    with Follower(three[0], channel, "ann") as ann, Follower(three[1], channel, "bob") as bob, ExitStack() as stack:
        ann.until("ann", "bob")
        bob.until("ann", "bob")
        become = stack.enter_context(later_inbox(three[2], channel, "cy"))
        for one in (ann, bob):
            one.until_connections(3, "ann", "bob")
        become()
        for one in (ann, bob):
            assert one.until("ann", "bob", "cy")[0] == []
        # He is there still on another node.
        with subscribe("sse", three[0], f"/channels/{channel}", user="cy"):
            for one in (ann, bob):
                one.until_connections(4, "ann", "bob", "cy")
            stack.close()
            for one in (ann, bob):
                assert one.until_connections(3, "ann", "bob", "cy") == []
        for one in (ann, bob):
            assert one.until("ann", "bob")[0] == ["cy"]


def test_a_crowd_on_all_nodes_has_no_names(own_node, channel):
    both = know_each_other(*[own_node(*EVENTS, "1s", "--presence-max-named", 3) for _ in range(2)])
    with Follower(both[0], channel, "ann") as ann, ExitStack() as stack:
        ann.until("ann")
        for user in ("bob", "cy", "dee", "eve"):
            stack.enter_context(subscribe("sse", both[1], f"/channels/{channel}", user=user))
        event = ann.watcher.until(lambda event: event["connections"] == 5)[-1]
        assert (event["users"], event["more"]) == ([], True)
        stack.close()
        ann.until_connections(1, "ann")


def test_the_users_of_a_node_that_dies_leave_without_a_grace(own_node, channel):
    both = know_each_other(*[own_node(*EVENTS, "10min") for _ in range(2)])
    with Follower(both[0], channel, "ann") as ann, Follower(both[1], channel, "bob"):
        ann.until("ann", "bob")
        with subscribe("sse", both[1], f"/channels/{channel}", user="ann"):
            ann.until_connections(3, "ann", "bob")
            both[1].kill()
            left, event = ann.until("ann")
            assert (left, event["connections"]) == (["bob"], 1)


def test_a_node_that_is_cut_off_lets_nobody_leave_and_says_so(start_node, lasting_broker, tmp_path, channel):
    flags = ["--nats-prefix", tmp_path.name[-32:].replace(".", "-"), *EVENTS, "1s"]
    way = Door(lambda: lasting_broker.upstream)
    both = know_each_other(*[connected(start_node(broker, *flags)) for broker in (lasting_broker, way.url)])
    with (
        Follower(both[1], channel, "ann") as ann,
        Follower(both[0], channel, "cy") as cy,
        # While the node is cut off it can begin to follow nothing that nobody follows there.
        subscribe("sse", both[1], "/users/dee"),
        ExitStack() as stack,
    ):
        stack.enter_context(subscribe("sse", both[0], f"/channels/{channel}", user="bob"))
        for one in (ann, cy):
            one.until("ann", "bob", "cy")
        with way.cut_off():
            assert ann.until("ann", "bob", "cy", partial=True)[0] == []
            # For the other one it is gone.
            assert cy.until("bob", "cy")[0] == ["ann"]
            stack.close()
            assert cy.until("cy")[0] == ["bob"]
            with subscribe("sse", both[1], f"/channels/{channel}", user="dee"):
                assert ann.until("ann", "bob", "cy", "dee", partial=True)[0] == []
        assert sorted(ann.until_connections(2, "ann", "cy")) == ["bob", "dee"]
        cy.until_connections(2, "ann", "cy")
    way.close()
