"""States of channels that several nodes share, over a real nats-server."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from test_state import Follower, at, put, read_newest, refused, remove, set_key, short, slow_reader

from support.nats import QUICK, ailments, connected
from support.nats_client import NatsClient
from support.server import BINARY, eventually
from support.upgrades import UpgradableServer

SETTINGS = """
[[channels]]
match = "plain/*"
messages = 5

[[channels]]
match = "*"
keys = 20
messages = 10
may-end = true
"""


@pytest.fixture
def start(tmp_path, broker, start_node):
    """Starts connected nodes whose channels keep a state."""
    file = tmp_path / "throng.toml"
    file.write_text(SETTINGS)
    return lambda: connected(start_node(broker, "--config", file))


def values(node, channel):
    """The keys of a channel and their values."""
    messages = node.http.get(at(channel)).json()["messages"]
    return {message["state_key"]: message["data"] for message in messages}


def test_all_nodes_have_one_state(start, channel):
    nodes = [start(), start()]
    followers = [Follower("sse", node, channel, state="true") for node in nodes]
    assert [follower.take(1) for follower in followers] == [[("state",)]] * 2
    first = set_key(nodes[0], channel, "a", "1")
    set_key(nodes[1], channel, "b", "1")
    set_key(nodes[1], channel, "a", "2")
    remove(nodes[0], channel, "b")
    changes = [("a", "1"), ("b", "1"), ("a", "2"), ("b", None)]
    for node, follower in zip(nodes, followers, strict=True):
        assert follower.take(4) == changes
        follower.subscriber.close()
        assert values(node, channel) == {"a": "2"}
        assert refused(put(node, channel, "a", "3", If_Match=f'"{first}"')) == (412, "conflict")
        assert refused(node.http.delete(at(channel, "b"))) == (404, "not_found")
        with Follower("stream", node, channel, since=first, state="true") as late:
            assert (late.recovered, late.take(2)) == (True, [("a", "2"), ("b", None)])


def test_of_writers_on_two_nodes_one_wins(start, channel):
    nodes = [start(), start()]
    id = set_key(nodes[0], channel, "turn", "nobody")
    with ThreadPoolExecutor(8) as threads:
        for _ in range(10):
            write = lambda at: put(nodes[at % 2], channel, "turn", f"{at}", If_Match=f'"{id}"')
            answers = list(threads.map(write, range(8)))
            won = [answer.json()["id"] for answer in answers if answer.status_code == 201]
            lost = [refused(answer) for answer in answers if answer.status_code != 201]
            assert (len(won), lost) == (1, [(412, "conflict")] * 7)
            id = won[0]
            for node in nodes:
                assert node.http.get(at(channel, "turn")).headers["ETag"] == f'"{id}"'


def test_superseded_values_are_no_gap_and_other_messages_are(start, channel):
    nodes = [start(), start()]
    before = set_key(nodes[0], channel, "same", "0")
    # Far more than the history keeps.
    lines = [{"channel": channel, "state_key": key, "data": str(n)} for n in range(30) for key in "ab"]
    nodes[0].publish_batch(lines)
    for node in nodes:
        with Follower("stream", node, channel, since=before, state="true") as follower:
            assert (follower.recovered, follower.take(2)) == (True, [("a", "29"), ("b", "29")])
    plain = nodes[1].publish(channel, "no key")["id"]
    nodes[0].publish_batch(lines)
    for node in nodes:
        with Follower("stream", node, channel, since=plain, state="true") as follower:
            assert (follower.recovered, follower.take(2)) == (True, [("a", "29"), ("b", "29")])
        with Follower("stream", node, channel, since=before, state="true") as follower:
            assert follower.recovered is False
            assert follower.state() == [("same", "0"), ("a", "29"), ("b", "29")]


def test_a_page_of_a_large_state_reads_few_messages(tmp_path, brokers, start_node, channel):
    broker = brokers("http: 127.0.0.1:-1")
    (tmp_path / "large.toml").write_text("[[channels]]\nmatch = '*'\nkeys = 3_000\nmessages = 10\n")
    node = connected(start_node(broker, "--config", tmp_path / "large.toml"))
    keys = [f"{at % 10}/{at:04}" for at in range(2_500)]
    for first in range(0, len(keys), 500):
        lines = [{"channel": channel, "state_key": key, "data": key} for key in keys[first : first + 500]]
        assert all("id" in answer for answer in node.publish_batch(lines))
    removed = [key for key in keys if key.startswith("3/")]
    lines = [{"channel": channel, "state_key": key, "tombstone": True} for key in removed]
    assert all("id" in answer for answer in node.publish_batch(lines))
    left = sorted(set(keys) - set(removed))
    sent = lambda: httpx.get(f"{broker.monitor}/varz", trust_env=False).json()["out_msgs"]

    def page(**query):
        """A page's keys, where the next one goes on, and how many messages the servers have sent meanwhile."""
        before = sent()
        answer = node.http.get(at(channel), params=query).json()
        assert all(it["data"] == it["state_key"] for it in answer["messages"])
        return [it["state_key"] for it in answer["messages"]], answer.get("next"), sent() - before

    # Some are about other things.
    found, next, count = page(prefix="7/", limit=20)
    assert (found, next) == (keys[7::10][:20], found[-1]) and count < 150, count
    found, next, count = page(prefix="7/", limit=20, after=next)
    assert found == keys[7::10][20:40] and count < 150, count
    # Tombstones are passed over, in few requests.
    found, next, count = page(after="2/2492", limit=1)
    assert found == ["4/0004"] and count < 1_000, count
    all_keys, next = [], None
    while not all_keys or next:
        found, next, _ = page(limit=1_000, **({"after": next} if next else {}))
        all_keys += found
    assert all_keys == left


