"""One node with channels in memory, on its disk and in NATS at once, and another one beside it."""

import contextlib
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed

from support.lists import names
from support.nats import QUICK, connected
from support.server import BINARY, eventually, run_throng
from support.transports import TRANSPORTS, subscribe
from support.upgrades import UpgradableServer, is_running

TABLES = """
[[channels]]
match = "memory*"
journal = "memory"
local = true

[[channels]]
match = "disk*"
journal = "disk"
local = true

[[channels]]
users = "local*"
durable = true
local = true
"""
PLACES = ["memory", "disk", "nats"]


@pytest.fixture
def node(tmp_path, broker, monkeypatch):
    """Starts nodes with journals of all kinds, each in a directory of its own, and stops them."""
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    with contextlib.ExitStack() as stack:

        def begin(name="one", *flags, settings=TABLES):
            place = tmp_path / name
            place.mkdir(exist_ok=True)
            head = f"engine = 'nats'\nnats = '{broker.url}'\ndata = 'data'\n"
            (place / "throng.toml").write_text(head + settings)
            server = UpgradableServer(place, *QUICK, *flags)
            # The process of now: an upgrade has ended the one before.
            stack.callback(lambda: is_running(server.pid) and server.stop())
            return connected(server)

        yield begin


def history(server, channel):
    page = server.http.get(f"/channels/{channel}/history").json()
    return [message["data"] for message in page["messages"]]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_server_has_channels_in_all_journals(node, transport):
    one = node()
    for place in PLACES:
        with subscribe(transport, one, f"/channels/{place}") as subscriber:
            ids = [one.publish(place, str(number))["id"] for number in range(3)]
            assert [subscriber.next() for _ in ids] == [(id, str(n)) for n, id in enumerate(ids)]
        with subscribe(transport, one, f"/channels/{place}", since=ids[0]) as subscriber:
            assert subscriber.recovered and subscriber.take(2) == ["1", "2"]
        assert history(one, place) == ["0", "1", "2"]
    for place in PLACES:
        with subscribe("sse", one, f"/channels/{place}"):
            assert place in names(one, "/channels")
    metrics = one.metrics()
    assert metrics["throng_log_messages_published_total"] == 9
    assert metrics["throng_nats_connected"] == 1 and "throng_data_bytes" in metrics


def test_after_a_restart_each_log_is_what_its_journal_promises(node):
    one = node()
    ids = {place: one.publish(place, "0")["id"] for place in PLACES}
    one.stop()
    again = node()
    for place, is_kept in zip(PLACES, [False, True, True], strict=True):
        with subscribe("sse", again, f"/channels/{place}", since=ids[place]) as subscriber:
            assert subscriber.recovered is is_kept, place
        assert history(again, place) == (["0"] if is_kept else [])


def test_an_upgrade_hands_over_all_journals(node):
    one = node()
    subscribers = {place: subscribe("sse", one, f"/channels/{place}") for place in PLACES}
    for number in range(3):
        ids = {place: one.publish(place, str(number))["id"] for place in PLACES}
        for place, subscriber in subscribers.items():
            assert subscriber.next() == (ids[place], str(number))
        one.upgrade()
    for place, subscriber in subscribers.items():
        subscriber.close()
        assert history(one, place) == ["0", "1", "2"]


def test_local_channels_are_those_of_their_node(node):
    one, other = node("one"), node("other")
    eventually(lambda: one.metrics()["throng_nats_other_nodes"] == 1, "they know each other")
    for place in PLACES:
        counts = [1, 1] if place != "nats" else [2, 2]
        with subscribe("sse", one, f"/channels/{place}"), subscribe("sse", other, f"/channels/{place}"):
            nodes = [one, other]
            eventually(
                lambda: [server.presence(place)["connections"] for server in nodes] == counts, place
            )
            found = one.http.post(f"/channels/{place}?count=all", content="x").json()
            assert found["subscribers"] == counts[0]
            assert found.get("local", False) == (place != "nats")
            for path in ["presence", "history"]:
                answer = one.http.get(f"/channels/{place}/{path}").json()
                assert answer.get("local", False) == (place != "nats"), (path, answer)
            receipt = one.http.post(
                f"/channels/{place}", content="y", headers={"Prefer": "receipt"}
            ).json()["receipt"]
            assert (receipt["matched"], receipt["outcome"]) == (counts[0], "complete")
            assert receipt.get("local", False) == (place != "nats")
        assert history(other, place) == ([] if place != "nats" else ["x", "y"])


def test_local_channels_go_on_without_nats(node, broker):
    one = node()
    with broker.cut_off():
        eventually(lambda: one.http.post("/channels/nats", content="x").status_code == 503, "refusal")
        for place in PLACES[:2]:
            with subscribe("websocket", one, f"/channels/{place}") as subscriber:
                one.publish(place, "x")
                assert subscriber.take(1) == ["x"]


