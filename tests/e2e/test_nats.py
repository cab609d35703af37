"""Several nodes over a real nats-server: one publishes, others deliver, and NATS may be away."""

import json
import threading

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.nats import ailments, connected, nodes_in
from support.raw import Raw
from support.server import eventually, run_throng
from support.transports import TRANSPORTS, WebSocket, subscribe

@pytest.fixture(scope="module")
def nodes(tmp_path_factory, lasting_broker):
    """Two connected nodes."""
    with nodes_in(tmp_path_factory.mktemp("nodes")) as begin:
        yield [connected(node) for node in [begin(lasting_broker) for _ in range(2)]]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_one_node_accepts_others_deliver(nodes, channel, transport):
    first, second = nodes
    path = f"/channels/{channel}"
    with subscribe(transport, first, path) as here, subscribe(transport, second, path) as there:
        # Alternately, so that neither node has all of it from itself.
        sent = [(nodes[n % 2].publish(channel, str(n))["id"], str(n)) for n in range(10)]
        assert [here.next() for _ in sent] == sent
        assert [there.next() for _ in sent] == sent


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_resumes_on_another_node(nodes, channel, transport):
    first, second = nodes
    path = f"/channels/{channel}"
    with subscribe(transport, first, path) as here:
        ids = [first.publish(channel, str(n))["id"] for n in range(3)]
        assert here.next() == (ids[0], "0")
    with subscribe(transport, second, path, since=ids[0]) as there:
        assert there.take(2) == ["1", "2"]
        assert there.recovered is True
        last = first.publish(channel, "3")["id"]
        assert there.next() == (last, "3")
    # The other node has followed it for a while, and this one comes back to it.
    with subscribe(transport, first, path, since=last) as here:
        assert here.recovered in (True, None)
        second.publish(channel, "4")
        assert here.take(1) == ["4"]


def test_a_position_in_a_quiet_channel_holds_on_every_node(nodes, channel):
    first, second = nodes
    path = f"/channels/{channel}"
    with subscribe("sse", first, path) as here:
        # The stream goes on, as the other node knows, which learns of the channel only now.
        second.publish(f"{channel}-other", "x")
        with subscribe("sse", second, path) as there:
            assert here.id != there.id
            # A position that the first node has not seen in this channel, and an older one.
            resumed = [(first, there.id), (second, here.id)]
            again = [subscribe("sse", node, path, since=since) for node, since in resumed]
            assert all(one.recovered is True for one in again)
            second.publish(channel, "next")
            for one in (here, there, *again):
                assert one.take(1) == ["next"]
            for one in again:
                one.close()


def test_a_client_is_told_of_what_it_missed(nodes, channel):
    first, second = nodes
    begin = first.publish(channel, "begin")["id"]
    # One more than the history has.
    for n in range(101):
        first.publish(channel, str(n))
    kept = [str(n) for n in range(1, 101)]
    for since in (begin, "zzz-5", begin.partition("-")[0] + "-99999999999"):
        with subscribe("stream", second, f"/channels/{channel}", since=since) as late:
            assert late.recovered is False, since
            assert late.take(100) == kept


def test_history_is_the_same_on_all_nodes(nodes, channel):
    first, second = nodes
    ids = [nodes[n % 2].publish(channel, str(n))["id"] for n in range(5)]
    pages = [node.history(channel) for node in nodes]
    assert pages[0] == pages[1]
    assert [message["id"] for message in pages[0]["messages"]] == ids
    assert [m["data"] for m in second.history(channel, after=ids[1])["messages"]] == list("234")
    before = first.history(channel, before=ids[3], limit=2)
    assert [m["data"] for m in before["messages"]] == list("12")


def test_a_key_publishes_once_on_all_nodes(nodes, channel):
    with subscribe("sse", nodes[1], f"/channels/{channel}") as there:
        answers = [
            node.http.post(
                f"/channels/{channel}", content="once", headers={"Idempotency-Key": "k"}
            )
            for node in nodes
        ]
        assert [answer.status_code for answer in answers] == [201, 200]
        assert answers[0].json()["id"] == answers[1].json()["id"]
        nodes[0].publish(channel, "next")
        assert there.take(2) == ["once", "next"]


