"""What applications do at a bad moment, or with bad values."""

import asyncio
import socket
import threading

import pytest
from throng_client import AsyncThrong, Throng, ThrongError

TRANSPORTS = ["websocket", "sse", "poll"]
# Limits failures only.
WAIT_SECONDS = 20


@pytest.fixture
def silent():
    """The URL of a listener that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def deaf():
    """The URL of a listener that takes no further connection: to connect takes forever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for each in waiting:
            each.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("peer", ["server", "silent"])
def test_close_of_the_client_ends_what_others_wait_for(request, channel, transport, peer):
    given = request.getfixturevalue(peer)
    url = given if isinstance(given, str) else given.url
    client = Throng(url, transports=[transport])
    begun = threading.Event()
    subscription = client.subscribe(channel, on_state=lambda state: begun.set())
    ended = []

    def follow():
        ended.extend(subscription)
        ended.append("end")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert begun.wait(WAIT_SECONDS)
    client.close()
    thread.join(WAIT_SECONDS)
    assert ended == ["end"]
    assert list(subscription) == []
    subscription.close()


def test_a_subscription_that_begins_during_close_is_refused(server, channel):
    client = Throng(server.url)
    refusals = []

    def follow_another(state):
        """Runs in the middle of `close`, which ends this subscription."""
        if state.name == "closed":
            with pytest.raises(ThrongError) as caught:
                client.subscribe(channel)
            refusals.append(caught.value.code)

    client.subscribe(channel, on_state=follow_another)
    client.close()
    assert refusals == ["closed"]


def test_a_closed_client_says_so(server, channel):
    client = Throng(server.url)
    client.close()
    for work in (lambda: client.publish(channel, "x"), lambda: client.subscribe(channel)):
        with pytest.raises(ThrongError) as caught:
            work()
        assert caught.value.code == "closed"
    client.close()


def test_a_closed_asynchronous_client_says_so(server, channel):
    async def run():
        client = AsyncThrong(server.url)
        await client.aclose()
        with pytest.raises(ThrongError) as caught:
            await client.publish(channel, "x")
        assert (caught.value.code, caught.value.outcome) == ("closed", "unpublished")
        with pytest.raises(ThrongError) as caught:
            client.subscribe(channel)
        assert caught.value.code == "closed"

    asyncio.run(run())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cancelled_attempt_to_connect_is_made_again(server, channel, transport):
    first = server.publish(channel, "first")["id"]

    async def run():
        async with AsyncThrong(server.url, transports=[transport]) as client:
            subscription = client.subscribe(channel, since=first)
            for step in range(12):
                task = asyncio.create_task(anext(subscription))
                # Each time a little further into the connection.
                for _ in range(step):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            server.publish(channel, "second")
            message = await asyncio.wait_for(anext(subscription), WAIT_SECONDS)
            assert message.data == "second"

    asyncio.run(run())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_while_connecting_leaves_no_connection(server, channel, transport):
    async def run():
        async with AsyncThrong(server.url, transports=[transport]) as client:
            for step in range(1, 40, 3):
                subscription = client.subscribe(channel)
                task = asyncio.create_task(anext(subscription, None))
                for _ in range(step):
                    await asyncio.sleep(0)
                await subscription.aclose()
                assert await asyncio.wait_for(task, WAIT_SECONDS) is None
            # The client is open, so nothing else closes what is left.
            await asyncio.to_thread(server.wait_for_connections, channel, 0)
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Throng, AsyncThrong])
def test_the_outcome_without_a_connection_is_unpublished(deaf, kind):
    times = {"publish_timeout": 1.0, "request_timeout": 0.3}

    async def published():
        async with AsyncThrong(deaf, **times) as client:
            await client.publish("a", "x")

    def work():
        if kind is AsyncThrong:
            asyncio.run(published())
        else:
            with Throng(deaf, **times) as client:
                client.publish("a", "x")

    with pytest.raises(ThrongError) as caught:
        work()
    assert (caught.value.code, caught.value.outcome) == ("timeout", "unpublished")


BAD_FIELDS = [{"key": "a\nb"}, {"key": "schlüssel"}, {"content_type": "a\r\nb: c"}]


@pytest.mark.parametrize("fields", [*BAD_FIELDS, {"exclude": "\0"}])
def test_what_no_header_may_have_is_refused_at_once(silent, fields):
    with Throng(silent) as client, pytest.raises(ValueError, match="is not printable ASCII"):
        client.publish("a", "x", **fields)


@pytest.mark.parametrize("token", ["from a file\n", "two words", "ä"])
def test_what_cannot_be_a_token_is_refused(silent, token):
    with pytest.raises(ValueError, match="a token is printable ASCII"):
        Throng(silent, token)
    with Throng(silent, lambda: token) as client, pytest.raises(ThrongError) as caught:
        client.history("a")
    assert caught.value.code == "token_failed"


def test_a_poll_waits(silent):
    with pytest.raises(ValueError, match="poll_wait must be from 1 to 300"):
        Throng(silent, poll_wait=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transport": ["sse"]}, "there is no option 'transport'; did you mean 'transports'?"),
        (
            {"verify": False},
            "there is no option 'verify'; there are: user, no_time, params, transports, ",
        ),
        ({"heartbeat": "25"}, "the option heartbeat must be a number of seconds"),
        ({"params": ["heartbeat"]}, "the option params must be a dict"),
    ],
)
@pytest.mark.parametrize("kind", [Throng, AsyncThrong])
def test_bad_options_are_refused(kind, options, said):
    with pytest.raises(TypeError) as refused:
        kind("http://127.0.0.1:1", **options)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("history", [-1, "10", 2.5])
def test_a_history_that_is_no_number_of_messages_is_refused(history):
    with Throng("http://127.0.0.1:1") as client:
        with pytest.raises(ValueError, match="0 or more"):
            client.subscribe("a", history=history)