def test_limits_hold_for_all_nodes(start, channel):
    nodes = [start(), start()]

    def set_many(at_node):
        return [put(nodes[at_node], channel, f"{at_node}/{n}", "x").status_code for n in range(15)]

    with ThreadPoolExecutor(2) as threads:
        statuses = sum(threads.map(set_many, (0, 1)), [])
    assert sorted(statuses) == [201] * 20 + [507] * 10
    for node in nodes:
        assert len(values(node, channel)) == 20
        assert refused(put(node, channel, "one more", "x")) == (507, "not_stored")
    gone = next(iter(values(nodes[0], channel)))
    remove(nodes[0], channel, gone)
    set_key(nodes[1], channel, "one more", "x")


def test_a_channel_asks_for_its_state(start):
    node = start()
    answer = put(node, "plain%2Fa", "k", "1")
    assert refused(answer) == (400, "bad_request")
    node.publish("plain/a", "no key")


def test_a_value_expires_without_the_node_that_has_set_it(start, channel):
    nodes = [start(), start()]
    set_key(nodes[0], channel, "stays", "x")
    set_key(nodes[0], channel, "ann", "typing", Throng_Expires_In="3")
    with Follower("sse", nodes[1], channel, state="true") as follower:
        assert follower.state() == [("stays", "x"), ("ann", "typing")]
        nodes[0].kill()
        assert follower.take(1) == [("ann", None)]
    assert values(nodes[1], channel) == {"stays": "x"}


def test_an_erased_value_is_gone_on_every_node(start, channel):
    nodes = [start(), start()]
    set_key(nodes[0], channel, "b", "x")
    id = set_key(nodes[0], channel, "ann", "secret")
    with Follower("sse", nodes[1], channel, state="true") as follower:
        assert follower.state() == [("b", "x"), ("ann", "secret")]
        erased = nodes[0].http.delete(f"/channels/{channel}/messages/{id}")
        assert erased.status_code == 200, erased.text
        assert sorted(map(str, follower.take(2))) == sorted(map(str, [("erased",), ("ann", None)]))
    for node in nodes:
        assert values(node, channel) == {"b": "x"}
    erased = nodes[1].http.delete(f"/channels/{channel}/history")
    assert erased.status_code == 200, erased.text
    assert [values(node, channel) for node in nodes] == [{}, {}]
    set_key(nodes[0], channel, "c", "new")
    assert values(nodes[1], channel) == {"c": "new"}


def test_a_channel_with_a_state_ends(start, channel):
    nodes = [start(), start()]
    set_key(nodes[0], channel, "a", "1")
    ended = nodes[1].http.post(f"/channels/{channel}/end", content=b"last")
    assert ended.status_code == 201, ended.text
    for node in nodes:
        assert refused(put(node, channel, "a", "2")) == (409, "closed")
        assert values(node, channel) == {"a": "1"}
    assert nodes[0].http.delete(f"/channels/{channel}/end").status_code == 200
    set_key(nodes[1], channel, "a", "2")


def test_a_state_outlives_nodes_and_nats(start, channel, broker):
    node = start()
    id = set_key(node, channel, "a", "1")
    lines = [{"channel": channel, "state_key": "b", "data": str(n)} for n in range(30)]
    node.publish_batch(lines)
    node.kill()
    broker.kill()
    broker.launch()
    nodes = [start(), start()]
    for node in nodes:
        assert values(node, channel) == {"a": "1", "b": "29"}
        with Follower("stream", node, channel, since=id, state="true") as follower:
            assert (follower.recovered, follower.take(1)) == (True, [("b", "29")])
    assert put(nodes[0], channel, "a", "2", If_Match=f'"{id}"').status_code == 201


