"""Retries, fallback and silence, with scripted transports in virtual time."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from throng_client import AsyncThrong, Conflated, Gap, ThrongError
from throng_client import subscription as module
from throng_client.errors import Loss
from throng_client.link import Link
from throng_client.options import backoff
from throng_client.requests import Answer, NoAnswer
from throng_client.socket_link import SocketLink
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

CASES = json.loads((Path(__file__).parents[2] / "conformance" / "backoff.json").read_text())


class Peer:
    """What a scripted transport does: a list of events, a `Loss` or an error for each step."""

    def __init__(self, monkeypatch, *scripts, answers_health=True):
        self.scripts = list(scripts)
        self.attempts = []
        peer = self

        class ScriptedLink(Link):
            async def open(self):
                peer.attempts.append(self.host.exchange.now())
                self.script = list(peer.scripts.pop(0)) if peer.scripts else [None]
                return await self.receive()

            async def receive(self):
                step = self.script.pop(0) if self.script else None
                if isinstance(step, int | float):
                    await asyncio.sleep(step)
                    step = []
                if isinstance(step, Exception):
                    raise step
                if step is None:
                    await asyncio.Event().wait()
                self.is_open = True
                return step

            async def close(self):
                pass

            def suspect(self, since, until):
                pass

        self.transports = dict.fromkeys(module.LINKS, ScriptedLink)
        monkeypatch.setattr(module, "LINKS", self.transports)
        self.answers_health = answers_health

    async def send(self, request, timeout):
        if not self.answers_health:
            raise NoAnswer("nobody", was_sent=False)
        return Answer(200, {}, b"ok")


def client_of(peer, **options):
    client = AsyncThrong("http://127.0.0.1:1", random=options.pop("random", lambda: 1.0), **options)
    client._exchange.send = peer.send
    return client


def states_until(virtual, peer, states, seconds, **options):
    """Follows a channel for a time; collects its states."""

    async def run():
        async with client_of(peer, **options) as client:
            subscription = client.subscribe("a", on_state=states.append)
            try:
                async with asyncio.timeout(seconds):
                    async for _ in subscription:
                        pass
            except TimeoutError:
                pass
            return subscription.transport

    return virtual(run())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_backoff_is_that_of_all_clients(case):
    assert backoff(case["attempt"], lambda: case["random"]) * 1000 == case["delay_ms"]


def test_losses_back_off_with_full_jitter_up_to_the_cap(monkeypatch, virtual):
    peer = Peer(monkeypatch, *[[[], Loss("cut")]] * 9)
    states_until(virtual, peer, [], 150, transports=["websocket"])
    waits = [b - a for a, b in zip(peer.attempts, peer.attempts[1:], strict=False)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_stable_connection_starts_the_backoff_over(monkeypatch, virtual):
    peer = Peer(monkeypatch, *[[[], Loss("cut")]] * 3, [[], 10.0, Loss("cut")], [[], Loss("cut")])
    states_until(virtual, peer, [], 60, transports=["websocket"])
    waits = [b - a for a, b in zip(peer.attempts, peer.attempts[1:], strict=False)]
    assert waits == [0.5, 1, 2, 10.5, 1]


def test_the_time_of_the_server_is_obeyed_and_is_no_failure(monkeypatch, virtual):
    peer = Peer(monkeypatch, *[[Loss("full", hint=3.0)]] * 5)
    assert states_until(virtual, peer, [], 14) == "websocket"
    assert peer.attempts == [0, 3, 6, 9, 12]


@pytest.mark.parametrize(("answers", "transport"), [(True, "poll"), (False, "websocket")])
def test_it_falls_back_only_while_the_server_answers(monkeypatch, virtual, answers, transport):
    failing = [Loss("no upgrade here", is_unusable=True)]
    peer = Peer(monkeypatch, *[failing] * 4, answers_health=answers)
    assert states_until(virtual, peer, [], 10) == transport


def test_it_falls_back_after_two_failures(monkeypatch, virtual):
    peer = Peer(monkeypatch, *[[Loss("cut")]] * 3)
    assert states_until(virtual, peer, [], 10) == "sse"


def test_a_refusal_ends_the_iteration_with_its_error(monkeypatch, virtual):
    peer = Peer(monkeypatch, [ThrongError("forbidden", "not yours")])

    async def run():
        async with client_of(peer) as client:
            with pytest.raises(ThrongError) as caught:
                await anext(client.subscribe("a"))
            return caught.value.code

    assert virtual(run()) == "forbidden"


class Silence(Exception):
    """Not a loss: a mistake of the program."""


def test_a_mistake_of_the_program_ends_the_subscription_at_once(monkeypatch, virtual):
    peer = Peer(monkeypatch, [[], Silence("a bug")])

    async def run():
        async with client_of(peer) as client:
            subscription = client.subscribe("a")
            with pytest.raises(Silence):
                await anext(subscription)
            assert await anext(subscription, None) is None
            return len(peer.attempts)

    assert virtual(run()) == 1


def test_a_newer_token_is_used_at_once_and_a_refused_one_backs_off(monkeypatch, virtual):
    # Attempts that failed before have made the backoff long.
    away = [[Loss("cut")]] * 6
    expired = [[Loss("4002", is_answer=True, is_token=True)]]
    peer = Peer(monkeypatch, *away, *expired * 3, [[]], answers_health=False)
    states_until(virtual, peer, [], 200, transports=["websocket"])
    waits = [b - a for a, b in zip(peer.attempts, peer.attempts[1:], strict=False)]
    assert waits[:8] == [0.5, 1, 2, 4, 8, 16, 0, 30]


def test_a_token_that_was_accepted_meanwhile_is_replaced_at_once_again(monkeypatch, virtual):
    expires = [[], 60.0, Loss("4002", is_answer=True, is_token=True)]
    peer = Peer(monkeypatch, expires, expires, expires)
    states_until(virtual, peer, [], 170, transports=["sse"])
    assert peer.attempts == [0, 60, 120]


def test_a_lesser_transport_is_kept_until_a_better_one_is_open(monkeypatch, virtual):
    refused = [Loss("no upgrade here", is_unusable=True)]
    # Two attempts fail, SSE opens, one more fails in the background, and the next one opens.
    peer = Peer(monkeypatch, refused, refused, [[]], refused, [[]])
    states = []
    assert states_until(virtual, peer, states, 2_000) == "websocket"
    opened = [state.transport for state in states if state.name == "open"]
    assert opened == ["sse", "websocket"]
    after = states[[state.transport for state in states].index("sse") :]
    assert "waiting" not in [state.name for state in after[1:]], "nothing was lost meanwhile"
    assert len(peer.attempts) == 5 and peer.attempts[3] - peer.attempts[2] > 60


def test_a_better_transport_that_dies_leads_back_to_the_lesser_one(monkeypatch, virtual):
    refused = [Loss("no upgrade here", is_unusable=True)]
    peer = Peer(monkeypatch, refused, refused, [[]], [[], 0.3, Loss("cut")], [[]])
    states = []
    assert states_until(virtual, peer, states, 280) == "sse"
    opened = [state.transport for state in states if state.name == "open"]
    assert opened == ["sse", "websocket", "sse"]


def test_cancelled_iteration_keeps_the_better_link(monkeypatch, virtual):
    refused = [Loss("no upgrade here", is_unusable=True)]
    peer = Peer(monkeypatch, refused, refused, [[]], [[]])

    async def run():
        async with client_of(peer) as client:
            subscription = client.subscribe("a")
            for _ in range(100):
                task = asyncio.ensure_future(anext(subscription))
                await asyncio.sleep(7)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            return subscription.transport, len(asyncio.all_tasks())

    assert virtual(run()) == ("websocket", 1)


def test_callbacks_must_be_functions():
    async def later(state):
        pass

    async def run():
        async with AsyncThrong("http://127.0.0.1:1") as client:
            with pytest.raises(TypeError, match="on_gap must be a function"):
                client.subscribe("a", on_gap=5)
            with pytest.raises(TypeError, match="on_state must not be asynchronous"):
                client.subscribe("a", on_state=later)

    asyncio.run(run())


def test_a_thousand_clients_do_not_come_in_waves(monkeypatch, virtual):
    dice = random.Random(1)
    peer = Peer(monkeypatch, *[[Loss("cut")]] * 4_000, answers_health=False)

    async def follow(client):
        async for _ in client.subscribe("a"):
            pass

    async def run():
        client = client_of(peer, random=dice.random)
        tasks = [asyncio.create_task(follow(client)) for _ in range(1_000)]
        await asyncio.sleep(60)
        for task in tasks:
            task.cancel()

    virtual(run())
    retries = Counter(int(at / 0.05) for at in sorted(peer.attempts)[1_000:])
    # If 1,000 clients spread evenly over the first half second, 100 come in each 50 ms.
    assert len(peer.attempts) > 4_000 and max(retries.values()) < 200


class FakeSocket:
    """A peer of a WebSocket, which says only what the test says."""

    def __init__(self, loop):
        self.frames = asyncio.Queue()
        self.sent = []
        self.loop = loop
        self.transport = self
        self.subprotocol = "throng.v1"
        welcome = {"type": "welcome", "connection": "c", "heartbeat": 25, "channels_max": 128}
        self.say(welcome)

    def say(self, frame):
        self.frames.put_nowait(frame)

    async def recv(self, decode):
        frame = await self.frames.get()
        if isinstance(frame, Exception):
            raise frame
        return json.dumps(frame)

    async def send(self, text):
        frame = json.loads(text)
        self.sent.append((self.loop.time(), frame))
        if frame["type"] == "subscribe":
            answer = {"type": "subscribed", "channel": "a", "id": "e-0", "number": 7}
            self.say({**answer, "ref": frame["ref"]})

    def abort(self):
        pass

    async def close(self):
        pass


def follow_silent(virtual, monkeypatch, act):
    """Follows a channel on a silent peer; returns its states by time, and the peer."""
    times = []
    peers = []

    async def run():
        loop = asyncio.get_running_loop()

        async def connect(self):
            peers.append(FakeSocket(loop))
            return peers[-1]

        monkeypatch.setattr(SocketLink, "_connect", connect)
        async with AsyncThrong("http://127.0.0.1:1", random=lambda: 0.9) as client:

            def note(state):
                times.append((loop.time(), state.name))

            subscription = client.subscribe("a", on_state=note)
            task = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0)
            await act(client, peers)
            task.cancel()

    virtual(run())
    return times, peers[0].sent


def test_a_silent_server_is_pinged_and_given_up_within_30_seconds(monkeypatch, virtual):
    async def act(client, peers):
        await asyncio.sleep(30.2)

    times, sent = follow_silent(virtual, monkeypatch, act)
    assert [name for _, name in times[:3]] == ["connecting", "open", "waiting"]
    assert times[2][0] == 30
    assert [(at, frame["type"]) for at, frame in sent if frame["type"] == "ping"] == [(28, "ping")]


def test_heartbeats_make_pings_unnecessary(monkeypatch, virtual):
    async def act(client, peers):
        for _ in range(10):
            await asyncio.sleep(25.5)
            peers[0].say({"type": "heartbeat"})
        await asyncio.sleep(1)

    times, sent = follow_silent(virtual, monkeypatch, act)
    assert [name for _, name in times[:2]] == ["connecting", "open"]
    assert times[2:] == [(256, "closed")]
    assert all(frame["type"] != "ping" for _, frame in sent)


@pytest.mark.parametrize("has_pong", [True, False])
def test_an_unanswered_request_asks_for_a_sign_of_life(monkeypatch, virtual, has_pong):
    async def act(client, peers):
        async def hang(request, timeout):
            await asyncio.sleep(timeout)
            raise NoAnswer("late", was_sent=True, is_late=True)

        client._exchange.send = hang
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_later(
            5.1, lambda: has_pong and peers[0].say({"type": "pong"})
        )
        with pytest.raises(ThrongError):
            await client.presence("a")
        await asyncio.sleep(0.1)

    times, sent = follow_silent(virtual, monkeypatch, act)
    pings = [at for at, frame in sent if frame["type"] == "ping"]
    assert pings == [6]
    lost = [at for at, name in times if name == "waiting"]
    assert lost == ([] if has_pong else [11])


@pytest.mark.parametrize(
    ("code", "reason", "end"),
    [
        (1002, "", 0.45),
        (1002, "bad_request: no such frame", "bad_request"),
        (1008, "", 0.45),
        (1008, "policy: says the proxy", 0.45),
        (1008, "forbidden: not yours", "forbidden"),
        (4002, "expired", "token_expired"),
        (4003, "", "unauthorized"),
        (4004, "", "token_revoked"),
        (4005, "", "forbidden"),
        (4500, "bye", "disconnected"),
        (1006, "", 0.45),
        (1012, "reconnect in 1500 ms", 1.5),
        (1013, "busy; reconnect in 2500 ms", 2.5),
        (4000, "", 0.45),
        (4001, "", 0.45),
        (4006, "reconnect in 3000 ms", 3.0),
        (4100, "", 0.45),
    ],
)
def test_each_close_code(monkeypatch, virtual, code, reason, end):
    found = []

    async def run():
        loop = asyncio.get_running_loop()
        peers = []

        async def connect(self):
            peers.append(FakeSocket(loop))
            return peers[-1]

        monkeypatch.setattr(SocketLink, "_connect", connect)
        async with AsyncThrong("http://127.0.0.1:1", "token", random=lambda: 0.9) as client:
            subscription = client.subscribe("a", on_state=found.append)
            task = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0.1)
            closed = Close(code, reason) if code != 1006 else None
            peers[0].say(ConnectionClosedError(closed, None, None))
            await asyncio.sleep(0.01)
            if task.done():
                return task.exception().code
            task.cancel()
            return found[-1].delay

    assert virtual(run()) == end


def test_a_gap_is_told_before_the_next_message_and_doubles_are_dropped(monkeypatch, virtual):
    heard = []

    async def run():
        loop = asyncio.get_running_loop()
        socket = FakeSocket(loop)

        async def connect(self):
            return socket

        monkeypatch.setattr(SocketLink, "_connect", connect)

        def message(id):
            return {"type": "message", "channel": "a", "id": id, "time": 1, "data": id}

        async with AsyncThrong("http://127.0.0.1:1") as client:
            subscription = client.subscribe("a", since="d-9", on_gap=heard.append)
            for id in ["e-1", "e-2", "e-2", "e-1", "e-3"]:
                loop.call_later(1, socket.say, message(id))
            gap = {"type": "gap", "channel": "a", "missed": 4, "id": "e-7"}
            loop.call_later(2, socket.say, gap)
            loop.call_later(3, socket.say, message("e-8"))
            async for each in subscription:
                heard.append(each.id)
                if each.id == "e-8":
                    return subscription.position

    assert virtual(run()) == {"a": "e-8"}
    assert heard == ["e-1", "e-2", "e-3", Gap("a", "e-7", 4), "e-8"]


def test_a_frame_is_acknowledged_once_the_reader_is_done_with_it(monkeypatch, virtual):
    heard = []

    async def run():
        loop = asyncio.get_running_loop()
        socket = FakeSocket(loop)

        async def connect(self):
            return socket

        async def skip(event):
            heard.append(event)

        def acks():
            return [frame["frames"] for _, frame in socket.sent if frame["type"] == "ack"]

        monkeypatch.setattr(SocketLink, "_connect", connect)
        async with AsyncThrong("http://127.0.0.1:1") as client:
            subscription = client.subscribe("a", on_conflated=skip)
            frames = [
                [0, [7, 1, "x", 1]],
                [1, [7, 2, "x", 1], [7, None, "typing", 1]],
                # Nothing of this is for the reader.
                [1, [8, 2, "x", 1]],
                [1, [7, -4]],
                [1, [7, 9, "x", 1]],
            ]
            for number, frame in enumerate(frames, 1):
                loop.call_later(number, socket.say, frame)
            heard.append((await anext(subscription)).id)
            heard.append((await anext(subscription)).id)
            assert subscription.position == {"a": "e-2"}
            volatile = await anext(subscription)
            assert (volatile.id, volatile.data, acks()) == (None, "typing", [])
            heard.append((await anext(subscription)).id)
            assert sum(acks()) == 3 and subscription.position == {"a": "e-9"}
            with pytest.raises(TimeoutError):
                # A reader that is cancelled has told of the last frame all the same.
                await asyncio.wait_for(anext(subscription), 1)
            return acks()

    assert virtual(run()) == [1, 1, 1, 1]
    assert heard == ["e-1", "e-2", Conflated("a", 4), "e-9"]


@pytest.mark.parametrize("has_listener", [True, False])
def test_an_unreadable_message_is_told_in_its_place(monkeypatch, virtual, caplog, has_listener):
    heard = []

    async def run():
        loop = asyncio.get_running_loop()
        socket = FakeSocket(loop)

        async def connect(self):
            return socket

        monkeypatch.setattr(SocketLink, "_connect", connect)
        envelope = {"type": "message", "channel": "a", "time": 1, "data": "x"}
        async with AsyncThrong("http://127.0.0.1:1") as client:
            listener = heard.append if has_listener else None
            subscription = client.subscribe("a", on_unreadable=listener)
            for number in range(1, 5):
                broken = {"encoding": "base64", "data": "%"} if number in (2, 3) else {}
                loop.call_later(number, socket.say, {**envelope, **broken, "id": f"e-{number}"})
            async for each in subscription:
                heard.append(each.id)
                if each.id == "e-4":
                    return subscription.position

    assert virtual(run()) == {"a": "e-4"}
    told = [each if isinstance(each, str) else (each.channel, each.user, each.id) for each in heard]
    if has_listener:
        assert told == ["e-1", ("a", None, "e-2"), ("a", None, "e-3"), "e-4"]
        assert all(each.reason for each in heard[1:3])
    else:
        assert told == ["e-1", "e-4"]
        assert caplog.text.count("cannot be read, and is passed over") == 1
