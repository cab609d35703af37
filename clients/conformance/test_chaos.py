"""All clients, on all transports, behind a proxy that misbehaves at random.

`make test` runs one seed of each. `THRONG_CHAOS_SEEDS=10` runs more, `THRONG_CHAOS_SEED=17` only
that one.
"""

import itertools
import os
import random

import pytest
from chaos import ChaosProxy, check_gaps, check_outcomes, check_whole
from support.server import Server

# For the page of the browser, which is from another origin.
ORIGINS = ["--allowed-origins", "*"]
TRANSPORTS = [["websocket"], ["sse"], ["poll"], ["websocket", "sse", "poll"]]
# Connections that suffer, in one run.
FAULTS = 9
# A run without an end is one whose faults do not happen.
MESSAGES_MAX = 900
# Short, because each of these passes once for each connection that freezes.
OPTIONS = {
    "heartbeat_ms": 1_000,
    "open_timeout_ms": 1_500,
    "request_timeout_ms": 1_500,
    "poll_wait_ms": 1_000,
    "publish_timeout_ms": 60_000,
    # A tenth of the usual delays.
    "random": 0.1,
}

pytestmark = pytest.mark.timeout(900)


def seeds():
    if "THRONG_CHAOS_SEED" in os.environ:
        return [int(os.environ["THRONG_CHAOS_SEED"])]
    return range(1, 1 + int(os.environ.get("THRONG_CHAOS_SEEDS", "1")))


@pytest.fixture(params=seeds())
def seed(request):
    return request.param


@pytest.fixture(params=TRANSPORTS, ids="-".join)
def transports(request):
    return request.param


@pytest.fixture
def through(loop, server):
    """A proxy that misbehaves, before the shared server or another one."""
    made = []

    def start(seed, faults, upstream=server):
        made.append(ChaosProxy(loop, upstream, seed, faults))
        return made[-1]

    yield start
    for each in made:
        print(f"THRONG_CHAOS_SEED={each.seed}: {each.suffered}")
        each.close()


@pytest.fixture(scope="session")
def keeping(tmp_path_factory):
    """A server that keeps all messages of a run."""
    flags = ["--drain-window", "200ms", "--heartbeat", "1s", *ORIGINS, "--history-messages", "1000"]
    # Who is there is told beside messages and answers.
    flags += ["--presence-events", "--presence-grace", "0s"]
    running = Server(tmp_path_factory.mktemp("keeping"), *flags)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def forgetting(tmp_path_factory):
    """Starts servers, one after another on one port, that keep few messages."""
    directory = tmp_path_factory.mktemp("forgetting")
    flags = ["--drain-window", "200ms", "--heartbeat", "1s", *ORIGINS, "--history-messages", "10"]
    return lambda port=0: Server(directory, *flags, port=port)


def until_told(client, data):
    client.until(lambda it: it["event"] == "message" and it["data"] == data)


def begin(client, server, channels):
    """Subscribes, and waits for the message that is in each channel."""
    for each in channels:
        server.publish(each, f"first of {each}")
    client.tell("subscribe", channels=channels, history=1, presence=True)
    client.until_all("message", len(channels))


def test_nothing_is_lost_doubled_or_reordered(
    any_client, keeping, through, channel, transports, seed
):
    dice = random.Random(seed)
    channels = [f"{channel}-a", f"{channel}-b"]
    proxy = through(seed, FAULTS, keeping)
    client = any_client(proxy.url, transports=transports, **OPTIONS)
    begin(client, keeping, channels)
    asked, numbers = 0, itertools.count()
    while not proxy.is_calm or asked < 10:
        for _ in range(dice.randint(1, 4)):
            number = next(numbers)
            assert number < MESSAGES_MAX, "the faults do not happen"
            size = dice.choice([0, 0, 100, 3_000])
            keeping.publish(dice.choice(channels), f"direct {number} {'x' * size}")
        client.tell("publish", channel=dice.choice(channels), data=f"asked {asked}")
        asked += 1
        keeping.publish(channels[0], f"round {asked}")
        until_told(client, f"round {asked}")
    while len(client.all("published")) + len(client.all("unpublished")) < asked:
        client.until(lambda it: it["event"].endswith("published"))
    for each in channels:
        keeping.publish(each, f"last of {each}")
    told = {event["data"] for event in client.all("message")}
    for each in channels:
        if f"last of {each}" not in told:
            until_told(client, f"last of {each}")
            told = {event["data"] for event in client.all("message")}
    kept = [keeping.history(each, limit=1_000)["messages"] for each in channels]
    for name, messages in zip(channels, kept, strict=True):
        check_whole(client, name, messages)
    check_outcomes(client, kept[0] + kept[1])
    for each in channels:
        if not any(event["channel"] == each for event in client.all("presence")):
            client.until(lambda it, name=each: it["event"] == "presence" and it["channel"] == name)
    assert not client.all("error")


def test_what_is_lost_is_told(any_client, forgetting, through, channel, transports, seed):
    dice = random.Random(seed)
    server = forgetting()
    try:
        proxy = through(seed, FAULTS // 2, server)
        client = any_client(proxy.url, transports=transports, **OPTIONS)
        published = []

        def publish(count):
            for _ in range(count):
                data = f"number {len(published)}"
                published.append((server.publish(channel, data)["id"], data))

        publish(1)
        client.tell("subscribe", channels=[channel], history=1)
        client.until_all("message", 1)
        for step in ["few", "many", "restart", "few", "many", "restart", "many", "few"]:
            publish(dice.randint(1, 5))
            if step == "many":
                # More than the server keeps, while the client is away.
                proxy.freeze()
                publish(30)
                proxy.cut()
                proxy.thaw()
            elif step == "restart":
                server.kill()
                server = proxy.upstream = forgetting(server.port)
            publish(dice.randint(1, 5))
            until_told(client, published[-1][1])
        check_gaps(client, channel, published)
        assert client.all("gap") and not client.all("error")
    finally:
        server.stop()