def test_inboxes_and_strange_names(nodes, channel):
    first, second = nodes
    for name in (f"{channel}.a>b%20 ü", f"{channel}/room"):
        with subscribe("stream", second, "/subscribe", channel=name) as there:
            first.publish_batch([{"channel": name, "data": "x"}])
            assert there.take(1) == ["x"]
    with subscribe("sse", second, f"/users/{channel}") as inbox:
        first.publish_to_user(channel, "to you")
        assert inbox.take(1) == ["to you"]


def test_what_was_published_arrives_as_it_was(nodes, channel):
    first, second = nodes
    with subscribe("sse", second, f"/channels/{channel}", envelope="true") as there:
        first.publish(channel, '{"a": [1]}', content_type="application/json")
        first.publish(channel, b"\x00\xff", content_type="image/png")
        assert '{"a": [1]}' in there.next()[1]
        assert "image/png" in there.next()[1]


def test_a_sender_is_left_out_on_another_node(nodes, channel):
    first, second = nodes
    path = f"/channels/{channel}"
    with subscribe("sse", second, path) as sender, subscribe("sse", second, path) as other:
        first.publish(channel, "not to me", Throng_Exclude=sender.connection)
        first.publish(channel, "to all")
        assert other.take(2) == ["not to me", "to all"]
        assert sender.take(1) == ["to all"]


def test_a_volatile_message_reaches_each_node_once(nodes, channel):
    first, second = nodes
    path = f"/channels/{channel}"
    with subscribe("websocket", first, path) as here, subscribe("websocket", second, path) as there:

        def next_of(one):
            envelope = json.loads(one.socket.recv(timeout=TIMEOUT_SECONDS))
            return envelope.get("id"), envelope["data"]

        for n in range(10):
            query = {"volatile": "true", "count": "all"}
            answer = nodes[n % 2].http.post(path, params=query, content=f"v{n}")
            assert answer.json() == {"volatile": True, "subscribers": 2}
            kept = nodes[n % 2].publish(channel, str(n))["id"]
            # A worker that takes both at once writes what is kept first.
            for one in (here, there):
                assert {next_of(one), next_of(one)} == {(None, f"v{n}"), (kept, str(n))}
    assert [message["data"] for message in first.history(channel)["messages"]] == [str(n) for n in range(10)]


def test_lists_have_what_a_node_follows(nodes, channel):
    with subscribe("sse", nodes[1], f"/channels/{channel}") as there:
        nodes[0].publish(channel, "x")
        there.next()
        found = nodes[1].http.get("/channels", params={"pattern": channel}).json()["channels"]
        assert [(one["channel"], one["subscribers"]) for one in found] == [(channel, 1)]


def test_a_node_shows_how_it_stands_to_nats(nodes, channel):
    node = nodes[0]
    before = node.metrics()
    node.publish(channel, "x")
    with subscribe("sse", node, f"/channels/{channel}"):
        after = node.metrics()
    assert after["throng_nats_connected"] == 1
    assert after["throng_nats_cut_off_seconds"] == 0
    assert after["throng_nats_followed_channels"] >= 1
    accepted = 'throng_nats_messages_total{what="accepted"}'
    assert after[accepted] == before[accepted] + 1
    assert after["throng_nats_publish_seconds_count"] > before["throng_nats_publish_seconds_count"]


def publish_until(node, channel, prefix, is_over, accepted):
    """Publishes one message after the other; notes what was accepted, and other answers."""
    number = 0
    while not is_over():
        number += 1
        body = f"{prefix}{number}"
        answer = node.http.post(f"/channels/{channel}", content=body)
        if answer.status_code == 201:
            accepted.append((answer.json()["id"], body))
        else:
            error = answer.json()["error"]
            assert error in ("unavailable", "busy", "outcome_unknown"), answer.text
            status = 504 if error == "outcome_unknown" else 503
            assert answer.status_code == status
            assert status == 504 or int(answer.headers["Retry-After"]) >= 1


