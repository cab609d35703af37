"""A queue in the background: it never blocks, has limits, and tells what was not published."""

import asyncio
import socket
import threading

import pytest
from throng_client import AsyncThrong, Counts, Throng, ThrongError

# Limits failures only.
WAIT_SECONDS = 20


@pytest.fixture
def nobody():
    """The URL of a port that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent():
    """The URL of a listener that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_messages_are_published_in_their_order(server, channel):
    with Throng(server.url) as client:
        queue = client.background()
        for number in range(2_500):
            assert queue.publish(channel, number)
        assert queue.flush(WAIT_SECONDS)
        assert queue.counts == Counts(published=2_500)
        kept = [each.data for each in client.history(channel, limit=100).messages]
    assert kept == list(range(2_400, 2_500))


def test_publish_does_not_wait_and_a_full_queue_refuses(silent):
    failures = []
    client = Throng(silent, publish_timeout=240)
    queue = client.background(messages_max=3, on_failed=lambda *each: failures.append(each))
    assert [queue.publish("a", number, key=f"k{number}") for number in range(5)] == [1, 1, 1, 0, 0]
    assert queue.counts == Counts(waiting=3, dropped=2)
    assert [(draft.data, error.code, error.outcome) for draft, error in failures] == [
        (3, "queue_full", "unpublished"),
        (4, "queue_full", "unpublished"),
    ]
    assert failures[0][1].key == "k3"
    assert not queue.flush(0.01)
    assert not queue.close(0.01)
    with pytest.raises(ThrongError) as refused:
        queue.publish("a", 5)
    assert refused.value.code == "closed"
    client.close()


def test_bytes_are_limited_too(silent):
    client = Throng(silent, publish_timeout=240)
    queue = client.background(bytes_max=1_000, on_failed=lambda *_: None)
    assert [queue.publish("a", "x" * 300) for _ in range(4)] == [True, True, False, False]
    queue.close(0)
    client.close()


def test_what_the_server_does_not_confirm_is_told(nobody, caplog):
    with Throng(nobody, publish_timeout=0.1) as client:
        queue = client.background()
        queue.publish("a", 1)
        assert queue.flush(WAIT_SECONDS)
        assert queue.counts == Counts(failed=1)
    assert "a message was not published: the server did not confirm" in caplog.text


@pytest.mark.parametrize(
    ("target", "data", "code"), [("", 1, "bad_name"), ("a", "\ud83d", "bad_utf8")]
)
def test_what_can_never_be_published_fails_at_the_call(nobody, target, data, code):
    with Throng(nobody) as client:
        queue = client.background()
        with pytest.raises(ThrongError) as refused:
            queue.publish(target, data)
        with pytest.raises(TypeError, match="default=str"):
            queue.publish("a", object())
        assert refused.value.code == code
        assert queue.counts == Counts()


def test_close_publishes_what_waits(server, channel):
    client = Throng(server.url)
    queue = client.background()
    for number in range(50):
        queue.publish(channel, number)
    client.close()
    assert queue.counts == Counts(published=50)
    assert len(server.history(channel, limit=100)["messages"]) == 50


def test_many_threads_share_a_queue(server, channel):
    with Throng(server.url) as client, client.background() as queue:

        def publish():
            for number in range(100):
                queue.publish(channel, number)

        threads = [threading.Thread(target=publish) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert queue.flush(WAIT_SECONDS)
        assert queue.counts == Counts(published=800)


def test_a_task_publishes_for_asyncio(server, silent, channel):
    async def run():
        async with AsyncThrong(server.url) as client:
            queue = client.background()
            for number in range(30):
                assert queue.publish(channel, number)
            assert await queue.flush(WAIT_SECONDS)
            assert queue.counts == Counts(published=30)
        async with AsyncThrong(silent, publish_timeout=240) as client:
            failures = []
            queue = client.background(messages_max=1, on_failed=lambda *each: failures.append(each))
            assert [queue.publish("a", number) for number in range(2)] == [True, False]
            await asyncio.sleep(0)
            assert not await queue.aclose(0.01)
            assert [error.code for _, error in failures] == ["queue_full", "closed"]
            assert queue.counts.waiting == 0

    asyncio.run(run())
