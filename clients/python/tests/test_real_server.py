"""Both clients against the real server."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.server import BINARY, clean_environment, eventually
from throng_client import AsyncThrong, Draft, Message, Throng, ThrongError, User, make_token

TRANSPORTS = ["websocket", "sse", "poll"]
SECRET = "0123456789abcdef0123456789abcdef"
README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def throng(server):
    with Throng(server.url) as client:
        yield client


def test_publish_history_and_presence(throng, channel):
    first = throng.publish(channel, "hello", key="k")
    again = throng.publish(channel, "hello", key="k")
    assert (again.id, again.duplicate, again.subscribers) == (first.id, True, 0)
    throng.publish(channel, {"n": [1, None]})
    throng.publish(channel, b"\x00\xff")
    throng.publish(channel, "<b>", content_type="text/html")
    page = throng.history(channel, limit=3)
    assert [each.data for each in page.messages] == [{"n": [1, None]}, b"\x00\xff", "<b>"]
    assert page.more and page.messages[2].content_type == "text/html"
    rest = throng.history(channel, after=first.id)
    assert len(rest.messages) == 3 and rest.recovered and not rest.more
    assert throng.presence(channel).connections == 0


def test_a_channel_is_created_with_its_first_messages(server, throng, channel):
    properties = {"content_type": "application/json", "ttl": 60}
    first = [Draft(channel, {"n": 1}, event="first"), Draft(channel, 7)]
    made = throng.create(channel, **properties, messages=first)
    assert (made.channel, made.content_type, made.ttl) == (channel, "application/json", 60)
    assert made.ids == tuple(each.id for each in throng.history(channel).messages)
    again = throng.create(channel, **properties, messages=first)
    assert again.ids == () and again == throng.creation(channel)
    assert len(throng.history(channel).messages) == 2
    with pytest.raises(ThrongError) as refused:
        throng.create(channel)
    assert refused.value.code == "already_created"
    with pytest.raises(ThrongError) as unknown:
        throng.creation(channel + "-b")
    assert unknown.value.code == "not_created"
    with pytest.raises(ValueError, match="first message"):
        throng.create(channel, messages=[Draft("another", 1)])

    async def create():
        async with AsyncThrong(server.url) as client:
            return await client.creation(channel)

    assert asyncio.run(create()) == again


def test_a_batch_says_what_became_of_each_line(throng, channel):
    drafts = [
        Draft(channel, "one"),
        Draft("", "bad"),
        Draft(User("ann"), b"\x01", content_type="image/png"),
        Draft(channel, {"two": 2}),
    ]
    one, bad, image, two = throng.publish_batch(drafts)
    assert isinstance(bad, ThrongError) and bad.code == "bad_name"
    assert [each.data for each in throng.history(channel).messages] == ["one", {"two": 2}]
    assert (one.id, two.id) == tuple(each.id for each in throng.history(channel).messages)
    assert throng.history(User("ann")).messages[-1].data == b"\x01" and image.id


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_presence_events_of_a_server_that_has_none_end_the_subscription(server, channel, transport):
    with Throng(server.url, transports=[transport]) as client:
        with pytest.raises(ThrongError, match="presence-events") as refused:
            next(client.subscribe(channel, on_presence=print))
        assert refused.value.code == "bad_request"
        with pytest.raises(ValueError, match="inboxes"):
            client.subscribe(User("ann"), on_presence=print)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_history_is_replayed_and_then_comes_what_is_live(server, throng, channel, transport):
    for number in range(4):
        throng.publish(channel, number)
    with Throng(server.url, transports=[transport]) as client:
        subscription = client.subscribe(channel, history=2)
        heard = [next(subscription) for _ in range(2)]
        if transport != "poll":
            assert throng.presence(channel).connections == 1
        throng.publish(channel, "live")
        heard.append(next(subscription))
    assert [(each.data, each.replayed) for each in heard] == [(2, True), (3, True), ("live", False)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_it_resumes_after_a_stored_id(server, throng, channel, transport):
    ids = [throng.publish(channel, number).id for number in range(3)]
    gaps = []
    with Throng(server.url, transports=[transport]) as client:
        message = next(client.subscribe(channel, since=ids[0], on_gap=gaps.append))
        assert (message.data, message.id, gaps) == (1, ids[1], [])
        lost = client.subscribe(channel, since="other-9", on_gap=gaps.append)
        assert next(lost).data == 0 and [gap.target for gap in gaps] == [channel]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_channels_and_an_inbox_on_one_connection(server, throng, channel, transport):
    targets = [f"{channel}/a", User(f"{channel}-ann"), f"{channel}/b"]
    with Throng(server.url, transports=[transport]) as client:
        since = {target: throng.publish(target, "first").id for target in targets}
        throng.publish(targets[1], "for ann")
        throng.publish(targets[2], "for b")
        subscription = client.subscribe(*targets, since=since)
        heard = {
            message.target: message.data for message in (next(subscription), next(subscription))
        }
        assert heard == {targets[1]: "for ann", targets[2]: "for b"}
        throng.publish(targets[0], "for a")
        assert next(subscription).target == targets[0]
        assert set(subscription.position) == set(targets)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_user_of_a_client_is_present_and_gets_only_what_it_follows(
    server, throng, channel, transport
):
    with Throng(server.url, user="bob", transports=[transport]) as client:
        throng.publish(channel, 1)
        subscription = client.subscribe(channel, history=1)
        assert next(subscription).data == 1
        if transport != "poll":
            assert throng.presence(channel).users == ["bob"]
        throng.publish(User("bob"), "not subscribed")
        throng.publish(channel, 2)
        assert next(subscription).data == 2


def test_a_publication_can_exclude_a_connection(server, throng, channel):
    with Throng(server.url) as client:
        throng.publish(channel, 0)
        subscription = client.subscribe(channel, history=1)
        next(subscription)
        assert throng.publish(channel, 1, exclude=subscription.connection).subscribers == 0
        throng.publish(channel, 2)
        assert next(subscription).data == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_from_another_thread_ends_the_iteration(server, channel, transport):
    with Throng(server.url, transports=[transport]) as client:
        is_open = threading.Event()
        subscription = client.subscribe(
            channel, on_state=lambda state: state.name == "open" and is_open.set()
        )
        closer = threading.Thread(target=lambda: (is_open.wait(20), subscription.close()))
        closer.start()
        assert list(subscription) == []
        closer.join()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cancelled_iteration_loses_nothing(server, channel, transport):
    async def run():
        async with AsyncThrong(server.url, transports=[transport]) as client:
            await client.publish(channel, 0)
            subscription = client.subscribe(channel, history=1)
            heard = [(await anext(subscription)).data]
            for number in range(1, 6):
                waiting = asyncio.create_task(anext(subscription))
                await asyncio.sleep(0)
                waiting.cancel()
                await client.publish(channel, number)
                # It may have had a message before it was cancelled.
                results = await asyncio.gather(waiting, return_exceptions=True)
                heard += [each.data for each in results if isinstance(each, Message)]
            while len(heard) < 6:
                heard.append((await anext(subscription)).data)
            return heard

    assert asyncio.run(run()) == [0, 1, 2, 3, 4, 5]


@pytest.fixture
def guarded(serve, tmp_path):
    """A server with a secret for tokens, and a key that may do everything."""
    (tmp_path / "secret").write_text(SECRET)
    made = subprocess.run(
        [BINARY, "key", "--name", "app"],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    config = made.stderr + '\n[[token-keys]]\nsecret-file = "secret"\n'
    (tmp_path / "throng.toml").write_text(config)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "throng.toml").chmod(0o600)
    server = serve("--config", tmp_path / "throng.toml", "--token-leeway", "0s")
    server.key = made.stdout.strip()
    return server


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tokens_are_replaced_without_a_loss(guarded, transport):
    made = []

    def token():
        made.append(make_token(SECRET, user="ann", subscribe=["a"], expires_in=2))
        return made[-1]

    with Throng(guarded.url, guarded.key) as app:
        app.publish("a", 0)
        with Throng(guarded.url, token, transports=[transport]) as client:
            since = app.history("a").id
            subscription = client.subscribe("a", since=since)
            for number in range(1, 60):
                app.publish("a", number)
                assert next(subscription).data == number
                if len(made) >= 3:
                    break
                threading.Event().wait(0.1)
    assert len(made) >= 3, "the first has expired"


def test_what_is_not_allowed_has_the_code_of_the_server(guarded):
    with Throng(guarded.url) as stranger:
        for act in (lambda: stranger.publish("a", 1), lambda: stranger.history("a")):
            with pytest.raises(ThrongError) as caught:
                act()
            assert (caught.value.code, caught.value.status) == ("unauthorized", 401)
    for transport in TRANSPORTS:
        token = make_token(SECRET, user="ann", subscribe=["a"])
        with Throng(guarded.url, token, transports=[transport]) as client:
            with pytest.raises(ThrongError) as caught:
                next(client.subscribe("b"))
            assert caught.value.code == "forbidden", transport
        with Throng(guarded.url, transports=[transport]) as client:
            with pytest.raises(ThrongError) as caught:
                next(client.subscribe("a"))
            assert caught.value.code == "unauthorized", transport
        with Throng(guarded.url, lambda: None, transports=[transport]) as client:
            with pytest.raises(ThrongError) as caught:
                next(client.subscribe("a"))
            assert caught.value.code == "no_token", transport


def test_the_examples_of_the_readme(server, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    subscribers = [block for block in blocks if "for message in" in block]
    (publisher,) = [block for block in blocks if "import Throng" in block and "publish(" in block]
    assert len(subscribers) >= 2
    for example in subscribers[:2]:
        lines = [line for line in example.splitlines() if line.strip()]
        assert len(lines) <= 5 or "async" in example
        child = start(server, tmp_path, example)
        eventually(lambda: server.presence("news")["connections"] == 1, "a subscriber")
        start(server, tmp_path, publisher).communicate(timeout=20)
        assert json.loads(child.stdout.readline().replace("'", '"')) == {"text": "hello"}
        child.kill()
        child.communicate()
        server.wait_for_connections("news", 0)


def start(server, tmp_path, code):
    path = tmp_path / "example.py"
    path.write_text(code.replace("http://127.0.0.1:8080", server.url))
    source = Path(__file__).parents[1] / "src"
    environment = clean_environment({"PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1"})
    return subprocess.Popen(
        [sys.executable, path], env=environment, stdout=subprocess.PIPE, text=True
    )
