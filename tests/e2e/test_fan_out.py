"""One message to many at once, whichever way the kernel is asked to send it."""

import asyncio

import pytest
import websockets

from support import PATIENCE_SECONDS
from support.server import Server, run_throng

SUBSCRIBERS = 60
MESSAGES = 30


@pytest.fixture(params=["auto", "off"])
def server_that_sends(request, tmp_path):
    server = Server(tmp_path, "--io-uring", request.param, "--drain-window", "0ms")
    yield server
    server.kill()


async def collect(uri, count, ready):
    async with websockets.connect(uri, proxy=None) as socket:
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
    return await asyncio.wait_for(asyncio.gather(*followers), PATIENCE_SECONDS)


def test_everybody_gets_every_message_in_order(server_that_sends):
    expected = [f"message {number}" for number in range(MESSAGES)]
    got = asyncio.run(follow(server_that_sends, expected))
    assert got == [expected] * SUBSCRIBERS


def test_a_choice_that_is_none_is_refused(tmp_path):
    done = run_throng("check", "--io-uring", "maybe", directory=tmp_path)
    assert done.returncode == 64
    assert '"maybe" is not a choice: "auto", "on" or "off"' in done.stderr