def test_nothing_is_lost_when_nats_is_killed(broker, start_node, channel):
    both = [connected(start_node(broker)) for _ in range(2)]
    path = f"/channels/{channel}"
    accepted, is_over = [[], []], threading.Event()
    with subscribe("sse", both[0], path) as here, subscribe("websocket", both[1], path) as there:
        publishers = [
            threading.Thread(
                target=publish_until, args=(one, channel, name, is_over.is_set, noted)
            )
            for one, name, noted in zip(both, "ab", accepted, strict=True)
        ]
        for publisher in publishers:
            publisher.start()
        try:
            for _ in range(2):
                eventually(lambda: all(len(one) > 20 for one in accepted), "messages before")
                broker.kill()
                for one in both:
                    eventually(lambda one=one: ailments(one) == ["nats_away"], "a cut off node")
                    assert one.metrics()["throng_nats_connected"] == 0
                counts = [len(one) for one in accepted]
                broker.launch()
                for one in both:
                    connected(one)
                more = list(zip(accepted, counts, strict=True))
                eventually(lambda more=more: all(len(a) > n + 20 for a, n in more), "and after")
        finally:
            is_over.set()
            for publisher in publishers:
                publisher.join()
        last = both[0].publish(channel, "last")["id"]
        received = []
        for subscriber in (here, there):
            messages = []
            while not messages or messages[-1][1] != "last":
                messages.append(subscriber.next())
            received.append(messages)
    assert received[0] == received[1]
    ids = [int(message[0].partition("-")[2]) for message in received[0]]
    assert ids == sorted(set(ids)) and received[0][-1] == (last, "last")
    bodies = [body for _, body in received[0]]
    assert len(bodies) == len(set(bodies))
    # What was accepted has come, under its id. What was not may have come once: 504.
    found = dict(received[0])
    for one in accepted:
        assert all(found.get(id) == body for id, body in one)


def publish_batch(node, lines):
    """Publishes lines in one batch; returns their answers."""
    answer = node.http.post("/publish", content="".join(json.dumps(line) + "\n" for line in lines))
    assert answer.status_code == 200, answer.text
    answers = [json.loads(line) for line in answer.text.splitlines()]
    assert len(answers) == len(lines)
    return answers


def offset(id):
    return int(id.partition("-")[2])


def test_a_large_batch_to_one_channel_is_stored_whole_and_in_order(nodes, channel):
    first, second = nodes
    lines = [{"channel": channel, "data": str(number)} for number in range(10_000)]
    is_over, others = threading.Event(), []
    other = threading.Thread(
        target=publish_until, args=(first, f"{channel}-other", "x", is_over.is_set, others)
    )
    other.start()
    try:
        ids = [answer["id"] for answer in publish_batch(first, lines)]
    finally:
        is_over.set()
        other.join()
    assert others, "others publish meanwhile"
    offsets = [offset(id) for id in ids]
    assert offsets == sorted(set(offsets))
    history = second.http.get(f"/channels/{channel}/history?limit=100").json()["messages"]
    newest = list(zip(ids, (line["data"] for line in lines), strict=True))[-100:]
    assert [(message["id"], message["data"]) for message in history] == newest


def read_until_last(subscriber, messages):
    """Takes what a subscriber gets until the last message."""
    while not messages or messages[-1][1] != "last":
        messages.append(subscriber.next())


def publish_batches_until(node, channel, prefix, is_over, batches):
    """Publishes one batch after the other; notes their lines with the answers."""
    while not is_over():
        start = f"{prefix}{len(batches)}"
        lines = [
            {"channel": channel, "data": f"{start}-{number}", "key": f"{start}-{number}"}
            for number in range(100)
        ]
        batches.append(list(zip(lines, publish_batch(node, lines), strict=True)))


