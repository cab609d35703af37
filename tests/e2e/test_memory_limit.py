"""Memory that is nearly used up, and a quota of processor time: the server gives up what it says, step
by step, survives, and takes everything back."""

import json
import re

import pytest

from support.cgroup import Group
from support.raw import TEXT, Closed, Raw, RawWebSocket, frame
from support.server import Server, eventually
from support.transports import subscribe

MIB = 1 << 20
PIECE = "x" * 16_000
STEPS = ["none", "shrink", "refuse_reads", "refuse_subscriptions", "close_slow"]


def step(server):
    return STEPS[int(server.metrics()["throng_memory_step"])]


def ready(server):
    response = server.http.get("/health/ready")
    assert response.status_code == 200, "short of memory is not a reason to send clients elsewhere"
    return response.json()["status"], [reason["reason"] for reason in response.json()["reasons"]]


def refused(response):
    """Whether a request was refused for want of memory, and when to come back."""
    if response.status_code != 503:
        return False
    assert response.json()["error"] == "busy" and "memory" in response.json()["message"]
    assert int(response.headers["Retry-After"]) > 0
    return True


def batch(server, channel):
    return server.http.post("/publish", content=json.dumps({"channel": channel, "data": 1}))


def subscription(server, channel):
    with Raw(server) as client:
        client.request("GET", f"/channels/{channel}")
        head = client.read_head()
        assert head.status in (200, 503)
        return head


@pytest.fixture
def group_of():
    """Makes control groups; removes them once their servers have ended."""
    groups = []

    def make(**limits):
        groups.append(Group(**limits))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


@pytest.fixture
def limited(group_of, tmp_path):
    """Starts servers in control groups, and stops them."""
    servers = []

    def start(*flags, **limits):
        group = group_of(**limits)
        flags = ["--drain-window", "0", *flags]
        servers.append(Server(tmp_path, *flags, prepare=group.enter))
        return servers[-1], group

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop()


def test_each_step_gives_up_what_it_says_and_takes_it_back(limited, channel):
    limit = 256 * MIB
    server, group = limited("--max-lag-messages", "10k", "--max-lag-bytes", "64MiB", memory_bytes=limit)
    other = f"{channel}-other"
    held = 0

    def use(percent, expected):
        """Lets another process of the group take so much that this share of the limit is used."""
        nonlocal held
        held = max(0, held + round((limit * percent / 100 - group.used()) / MIB))
        group.hold(held)
        eventually(lambda: step(server) == expected, f"the step {expected}")

    slow = RawWebSocket(server, f"/channels/{channel}", receive_buffer_bytes=4096)
    good = subscribe("sse", server, f"/channels/{channel}")
    bystander = subscribe("websocket", server, f"/channels/{other}")
    with slow, good, bystander:
        for _ in range(40):
            server.publish(channel, PIECE)
        good.take(40)
        eventually(lambda: server.metrics()["throng_connections_behind"] == 1, "a slow reader")
        assert server.metrics()["throng_memory_limit_bytes"] == limit
        assert ready(server) == ("ready", [])

        # Its own process counts, too.
        group.hold(held)
        use(78, "shrink")
        assert ready(server) == ("degraded", ["memory"])
        assert server.http.get(f"/channels/{channel}/history").status_code == 200
        assert batch(server, other).status_code == 200
        assert len(bystander.take(1)) == 1
        assert subscription(server, channel).status == 200

        use(85, "refuse_reads")
        assert refused(server.http.get(f"/channels/{channel}/history"))
        assert refused(batch(server, other))
        assert subscription(server, channel).status == 200
        server.publish(other, "on it goes")
        assert bystander.take(1) == ["on it goes"]

        use(90.5, "refuse_subscriptions")
        head = subscription(server, channel)
        assert head.status == 503 and int(head.header("Retry-After")) > 0
        shown = lambda: server.http.get("/status.json").json()["memory"]["step"]
        eventually(lambda: shown() == "refuse_subscriptions", "the next sample")
        server.publish(other, "and on")
        assert bystander.take(1) == ["and on"]
        assert server.metrics()["throng_connections_behind"] == 1

        use(95.5, "close_slow")
        name = 'throng_disconnects_total{reason="memory"}'
        eventually(lambda: server.metrics()[name] == 1, "the end of the slow reader")
        with pytest.raises((Closed, ConnectionError)):
            while True:
                slow.read_frame()
        server.publish(channel, "good ones stay")
        assert good.take(1) == ["good ones stay"]
        server.publish(other, "bystanders, too")
        assert bystander.take(1) == ["bystanders, too"]
        assert server.metrics()[name] == 1

        use(40, "none")
        assert ready(server) == ("ready", [])
        assert server.http.get(f"/channels/{channel}/history").status_code == 200
        assert batch(server, other).status_code == 200
        assert subscription(server, channel).status == 200
    metrics = server.metrics()
    for word in STEPS[1:]:
        assert metrics[f'throng_memory_steps_total{{step="{word}"}}'] >= 1
    counted = {what: metrics[f'throng_memory_refused_total{{what="{what}"}}'] for what in ("history", "batch")}
    assert counted == {"history": 1, "batch": 1}
    server.says("memory is short: new subscriptions are refused")
    assert group.killed() == 0


