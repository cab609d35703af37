"""Messages that expire."""

import json
import os

import pytest

from support.raw import Raw
from support.server import eventually
from support.transports import subscribe


def post(server, path, body, **headers):
    response = server.http.post(path, content=body, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()["id"]


def page(server, path):
    return server.http.get(f"{path}/history").json()["messages"]


def test_an_expired_message_is_in_no_history_and_leaves_no_gap(server, channel):
    path = f"/channels/{channel}"
    before = post(server, path, "before")
    brief = post(server, path, "brief", **{"Throng-Expires-In": "1"})
    line = {"channel": channel, "data": "brief, too", "expires_in": 1}
    batch = server.http.post("/publish", content=json.dumps(line))
    assert "id" in batch.json()
    after = post(server, path, "after", **{"Throng-Expires-In": "31536000"})
    found = [message["id"] for message in page(server, path)]
    assert {before, after} <= set(found)
    envelope = next(message for message in page(server, path) if message["id"] == after)
    assert envelope["expires"] == envelope["time"] + 31_536_000_000
    eventually(lambda: len(page(server, path)) == 2, "the expiry")
    with Raw(server) as client:
        client.request("GET", f"{path}?since={before}&wait=0")
        response = client.read_response()
        assert (response.status, response.body) == (200, b"after")
        assert response.header("throng-recovered") == "true"
    assert brief not in [message["id"] for message in page(server, path)]
    eventually(lambda: server.metrics()["throng_log_messages_expired_total"] >= 2, "the count")


@pytest.mark.parametrize("transport", ["stream", "sse", "websocket"])
def test_a_client_that_is_there_gets_what_expires_later(server, channel, transport):
    path = f"/channels/{channel}"
    with subscribe(transport, server, path) as subscriber:
        server.wait_for_connections(channel, 1)
        post(server, path, "brief", **{"Throng-Expires-In": "60"})
        assert subscriber.next()[1] == "brief"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "31536001"])
def test_a_time_that_is_none_is_refused(server, channel, value):
    headers = {"Throng-Expires-In": value}
    response = server.http.post(f"/channels/{channel}", content="x", headers=headers)
    assert (response.status_code, response.json()["error"]) == (400, "bad_parameter")
    assert page(server, f"/channels/{channel}") == []


# `make test-long` has a million. An erased message leaves the same entry as one that has expired.
MANY, BATCH = int(os.environ.get("THRONG_TEST_EXPIRED", "20_000")), 10_000
LARGE = ["--history-messages", MANY * 4, "--history-bytes", max(64 << 20, MANY << 9)]
VISITED = "throng_history_entries_visited_total"


def test_a_page_passes_over_any_number_of_expired_messages(serve, channel):
    """Two long runs, of which a page looks at no more than at each other entry."""
    server = serve(*LARGE)

    def publish(count, **fields):
        line = json.dumps({"channel": channel, "data": "x", **fields}) + "\n"
        ids = []
        while len(ids) < count:
            answers = server.http.post("/publish", content=line * min(BATCH, count - len(ids))).text.splitlines()
            ids += [json.loads(answer)["id"] for answer in answers]
        return ids

    def pages(**query):
        before = server.metrics()[VISITED]
        answer = server.http.get(f"/channels/{channel}/history", params=query).json()
        return [it["id"] for it in answer["messages"]], answer["more"], server.metrics()[VISITED] - before

    first = publish(2)
    brief = publish(MANY // 2, expires_in=1) + publish(MANY // 2, expires_in=1)
    middle = publish(1)
    publish(MANY // 2, expires_in=1)
    last = publish(1)
    kept = first + middle + last
    eventually(lambda: pages(limit=1_000)[0] == kept, "the expiry")
    for erased in (brief[0], middle[0]):
        # What has expired cannot be erased, what lies between two runs joins them.
        answer = server.http.delete(f"/channels/{channel}/messages/{erased}")
        assert answer.status_code == (200 if erased == middle[0] else 404), answer.text
    for query, expected, more in [
        ({"limit": 10}, None, False),
        ({"limit": 2, "after": first[0]}, [first[1], last[0]], True),
        ({"limit": 1, "before": last[0]}, [first[1]], True),
        ({"limit": 10, "before": brief[MANY // 3]}, first, False),
        ({"limit": 10, "after": brief[MANY // 3]}, None, False),
    ]:
        found, has_more, visited = pages(**query)
        assert visited <= 2 * (query["limit"] + 1), (query, visited)
        if expected is not None:
            assert (found, has_more) == (expected, more), query