def test_batches_lose_and_repeat_nothing_when_nats_is_killed(broker, start_node, channel):
    # A node that is back later than the other reads what has been published meanwhile: it has to be kept, and
    # its readers lag by as much.
    kept = ["--history-messages", 10_000, "--history-bytes", "64MiB"]
    lag = ["--max-lag-messages", 100_000, "--max-lag-bytes", "64MiB"]
    both = [connected(start_node(broker, *kept, *lag)) for _ in range(2)]
    path = f"/channels/{channel}"
    published, received, is_over = [[], []], [[], []], threading.Event()
    with subscribe("sse", both[0], path) as here, subscribe("websocket", both[1], path) as there:
        readers = [
            threading.Thread(target=read_until_last, args=pair)
            for pair in zip((here, there), received, strict=True)
        ]
        publishers = [
            threading.Thread(
                target=publish_batches_until, args=(one, channel, name, is_over.is_set, noted)
            )
            for one, name, noted in zip(both, "ab", published, strict=True)
        ]
        for thread in readers + publishers:
            thread.start()
        try:
            eventually(lambda: all(len(one) > 3 for one in published), "batches before")
            broker.kill()
            for one in both:
                eventually(lambda one=one: ailments(one) == ["nats_away"], "a cut off node")
            broker.launch()
            for one in both:
                connected(one)
            counts = [len(one) for one in published]
            more = list(zip(published, counts, strict=True))
            eventually(lambda: all(len(a) > n + 3 for a, n in more), "batches after")
        finally:
            is_over.set()
            for publisher in publishers:
                publisher.join()
        ids = {}
        for one, noted in zip(both, published, strict=True):
            for batch in noted:
                stored = [answer["id"] for _, answer in batch if "id" in answer]
                assert stored == sorted(stored, key=offset), "a batch is in its order"
                failed = [line for line, answer in batch if "error" in answer]
                ids |= {line["data"]: answer.get("id") for line, answer in batch}
                # With their keys, none is stored twice.
                answers = publish_batch(one, failed) if failed else []
                repeated = zip(failed, answers, strict=True)
                ids |= {line["data"]: answer["id"] for line, answer in repeated}
        assert all(ids.values())
        both[0].publish(channel, "last")
        for reader in readers:
            reader.join(TIMEOUT_SECONDS)
    assert received[0] == received[1]
    bodies = dict((body, id) for id, body in received[0][:-1])
    assert len(bodies) == len(received[0]) - 1, "each came once"
    assert bodies == ids


def test_a_node_without_nats_refuses_and_begins_when_it_comes(broker, start_node, channel):
    broker.kill()
    alone = start_node(broker)
    assert ailments(alone) == ["nats_away"]
    path = f"/channels/{channel}"
    for answer in (
        alone.http.post(path, content="x"),
        alone.http.get(path),
        alone.http.get(f"{path}/history"),
    ):
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
    broker.launch()
    connected(alone)
    with subscribe("sse", alone, path) as there:
        alone.publish(path.rpartition("/")[2], "x")
        assert there.take(1) == ["x"]


def test_subscribers_stay_while_nats_is_silent(broker, start_node, channel):
    both = [connected(start_node(broker)) for _ in range(2)]
    path = f"/channels/{channel}"
    with subscribe("sse", both[0], path) as here:
        both[1].publish(channel, "before")
        last, _ = here.next()
        with broker.cut_off():
            eventually(lambda: ailments(both[0]) == ["nats_away"], "the silence is noticed")
            # Who has all that this node has can come, too.
            with subscribe("stream", both[0], path) as late:
                assert late.id == last
        for one in both:
            connected(one)
        both[1].publish(channel, "after")
        assert here.take(1) == ["after"]


def frames_until(socket, type):
    """What a client of `throng.v1` hears up to a frame of this type, which is returned."""
    while True:
        frame = json.loads(socket.recv(timeout=TIMEOUT_SECONDS))
        if frame["type"] == type:
            return frame