# Its program has little room in memory, too, and is read again and again.
@pytest.mark.timeout(600)
def test_a_flood_in_64_mib_kills_nobody(limited, channel):
    server, group = limited("--log", "warn", memory_bytes=64 * MIB)
    readers = []
    for nth in range(120):
        path = f"/channels/{channel}-{nth % 8}?envelope=true"
        reader = Raw(server, receive_buffer_bytes=4096)
        readers.append(reader)
        reader.request("GET", path, {"Accept": "text/event-stream"})
    answers = {"publish": set(), "batch": set(), "history": set()}
    for round in range(30):
        for nth in range(8):
            name = f"{channel}-{nth}"
            answers["publish"].add(
                server.http.post(f"/channels/{name}", content=PIECE * 4).status_code
            )
        name = f"{channel}-{round % 8}"
        answers["history"].add(server.http.get(f"/channels/{name}/history").status_code)
        lines = [json.dumps({"channel": f"{channel}-b{round}-{n}", "data": PIECE}) for n in range(200)]
        response = server.http.post("/publish", content="\n".join(lines))
        answers["batch"].add(response.status_code)
        assert server.process.poll() is None, server.log()
    assert answers["publish"] <= {201, 503} and answers["history"] <= {200, 503}, answers
    assert answers["batch"] <= {200, 207, 503}, answers
    assert 201 in answers["publish"]
    for reader in readers:
        reader.close()
    eventually(lambda: step(server) in ("none", "shrink"), "enough memory")
    assert server.http.get("/health/live").status_code == 200
    assert group.killed() == 0
    # A message is appended before older ones make room for it: the bound holds once publications are answered.
    # The samples of the status are older than that for a second.
    assert server.metrics()["throng_log_bytes"] <= 16 * MIB
    sampled = lambda: server.http.get("/status.json").json()["memory"]
    eventually(lambda: sampled()["log_bytes"] <= 16 * MIB, lambda: f"a sample of that: {sampled()}")
    assert sampled()["limit_bytes"] == 64 * MIB


# It fills memory with small things: a loaded machine works on that for minutes.
@pytest.mark.timeout(600)
def test_a_setting_is_compared_with_the_memory_of_the_server_itself(serve, channel):
    server = serve("--max-memory", "32MiB", "--max-channels-per-connection", 500, "--heartbeat", 0)
    assert server.metrics()["throng_memory_limit_bytes"] == 32 * MIB
    # Subscriptions are in no plan, and stay. Their names are long.
    sockets, number = [], 0
    try:
        while step(server) not in ("refuse_reads", "refuse_subscriptions"):
            assert number < 400_000, "the step did not come"
            sockets.append(RawWebSocket(server, "/subscribe", "throng.v1"))
            assert json.loads(sockets[-1].read_message())["type"] == "welcome"
            commands = [
                json.dumps({"type": "subscribe", "channel": f"{number + nth:0240}"}).encode()
                for nth in range(500)
            ]
            sockets[-1].send(b"".join(frame(TEXT, command) for command in commands))
            for _ in commands:
                assert json.loads(sockets[-1].read_message())["type"] == "subscribed"
            number += 500
        assert ready(server) == ("degraded", ["memory"])
        assert refused(server.http.get(f"/channels/{channel}/history"))
        assert refused(batch(server, channel))
        # Single messages go on, and reach those that are there.
        server.publish(f"{0:0240}", "hello")
        assert json.loads(sockets[0].read_message())["data"] == "hello"
    finally:
        for socket in sockets:
            socket.close()
    eventually(lambda: step(server) == "none", "the memory of the subscriptions")
    assert server.http.get(f"/channels/{channel}/history").status_code == 200


def test_half_a_core_is_one_worker_and_the_log_says_why(limited, channel):
    server, _ = limited("--log-format", "json", cpu=0.5)
    with subscribe("websocket", server, f"/channels/{channel}") as client:
        for number in range(50):
            server.publish(channel, str(number))
        assert client.take(50) == [str(number) for number in range(50)]
    assert len(server.http.get("/status.json").json()["connections"]["workers"]) == 1
    started = json.loads(server.says('"started"'))
    assert (started["cores"], started["cpu_quota"]) == (1, 0.5)
    assert re.search(r"cpu\.(max|cfs_quota_us)$", started["cores_from"]), started
