"""httpx-sse and aiohttp, used as in their documentation."""

import asyncio
import json

import aiohttp
import httpx
from httpx_sse import connect_sse

from support import TIMEOUT_SECONDS


def test_httpx_sse_resumes_with_last_event_id(server, channel):
    url = f"{server.url}/channels/{channel}"
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        with connect_sse(client, "GET", url) as source:
            assert source.response.headers["Content-Type"].startswith("text/event-stream")
            server.publish(channel, "one")
            last = next(source.iter_sse())
            assert last.data == "one"
        server.publish(channel, "two\nlines")
        server.publish(channel, b"\x00\xff", Content_Type="application/octet-stream")
        with connect_sse(client, "GET", url, headers={"Last-Event-ID": last.id}) as source:
            events = source.iter_sse()
            resumed = next(events)
            assert (resumed.event, json.loads(resumed.data)) == ("resumed", {"recovered": True})
            assert next(events).data == "two\nlines"
            binary = next(events)
            assert (binary.event, binary.data) == ("binary", "AP8=")
        with connect_sse(client, "GET", url, headers={"Last-Event-ID": "0000zz-9"}) as source:
            assert json.loads(next(source.iter_sse()).data) == {"recovered": False}


def test_httpx_sse_welcome(server, channel):
    url = f"{server.url}/channels/{channel}?welcome=true"
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        with connect_sse(client, "GET", url) as source:
            event = next(source.iter_sse())
            assert event.event == "welcome"
            assert json.loads(event.data)["connection"] == (
                source.response.headers["Throng-Connection"]
            )


def session_for(server):
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    return aiohttp.ClientSession(server.url, timeout=timeout)


def test_aiohttp_websockets_talk_to_each_other(server, channel):
    async def talk():
        async with session_for(server) as session:
            url = f"/channels/{channel}"
            async with session.ws_connect(url) as ann, session.ws_connect(url, compress=15) as bo:
                await ann.send_str("from ann")
                assert await bo.receive_str() == await ann.receive_str() == "from ann"
                await bo.send_bytes(b"\x01\x02")
                assert await ann.receive_bytes() == b"\x01\x02"

    asyncio.run(talk())


def test_aiohttp_long_poll_loses_nothing(server, channel):
    """A poller in a loop against a publisher at full speed: nothing is lost between two polls."""
    messages = [str(n) for n in range(90)]

    async def poll(session, id):
        got = []
        while len(got) < len(messages):
            parameters = {"wait": "10", "since": id}
            async with session.get(f"/channels/{channel}", params=parameters) as response:
                assert response.headers["Throng-Recovered"] == "true"
                id = response.headers["Throng-Id"]
                if response.status == 200:
                    got += (await response.text()).split("\n")
        return got

    async def publish(session):
        for message in messages:
            async with session.post(f"/channels/{channel}", data=message) as response:
                assert response.status == 201

    async def both(id):
        async with session_for(server) as session:
            got, _ = await asyncio.gather(poll(session, id), publish(session))
            return got

    assert asyncio.run(both(server.history(channel)["id"])) == messages


def test_aiohttp_many_polls_wake_together(server, channel):
    async def wake():
        async with session_for(server) as session:

            async def one():
                async with session.get(f"/channels/{channel}", params={"wait": "15"}) as response:
                    return response.status, await response.text()

            polls = [asyncio.create_task(one()) for _ in range(50)]
            await asyncio.to_thread(server.wait_for_connections, channel, 50)
            server.publish(channel, "wake up")
            return await asyncio.gather(*polls)

    assert asyncio.run(wake()) == [(200, "wake up")] * 50