def test_clients_are_told_when_messages_come_late(broker, start_node, channel):
    one = connected(start_node(broker))
    here = f"{one.ws}/subscribe?channel={channel}"
    options = {"proxy": None, "subprotocols": ["throng.v1"], "open_timeout": TIMEOUT_SECONDS}
    late, current = ({"type": "late", "late": is_late} for is_late in (True, False))
    with (
        connect(here, **options) as v1,
        Raw(one) as sse,
        subscribe("stream", one, f"/channels/{channel}") as lines,
    ):
        sse.request("GET", f"/channels/{channel}", {"Accept": "text/event-stream"})
        assert sse.read_head().status == 200
        broker.kill()
        assert frames_until(v1, "late") == late
        sse.read_until(b'event: late\ndata: {"type":"late","late":true}\n\n')
        # Who comes meanwhile is told, too.
        with connect(f"{one.ws}/subscribe", **options) as new:
            assert frames_until(new, "late") == late
            broker.launch()
            connected(one)
            for client in (v1, new):
                assert frames_until(client, "late") == current
        sse.read_until(b'event: late\ndata: {"type":"late","late":false}\n\n')
        one.publish(channel, "after")
        assert frames_until(v1, "message")["data"] == "after"
        # A line would be taken for a message.
        assert lines.take(1) == ["after"]
    # Three clients were told twice each.
    told = lambda: one.metrics()["throng_late_notices_total"]
    eventually(lambda: told() >= 6, "the count")
    assert told() == 6


def test_after_a_loss_subscribers_begin_anew(broker, start_node, channel):
    both = [connected(start_node(broker)) for _ in range(2)]
    path = f"/channels/{channel}"
    first = both[0].publish(channel, "lost")["id"]
    with subscribe("websocket", both[1], path) as there:
        broker.kill()
        for file in sorted((broker.directory / "store").rglob("*"), reverse=True):
            if file.is_dir():
                file.rmdir()
            else:
                file.unlink()
        broker.launch()
        with pytest.raises(ConnectionClosed) as closed:
            there.socket.recv(timeout=TIMEOUT_SECONDS)
        assert closed.value.rcvd.code == 1012
    for one in both:
        connected(one)
    with subscribe("websocket", both[1], path, since=first) as again:
        assert again.recovered is False
        new = both[0].publish(channel, "new")["id"]
        assert again.next() == (new, "new")
        assert new.partition("-")[0] != first.partition("-")[0]


def test_a_stream_that_differs_is_refused(broker, start_node):
    connected(start_node(broker))
    other = start_node(broker, "--history-messages", "7")
    eventually(lambda: ailments(other) == ["nats_refused"], "it is refused")
    said = "max_msgs_per_subject is 101, but should be 8"
    eventually(lambda: said in other.log(), f"{said!r} in the log")
    assert other.http.post("/channels/a", content="x").status_code == 503
    # Under another prefix it has a stream of its own.
    connected(start_node(broker, "--history-messages", "7", "--nats-prefix", "other"))


def test_a_message_that_nats_does_not_take_is_too_large(brokers, start_node, channel):
    one = connected(start_node(brokers("max_payload: 8192")))
    answer = one.http.post(f"/channels/{channel}", content="x" * 9000)
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large"), answer.text
    one.publish(channel, "x" * 7000)


def test_a_node_logs_in(tmp_path, brokers, start_node):
    guarded = brokers('authorization { user: "node", password: "s3" }')
    login = tmp_path / "login"
    login.write_text("node:s3\n")
    connected(start_node(guarded, "--nats-login", login)).stop()
    login.write_text("node:wrong\n")
    other = start_node(guarded, "--nats-login", login)
    eventually(lambda: "uthorization" in other.log(), "it is turned away")
    assert ailments(other) == ["nats_away"]


def test_settings_that_do_not_work_are_refused(tmp_path):
    for flags, said in [
        (["--engine", "nats"], "engine = nats needs servers of NATS JetStream"),
        (["--nats", "nats://a"], "nats has no effect without engine = nats"),
        (["--engine", "nats", "--nats", "nats://ann:s3@a"], "without a user, which nats-login"),
        (["--engine", "nats", "--nats", "tls://a", "--nats-cert", "c"], "need each other"),
        (["--engine", "nats", "--nats", "a", "--nats-login", "missing"], "cannot read"),
    ]:
        for command in ("check", "serve"):
            done = run_throng(command, *flags, directory=tmp_path)
            assert done.returncode in (64, 78), (flags, done)
            assert said in done.stderr + done.stdout, (flags, done)
