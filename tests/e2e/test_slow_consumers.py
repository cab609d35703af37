"""Subscribers that do not read: the lag policy applies, and other subscribers are not affected."""

import json

import pytest
from httpx_sse import EventSource

from support.raw import Raw, RawWebSocket
from support.transports import subscribe

PIECE_BYTES = 16 * 1024
# More than loopback's buffers can hold for a reader with the smallest window: 16 MiB.
ROUNDS, ROUND_MESSAGES = 64, 16
TOTAL = ROUNDS * ROUND_MESSAGES
SETTINGS = ["--max-lag-messages", 100, "--max-lag-bytes", "1MiB", "--history-messages", 100]
# A loaded machine publishes everything in minutes: for so long, one that does not read is not dead.
SETTINGS += ["--heartbeat", "1h"]
LAGGED = 'throng_disconnects_total{reason="lag"}'


def piece(number):
    return f"{number}:".ljust(PIECE_BYTES, "x")


def number_of(data):
    return int(data.partition(":")[0])


def flood(server, channel, witnesses):
    """Publishes everything, never ahead of the witnesses, which must miss nothing."""
    for _ in rounds(server, channel, witnesses):
        pass


def rounds(server, channel, witnesses):
    """Publishes everything in rounds; after each it gives how many messages there were so far."""
    for round in range(ROUNDS):
        numbers = range(round * ROUND_MESSAGES, (round + 1) * ROUND_MESSAGES)
        server.publish_batch([{"channel": channel, "data": piece(n)} for n in numbers])
        for witness in witnesses:
            assert [number_of(data) for data in witness.take(len(numbers))] == list(numbers)
        yield numbers.stop


def until_it_lags(server, published):
    """Publishes until the slow reader lags too far; returns how many messages there were. What the
    server says to it at last, it has to read soon."""
    return next(count for count in published if server.metrics()[LAGGED] == 1)


@pytest.fixture
def witnesses(channel):
    """Opens one good subscriber per streaming transport."""
    opened = []

    def open_all(server):
        for transport in ("websocket", "sse", "stream"):
            opened.append(subscribe(transport, server, f"/channels/{channel}"))
        return opened

    yield open_all
    for subscriber in opened:
        subscriber.close()


def test_policy_close_on_websocket(serve, channel, witnesses):
    server = serve(*SETTINGS, "--lag-policy", "close")
    with RawWebSocket(server, f"/channels/{channel}", receive_buffer_bytes=4096) as slow:
        count = until_it_lags(server, rounds(server, channel, witnesses(server)))
        got = []
        while True:
            opcode, payload = slow.read_frame()
            if opcode == 0x8:
                break
            if opcode == 0x1:
                got.append(number_of(payload.decode()))
        assert int.from_bytes(payload[:2], "big") == 4000
        assert got == list(range(len(got))) and len(got) < count
    closed = [n for name, n in server.metrics().items() if "lag" in name and "disconnects" in name]
    assert sum(closed) == 1


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
def test_policy_close_on_http(serve, channel, witnesses, accept):
    """The body ends without its last chunk, so that a client detects the cut."""
    server = serve(*SETTINGS, "--lag-policy", "close")
    with Raw(server, receive_buffer_bytes=4096) as slow:
        slow.request("GET", f"/channels/{channel}", {"Accept": accept})
        assert slow.read_head().status == 200
        flood(server, channel, witnesses(server))
        server.wait_for_connections(channel, 3)
        rest = slow.read_to_end()
    assert not rest.endswith(b"0\r\n\r\n")
    assert len(rest) < TOTAL * PIECE_BYTES


def assert_whole_but_for_gaps(entries):
    """Entries are numbers and {"missed": N}; together they must account for every message."""
    expected, gaps = 0, 0
    for entry in entries:
        if isinstance(entry, dict):
            assert entry["missed"] > 0
            expected += entry["missed"]
            gaps += 1
        else:
            assert entry == expected, f"{entry} came where {expected} was due"
            expected += 1
    assert expected == TOTAL and gaps >= 1


def test_policy_skip_on_websocket(serve, channel, witnesses):
    server = serve(*SETTINGS, "--lag-policy", "skip")
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, "throng.v1", receive_buffer_bytes=4096) as slow:
        flood(server, channel, witnesses(server))
        entries = []
        while not entries or entries[-1] != TOTAL - 1:
            envelope = json.loads(slow.read_message())
            if envelope["type"] == "gap":
                assert envelope["channel"] == channel
                entries.append(envelope)
            elif envelope["type"] == "message":
                entries.append(number_of(envelope["data"]))
        assert_whole_but_for_gaps(entries)
        gap = next(entry for entry in entries if isinstance(entry, dict))
        after = entries[entries.index(gap) + 1]
        assert gap["id"].endswith(f"-{after}"), "delivery goes on after the gap's id"


def slow_http(server, channel, accept):
    slow = Raw(server, receive_buffer_bytes=4096)
    slow.request("GET", f"/channels/{channel}?envelope=true", {"Accept": accept})
    assert slow.read_head().status == 200
    return slow


def lines_of(slow):
    """The lines of a chunked body."""
    rest = b""
    while True:
        rest += slow.read_chunk()
        *whole, rest = rest.split(b"\n")
        yield from (line.decode() for line in whole)