def test_a_connection_with_kept_channels_follows_others_too(node):
    one = node()
    change = {"add": ["nats-a", "nats-b"]}
    assert one.http.post("/users/ann/subscriptions", json=change).status_code == 200
    for refused, user in [("memory", "ann"), ("disk", "ann"), ("nats-a", "local")]:
        answer = one.http.post(f"/users/{user}/subscriptions", json={"add": [refused]})
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden"), answer.text
    with subscribe("websocket", one, "/users/ann") as subscriber:
        one.publish("nats-a", "1")
        one.publish("nats-b", "2")
        assert subscriber.take(2) == ["1", "2"]


def test_kept_subscriptions_may_be_on_the_disk(node):
    settings = "records = 'disk'\n" + TABLES
    one = node(settings=settings)
    answer = one.http.post("/users/local/subscriptions", json={"add": ["disk", "memory"]})
    assert answer.status_code == 200, answer.text
    assert one.http.post("/users/ann/subscriptions", json={"add": ["nats"]}).status_code == 403
    one.stop()
    again = node(settings=settings)
    assert sorted(again.http.get("/users/local/subscriptions").json()["channels"]) == ["disk", "memory"]
    with subscribe("sse", again, "/users/local") as subscriber:
        again.publish("disk", "1")
        again.publish("memory", "2")
        assert subscriber.take(2) == ["1", "2"]


def test_a_channel_with_another_journal_waits_for_an_upgrade(node, tmp_path):
    one = node()
    file = tmp_path / "one" / "throng.toml"
    before = file.read_text()
    with subscribe("sse", one, "/channels/disk") as subscriber:
        file.write_text(before.replace('match = "disk*"\njournal = "disk"', 'match = "disk*"\njournal = "memory"'))
        one.signal(signal.SIGHUP)
        said = "waits for `throng upgrade` or a restart: channels (journal)"
        eventually(lambda: said in one.log(), "the reload")
        one.publish("disk", "1")
        assert subscriber.take(1) == ["1"]
    file.write_text(before.replace("local = true", ""))
    one.signal(signal.SIGHUP)
    eventually(lambda: "everything stays as it was" in one.log(), "a refusal")
    assert "each node has channels of its own where journal = memory" in one.log()


def test_a_channel_gets_another_journal_while_it_is_followed(node, tmp_path):
    one = node()
    file = tmp_path / "one" / "throng.toml"
    table = '\n[[channels]]\nmatch = "moves"\njournal = "{}"\nlocal = {}\n'
    head = file.read_text()
    journals = ["nats", "memory", "disk", "memory", "nats", "disk", "memory"]
    given, newest = [], None
    with subscribe("websocket", one, "/channels/memory-stays") as stays, ThreadPoolExecutor() as pool:
        for number, journal in enumerate(journals):
            # Those of the journal before are told, come back with their last ids, and go on.
            file.write_text(head + table.format(journal, str(journal != "nats").lower()))
            if number > 0:
                poll = {"since": newest, "wait": 30}
                polls = [pool.submit(one.http.get, "/channels/moves", params=poll) for _ in range(2)]
                eventually(lambda: one.presence("moves")["connections"] == 5, "the polls")
            one.upgrade()
            if number > 0:
                for subscriber in subscribers:
                    with pytest.raises((ConnectionClosed, AssertionError), match="connect again"):
                        subscriber.next()
                    subscriber.close()
                for poll in polls:
                    answer = poll.result()
                    assert (answer.status_code, answer.text) == (204, ""), answer
                    assert answer.headers["Throng-Id"] == newest
            former = newest
            subscribers = [
                subscribe(transport, one, "/channels/moves", since=former) for transport in TRANSPORTS[:3]
            ]
            # A log that is there again goes on: all it lacks is what came elsewhere.
            assert {subscriber.recovered for subscriber in subscribers} == {False if former else None}
            before = history(one, "moves")
            for text in ["a", "b"]:
                newest = one.publish("moves", text)["id"]
                given.append(newest)
                for subscriber in subscribers:
                    while (got := subscriber.next())[0] != newest:
                        # It begins with what the log has from an earlier time.
                        assert got[0] in given
                    assert got == (newest, text)
            assert history(one, "moves") == before + ["a", "b"]
            one.publish("memory-stays", journal)
            assert stays.take(1) == [journal]
        for subscriber in subscribers:
            subscriber.close()
    assert len(set(given)) == len(given) == 2 * len(journals)
    assert one.log().count("channels in use that have another journal now: 1;") == len(journals) - 1


def test_journals_that_do_not_work_are_refused(tmp_path):
    table = "[[channels]]\nmatch = 'a'\n"
    nats = "engine = 'nats'\nnats = 'a'\n"
    for settings, said in [
        (table + "journal = 'disk'", "durable channels need a directory; set `data`"),
        (table + "journal = 'nats'", "journal = nats needs servers of NATS"),
        (nats + table + "journal = 'memory'", "add local = true if that is meant"),
        (nats + table + "journal = 'nats'\nlocal = true", "local = true contradicts journal = nats"),
        ("records = 'disk'", "records = disk needs `data`"),
    ]:
        (tmp_path / "throng.toml").write_text(settings)
        for command in ("check", "serve"):
            done = run_throng(command, directory=tmp_path)
            assert done.returncode in (64, 78), (settings, done)
            assert said in done.stderr + done.stdout, (settings, done)
