"""Subscriptions that several nodes keep together: changed on one, they hold on all."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.doors import Door
from support.nats import connected, user_of_the_guide
from support.server import eventually, run_throng
from support.transports import TRANSPORTS, subscribe

RESTRICTED = '"$KV.throng-subscriptions.>", '


@pytest.fixture
def node(tmp_path, strict_broker, start_node):
    """Starts nodes, which may not be connected yet."""
    started = []

    def begin(door=strict_broker, *flags):
        started.append(start_node(door, "--nats-login", tmp_path / "login", *flags))
        return started[-1]

    begin.is_restricted = False
    yield begin
    for server in started:
        if server.process.poll() is None:
            server.stop()
        assert begin.is_restricted == ("Permissions Violation" in server.log())


def change(one, method, user, body=None, **parameters):
    answer = one.http.request(
        method, f"/users/{user}/subscriptions", json=body, params=parameters
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def kept(one, user):
    answer = one.http.get(f"/users/{user}/subscriptions")
    assert answer.status_code == 200, answer.text
    return sorted(answer.json()["channels"])


def knows(one, user, channels):
    eventually(
        lambda: kept(one, user) == sorted(channels),
        lambda: f"what {user} follows:\n{one.log()}",
    )


def connections(one, channel):
    """Those of all nodes."""
    return one.presence(channel)["connections"]


def follow_all(one, channel, count):
    eventually(
        lambda: connections(one, channel) == count,
        lambda: f"{count} connections:\n{one.log()}",
    )


@pytest.mark.parametrize("transport", TRANSPORTS[:3])
def test_a_change_acts_on_the_connections_of_all_nodes(node, channel, transport):
    near, far = connected(node()), connected(node())
    user = f"u/{channel}"
    name = user.replace("/", "%2F")
    with subscribe(transport, near, f"/users/{name}") as here:
        with subscribe(transport, far, f"/users/{name}") as there:
            assert change(near, "POST", name, {"add": [channel, "b"]})["added"] == 2
            # The node that was asked has acted when it answers, the other one a moment later.
            assert near.publish(channel, "one")["subscribers"] == 1
            assert here.take(1) == ["one"]
            follow_all(near, channel, 2)
            far.publish(channel, "two")
            assert here.take(1) == ["two"]
            found = there.take(1)
            assert (found + there.take(1) if found == ["one"] else found)[-1] == "two"
            assert change(far, "DELETE", name, channel=channel)["removed"] == 1
            assert far.publish(channel, "three")["subscribers"] == 0
            follow_all(far, channel, 0)
            near.publish(channel, "four")
            near.publish_to_user(user, "end")
            assert there.take(1) == ["end"]
            assert [data for data in here.take(1) if data != "three"] in ([], ["end"])
            for one in (near, far):
                knows(one, name, ["b"])
                followers = one.http.get("/channels/b/followers").json()
                assert (followers["followers"], followers["count"]) == ([user], 1)


def test_a_node_that_begins_has_what_users_follow(node, channel):
    first = connected(node())
    change(first, "PUT", "ann", {"channels": [channel, "a", "b"]})
    change(first, "PUT", "bob", {"channels": ["a"]})
    change(first, "DELETE", "bob")
    second = connected(node())
    assert (kept(second, "ann"), kept(second, "bob")) == (sorted([channel, "a", "b"]), [])
    with subscribe("sse", second, "/users/ann") as there:
        first.publish(channel, "x")
        assert there.take(1) == ["x"]
    # Who was removed and comes back replaces an entry that no node has in memory.
    assert change(second, "POST", "bob", {"add": ["c"]})["channels"] == 1
    knows(first, "bob", ["c"])
    first.stop()
    again = connected(node())
    assert (kept(again, "ann"), kept(again, "bob")) == (sorted([channel, "a", "b"]), ["c"])


def test_changes_of_one_user_on_several_nodes_do_not_overwrite_each_other(node):
    nodes = [connected(node()) for _ in range(3)]

    def begin(at):
        for number in range(30):
            change(nodes[at], "POST", "ann", {"add": [f"{at}/{number}"], "remove": [f"x{number}"]})
            if number % 3 == 2:
                change(nodes[at], "POST", "ann", {"remove": [f"{at}/{number}"]})

    with ThreadPoolExecutor() as pool:
        list(pool.map(begin, range(3)))
    expected = [f"{at}/{number}" for at in range(3) for number in range(30) if number % 3 != 2]
    for one in nodes:
        knows(one, "ann", expected)


def test_a_change_that_comes_to_nothing_is_compared_with_nats_first(node, strict_broker):
    door = Door(lambda: strict_broker.upstream)
    near, far = connected(node()), connected(node(door))
    change(near, "PUT", "ann", {"channels": ["a"]})
    knows(far, "ann", ["a"])
    assert change(far, "PUT", "ann", {"channels": ["a"]})["added"] == 0
    with door.cut_off():
        change(near, "DELETE", "ann")
        # It still has the channel, and does not know whether the user has.
        answer = far.http.put("/users/ann/subscriptions", json={"channels": ["a"]}, timeout=20)
        assert (answer.status_code, answer.json()["error"]) == (503, "unavailable"), answer.text
    connected(far)
    knows(far, "ann", [])
    assert change(far, "PUT", "ann", {"channels": ["a"]})["added"] == 1
    door.close()


def test_a_node_that_is_cut_off_refuses_changes_and_catches_up(node, strict_broker, channel):
    door = Door(lambda: strict_broker.upstream)
    near = connected(node())
    # The stream has messages of other channels.
    near.publish("other", "y")
    far = connected(node(door))
    change(near, "PUT", "ann", {"channels": ["a"]})
    knows(far, "ann", ["a"])

    def age():
        return far.metrics()["throng_nats_subscriptions_age_seconds"]

    with subscribe("sse", far, "/users/ann") as there:
        with door.cut_off():
            change(near, "POST", "ann", {"add": [channel], "remove": ["a"]})
            eventually(lambda: age() >= 3, "it says that it may not know all")
            eventually(lambda: far.metrics()["throng_nats_connected"] == 0, "it is cut off")
            refused = far.http.post("/users/ann/subscriptions", json={"add": ["b"]})
            assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
            assert "Retry-After" in refused.headers
            assert kept(far, "ann") == ["a"], "what it knows"
        connected(far)
        knows(far, "ann", [channel])
        follow_all(near, channel, 1)
        near.publish(channel, "x")
        assert there.take(1) == ["x"]
        eventually(lambda: age() < 3, "it is up to date")
    door.close()


def test_subscriptions_survive_the_broker(node, strict_broker, channel):
    first = connected(node())
    change(first, "PUT", "ann", {"channels": [channel]})
    with subscribe("sse", first, "/users/ann") as there:
        strict_broker.kill()
        eventually(lambda: first.metrics()["throng_nats_connected"] == 0, "it is cut off")
        refused = first.http.delete("/users/ann/subscriptions")
        assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
        second = node()
        for path in ("/users/ann/subscriptions", f"/channels/{channel}/followers"):
            unknown = second.http.get(path)
            assert (unknown.status_code, unknown.json()["error"]) == (503, "unavailable")
        strict_broker.launch()
        connected(first)
        connected(second)
        assert kept(second, "ann") == [channel]
        change(second, "POST", "ann", {"add": ["b"]})
        knows(first, "ann", [channel, "b"])
        second.publish(channel, "x")
        assert there.take(1) == ["x"]


def test_a_bucket_that_is_lost_is_written_again_by_who_knows_it(node, strict_broker):
    first = connected(node())
    for user in ("ann", "bob"):
        change(first, "PUT", user, {"channels": ["a", user]})
    strict_broker.kill()
    shutil.rmtree(strict_broker.directory / "store")
    strict_broker.launch()
    connected(first)
    first.says("the bucket of subscriptions in NATS has lost entries")
    second = connected(node())
    for user in ("ann", "bob"):
        knows(second, user, ["a", user])
    assert change(second, "POST", "ann", {"remove": ["a"]})["removed"] == 1
    knows(first, "ann", ["ann"])
    assert change(first, "POST", "bob", {"remove": ["a"]})["removed"] == 1
    knows(second, "bob", ["bob"])


def test_a_change_that_nats_does_not_allow_is_refused(node, brokers):
    assert RESTRICTED in user_of_the_guide()
    user = user_of_the_guide().replace(RESTRICTED, "")
    node.is_restricted = True
    one = connected(node(brokers(f"authorization {{ users: [ {user} ] }}")))
    refused = one.http.put("/users/ann/subscriptions", json={"channels": ["a"]})
    assert (refused.status_code, refused.json()["error"]) == (507, "not_stored")
    assert kept(one, "ann") == []


def test_an_import_at_one_node_is_on_all(node, tmp_path):
    near, far = connected(node()), connected(node())
    lines = [json.dumps({"user": f"u{n}", "channels": ["all", f"c{n % 7}"]}) for n in range(10_000)]
    path = tmp_path / "changes.ndjson"
    path.write_text("\n".join(lines))

    def load(one, *flags):
        command = ("subscriptions", "import", *flags, path, "--url", one.url)
        done = run_throng(*command, directory=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert load(near) == {"lines": 10_000, "added": 20_000, "removed": 0, "errors": 0}

    def count(one, channel):
        return one.http.get(f"/channels/{channel}/followers").json()["count"]

    eventually(lambda: count(far, "all") == 10_000, "the other node has all")
    assert [count(far, f"c{n}") for n in range(7)] == [count(near, f"c{n}") for n in range(7)]
    again = {"lines": 10_000, "added": 0, "removed": 0, "errors": 0}
    assert (load(far), load(far, "--atomic")) == (again, again)
    third = connected(node())
    assert count(third, "all") == 10_000


def test_a_position_in_many_channels_resumes_on_another_node(node, channel):
    near, far = connected(node()), connected(node())
    names = [f"{channel}-{number}" for number in range(50)]
    change(near, "PUT", "ann", {"channels": names})
    knows(far, "ann", names)
    near.publish(names[0], "old")
    with subscribe("sse", far, "/users/ann") as first:
        follow_all(near, names[49], 1)
        for number, name in enumerate(names[:3]):
            (near, far)[number % 2].publish(name, name)
        for name in names[:2]:
            id, data = first.next()
            assert data == name and id.startswith("~") and len(id) <= 64
    for number, name in enumerate(names[3:6]):
        (near, far)[number % 2].publish(name, name)
    for transport, one in (("sse", near), ("websocket", near), ("poll", far)):
        with subscribe(transport, one, "/users/ann", since=id) as second:
            assert second.recovered is True
            assert second.take(4) == names[2:6]
    far.stop()
    third = connected(node())
    with subscribe("sse", third, "/users/ann", since=id) as second:
        assert second.recovered is True
        assert second.take(4) == names[2:6]


def test_a_new_connection_gets_nothing_old_on_a_node_that_followed_nothing(node, channel):
    near, far = connected(node()), connected(node())
    change(near, "PUT", "ann", {"channels": [f"{channel}-a", f"{channel}-b"]})
    knows(far, "ann", [f"{channel}-a", f"{channel}-b"])
    for number in range(5):
        near.publish(f"{channel}-{'ab'[number % 2]}", f"old {number}")
    with subscribe("sse", far, "/users/ann") as there:
        near.publish(f"{channel}-b", "new")
        id, data = there.next()
        assert data == "new"
    near.publish(f"{channel}-a", "later")
    with subscribe("sse", near, "/users/ann", since=id) as here:
        assert (here.recovered, here.take(1)) == (True, ["later"])


def test_what_a_node_missed_comes_in_order_and_its_positions_miss_nothing(node, strict_broker, channel):
    door = Door(lambda: strict_broker.upstream)
    near, far = connected(node()), connected(node(door))
    names = [f"{channel}-{letter}" for letter in "abc"]
    change(near, "PUT", "ann", {"channels": names})
    knows(far, "ann", names)
    published = []

    def publish(count):
        for _ in range(count):
            published.append(f"m{len(published)}")
            near.publish_surely(names[len(published) * 7 % 11 % 3], published[-1])

    with subscribe("sse", far, "/users/ann") as there:
        follow_all(near, names[0], 1)
        publish(3)
        assert there.take(3) == published
        with door.cut_off():
            eventually(lambda: far.metrics()["throng_nats_connected"] == 0, "it is cut off")
            publish(30)
        publish(10)
        for at in range(3, len(published)):
            id, data = there.next()
            assert data == published[at]
            if at % 5 == 0:
                with subscribe("sse", near, "/users/ann", since=id) as other:
                    assert other.recovered is True
                    assert other.take(len(published) - at - 1) == published[at + 1 :]
    door.close()