def test_a_read_without_nats_says_what_it_is(start, channel, broker):
    node = start()
    set_key(node, channel, "a", "1")
    broker.kill()

    def refusal():
        answer = node.http.get(f"/channels/{channel}/state").json()
        return answer.get("message") if answer.get("error") == "unavailable" else None

    eventually(lambda: refusal() == "the channel's journal is away; repeat this later", refusal)
    broker.launch()
    connected(node)
    assert values(node, channel) == {"a": "1"}


def test_a_channel_of_which_only_values_are_left_is_listed(start, channel, broker):
    node = start()
    set_key(node, channel, "a", "1")
    id = set_key(node, channel, "b", "2")
    # As the limits of a stream drop messages; the copies of values are other ones.
    with NatsClient(broker.upstream) as client:
        filter = f"throng.in.channels.c.{channel}"
        assert client.request("$JS.API.STREAM.PURGE.throng-channels", {"filter": filter})["purged"] == 2
    expected = {"channel": channel, "subscribers": 0, "id": id, "messages": 0}
    for one in (node, start()):
        assert one.http.get("/channels").json()["channels"] == [expected]
        assert values(one, channel) == {"a": "1", "b": "2"}
    for key in "ab":
        remove(node, channel, key)
    with NatsClient(broker.upstream) as client:
        assert client.request("$JS.API.STREAM.PURGE.throng-channels", {"filter": filter})["purged"] == 2
    assert node.http.get("/channels").json()["channels"] == []


def test_a_state_goes_on_over_a_live_upgrade(tmp_path, broker, monkeypatch, channel):
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    (tmp_path / "throng.toml").write_text(SETTINGS)
    flags = [*QUICK, "--config", tmp_path / "throng.toml", "--engine", "nats", "--nats", broker.url]
    node = connected(UpgradableServer(tmp_path, *flags))
    try:
        for key in "abc":
            set_key(node, channel, key, f"{key}1")
        id = node.http.get(at(channel, "a")).headers["ETag"]
        with Follower("websocket", node, channel, state="true") as follower:
            assert follower.take(4)[-1] == ("state",)
            set_key(node, channel, "short", "x", Throng_Expires_In="3")
            assert follower.take(1) == [("short", "x")]
            node.upgrade()
            eventually(lambda: not ailments(node), "the new process is connected")
            assert put(node, channel, "a", "a2", If_Match=id).status_code == 201
            got = follower.take(2)
            assert sorted(got, key=str) == sorted([("a", "a2"), ("short", None)], key=str)
        with Follower("sse", node, channel, state="true") as follower:
            assert follower.state() == [("b", "b1"), ("c", "c1"), ("a", "a2")]
    finally:
        node.stop()


def test_history_has_the_values_that_are_kept(start, channel):
    node = start()
    set_key(node, channel, "a", "1")
    for number in range(12):
        node.publish(channel, f"{number}")
    messages = node.history(channel)["messages"]
    assert [short(message) for message in messages][-10:] == [f"{number}" for number in range(2, 12)]
    page = node.http.get(f"/channels/{channel}/history", params={"limit": 100}).json()
    assert json.dumps(page["messages"][0]["data"]) == '"1"'


SLOW = """
[[channels]]
match = "*"
keys = 20
messages = 10
max-lag-bytes = "256KiB"
"""


def test_a_slow_reader_gets_each_newest_value(tmp_path, broker, start_node, channel):
    """It does not read while 24 MB come, more than the kernel takes for it: in few messages, as each costs
    a batch of the stream."""
    (tmp_path / "slow.toml").write_text(SLOW)
    node = connected(start_node(broker, "--config", tmp_path / "slow.toml", "--heartbeat", "1h"))
    with slow_reader(node, channel, 4, 100, 60_000) as (slow, newest):
        values, notices = read_newest(slow, newest)
        # Sequences of the stream say nothing of how many these are.
        assert not any("count" in notice for notice in notices)
        assert notices and values < 4 * 100, "it was slow"
        set_key(node, channel, "key 0", "last")
        assert short(json.loads(slow.read_message())) == ("key 0", "last")
    samples = node.metrics()
    assert samples["throng_messages_conflated_total"] == len(notices)
    assert samples['throng_disconnects_total{reason="lag"}'] == 0
    size = lambda: node.metrics()["throng_nats_stream_subjects"]
    eventually(lambda: size() > 4, "what the server says of its stream")
