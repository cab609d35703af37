"""JSON that not every parser reads is refused on every way in, and everything else passes."""

import json

import pytest
from websockets.sync.client import connect

JSON = {"Content-Type": "application/json"}
DEEPEST = "[" * 128 + "]" * 128
LONG = '{"n":' + "9" * 5000 + ',"n":1e99999}'
REFUSED = {
    "129 levels": "[" * 129 + "]" * 129,
    "16,000 levels": '{"a":' * 8_000 + "[" * 8_000 + "]" * 8_000 + "}" * 8_000,
    "half of a pair": r'{"a":["\ud83d"]}',
    "half of a pair as a name": r'{"\uDE00":1}',
    "a pair in the wrong order": r'["\ude00\ud83d"]',
}
PASSED = {
    "128 levels": DEEPEST,
    "a long number and a repeated name": LONG,
    "a pair": r'["\ud83d\ude00", "\\ud83d"]',
}


def by_post(server, channel, body):
    answer = server.http.post(f"/channels/{channel}", content=body, headers=JSON)
    return answer.json()


def by_name_in_the_query(server, channel, body):
    return server.http.post("/publish", params={"channel": channel}, content=body, headers=JSON).json()


def line(channel, body):
    return f'{{"channel":"{channel}","data":{body}}}'


def by_lines(server, channel, body):
    return json.loads(server.http.post("/publish", content=line(channel, body)).text)


def by_array(server, channel, body):
    return server.http.post("/publish", content=f"[{line(channel, body)}]").json()[0]


def by_text_with_a_type(server, channel, body):
    """A string of a batch whose type says that it is JSON."""
    item = {"channel": channel, "data": body, "content_type": "application/ld+json"}
    return json.loads(server.http.post("/publish", content=json.dumps(item)).text)


def by_v1(server, channel, body):
    url = f"{server.ws}/subscribe"
    with connect(url, subprotocols=["throng.v1"], proxy=None, max_size=None) as socket:
        socket.recv()
        socket.send(line(channel, body).replace("{", '{"type":"publish",', 1))
        answer = json.loads(socket.recv())
    return answer if answer["type"] == "published" else answer | {"error": answer["code"]}


WAYS = [by_post, by_name_in_the_query, by_lines, by_array, by_text_with_a_type, by_v1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", REFUSED)
def test_json_that_not_everybody_reads_is_refused(server, channel, case, way):
    answer = way(server, channel, REFUSED[case])
    assert answer["error"] == "bad_json", answer
    what = "pair" if "pair" in case else "128 levels"
    assert what in answer["message"]
    assert server.history(channel)["messages"] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", PASSED)
def test_everything_else_passes_as_it_is_written(server, channel, case, way):
    body = PASSED[case]
    assert "id" in way(server, channel, body)
    assert f'"data":{body}' in server.http.get(f"/channels/{channel}/history").text


def test_text_may_look_like_anything(server, channel):
    for body in REFUSED.values():
        server.publish(channel, body)
    texts = [message["data"] for message in server.history(channel)["messages"]]
    assert texts == list(REFUSED.values())