def test_policy_skip_on_a_stream(serve, channel, witnesses):
    server = serve(*SETTINGS, "--lag-policy", "skip")
    with slow_http(server, channel, "*/*") as slow:
        flood(server, channel, witnesses(server))
        entries = []
        for line in lines_of(slow):
            envelope = json.loads(line) if line else {"type": "heartbeat"}
            if envelope["type"] == "gap":
                entries.append(envelope)
            elif envelope["type"] == "message":
                entries.append(number_of(envelope["data"]))
            if entries and entries[-1] == TOTAL - 1:
                break
        assert_whole_but_for_gaps(entries)


class Chunks:
    """A raw connection as what `httpx_sse` expects of a response."""

    headers = {"content-type": "text/event-stream"}

    def __init__(self, slow):
        self.slow = slow

    def iter_text(self):
        return (line + "\n" for line in lines_of(self.slow))


def test_policy_skip_on_sse(serve, channel, witnesses):
    server = serve(*SETTINGS, "--lag-policy", "skip")
    with slow_http(server, channel, "text/event-stream") as slow:
        flood(server, channel, witnesses(server))
        entries = []
        for event in EventSource(Chunks(slow)).iter_sse():
            if event.event == "gap":
                entries.append(json.loads(event.data))
            elif event.event == "message":
                entries.append(number_of(json.loads(event.data)["data"]))
            if entries and entries[-1] == TOTAL - 1:
                break
        assert_whole_but_for_gaps(entries)


def test_a_closed_slow_consumer_resumes_without_a_gap(serve, channel, witnesses):
    """Policy `close` loses nothing as long as the log reaches back far enough."""
    settings = ["--max-lag-bytes", "1MiB", "--history-messages", TOTAL, "--history-bytes", "64MiB"]
    server = serve(*settings, "--lag-policy", "close", "--heartbeat", "1h")
    path = f"/channels/{channel}?envelope=true"
    with RawWebSocket(server, path, receive_buffer_bytes=4096) as slow:
        id = slow.response.header("Throng-Id")
        published = rounds(server, channel, witnesses(server))
        count = until_it_lags(server, published)
        got = 0
        while True:
            opcode, payload = slow.read_frame()
            if opcode == 0x8:
                break
            if opcode == 0x1:
                envelope = json.loads(payload)
                assert number_of(envelope["data"]) == got
                id, got = envelope["id"], got + 1
        assert int.from_bytes(payload[:2], "big") == 4000 and got < count
    for _ in published:
        pass
    with subscribe("poll", server, f"/channels/{channel}", since=id) as back:
        assert back.recovered is True
        numbers = [number_of(data) for data in back.take(TOTAL - got)]
        assert numbers == list(range(got, TOTAL))


def assert_whole_but_for_skips(entries):
    """Entries are numbers and {"count": N}; together they must account for every message."""
    expected, skips = 0, 0
    for entry in entries:
        if isinstance(entry, dict):
            assert entry["count"] > 0
            expected += entry["count"]
            skips += 1
        else:
            assert entry == expected, f"{entry} came where {expected} was due"
            expected += 1
    assert expected == TOTAL and skips >= 1


def test_policy_latest_on_websocket(serve, channel):
    # Nobody else follows: on a busy machine, a good subscriber may skip some, too.
    server = serve(*SETTINGS, "--lag-policy", "latest")
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, "throng.v1", receive_buffer_bytes=4096) as slow:
        flood(server, channel, [])
        entries = []
        while not entries or entries[-1] != TOTAL - 1:
            envelope = json.loads(slow.read_message())
            if envelope["type"] == "conflated":
                assert envelope["channel"] == channel
                entries.append(envelope)
            elif envelope["type"] == "message":
                entries.append(number_of(envelope["data"]))
        assert_whole_but_for_skips(entries)
    metrics = server.metrics()
    assert metrics["throng_messages_conflated_total"] > 0 and metrics["throng_gaps_total"] == 0
    assert metrics[LAGGED] == 0


def test_policy_latest_on_sse(serve, channel):
    server = serve(*SETTINGS, "--lag-policy", "latest")
    with slow_http(server, channel, "text/event-stream") as slow:
        flood(server, channel, [])
        entries = []
        for event in EventSource(Chunks(slow)).iter_sse():
            if event.event == "conflated":
                entries.append(json.loads(event.data))
            elif event.event == "message":
                entries.append(number_of(json.loads(event.data)["data"]))
            if entries and entries[-1] == TOTAL - 1:
                break
        assert_whole_but_for_skips(entries)


@pytest.mark.parametrize("transport", ["stream", "poll"])
def test_a_resume_has_the_newest_of_a_latest_channel(serve, channel, transport):
    server = serve("--lag-policy", "latest", "--history-messages", 2)
    ids = [server.publish(channel, str(number))["id"] for number in range(5)]
    with subscribe(transport, server, f"/channels/{channel}", since=ids[0]) as resumed:
        assert resumed.recovered is True
        if transport == "stream":
            skipped = {"type": "conflated", "channel": channel, "count": 3}
            assert resumed.next_line() == skipped
        assert resumed.next() == (ids[-1], "4")
