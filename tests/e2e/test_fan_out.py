"""One message to many subscribers, for each way of sending."""

import asyncio
import os

import pytest
import websockets

from support import TIMEOUT_SECONDS
from support.server import Server, run_throng

SUBSCRIBERS = 60
MESSAGES = 30


# Where the kernel or a sandbox has no io_uring, `auto` is the same as `off`.
MAY_BE_MISSING = os.environ.get("THRONG_TEST_WITHOUT_IO_URING") == "1"


@pytest.fixture(params=["auto", "off"])
def server_that_sends(request, tmp_path):
    # On a machine with many cores, each worker would have few subscribers.
    flags = ["--workers", "2", "--drain-window", "0ms"]
    server = Server(tmp_path, "--io-uring", request.param, *flags)
    server.io_uring = request.param
    yield server
    server.kill()


async def collect(uri, count, ready):
    async with websockets.connect(uri, proxy=None, open_timeout=TIMEOUT_SECONDS) as socket:
        ready.release()
        return [await socket.recv() for _ in range(count)]


async def follow(server, expected):
    ready = asyncio.Semaphore(0)
    uri = f"{server.ws}/channels/many"
    followers = [
        asyncio.create_task(collect(uri, len(expected), ready)) for _ in range(SUBSCRIBERS)
    ]
    for _ in followers:
        await ready.acquire()
    for message in expected:
        await asyncio.to_thread(server.publish, "many", message)
    return await asyncio.wait_for(asyncio.gather(*followers), TIMEOUT_SECONDS)


def test_every_subscriber_gets_every_message_in_order(server_that_sends):
    expected = [f"message {number}" for number in range(MESSAGES)]
    got = asyncio.run(follow(server_that_sends, expected))
    assert got == [expected] * SUBSCRIBERS
    sends = server_that_sends.metrics()["throng_io_uring_sends_total"]
    if server_that_sends.io_uring == "off":
        assert sends == 0
    elif not MAY_BE_MISSING:
        assert sends > 0, "no fan-out went through io_uring"


def test_an_unknown_choice_is_refused(tmp_path):
    done = run_throng("check", "--io-uring", "maybe", directory=tmp_path)
    assert done.returncode == 64
    assert '"maybe" is not a choice: "auto", "on" or "off"' in done.stderr
