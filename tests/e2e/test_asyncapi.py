"""The AsyncAPI document: it is valid, and frames are as it says."""

import copy
import json

import pytest
from conftest import HERE
from support import TIMEOUT_SECONDS
from support.commands import run
from websockets.sync.client import connect

# The answers to commands that no command of the test below has.
OTHERS = {"authenticated", "updated"}


@pytest.fixture(scope="module")
def asyncapi(server):
    return server.http.get("/asyncapi.json").json()


class Messages:
    """The messages that one party sends in a channel of the document, with no fields but theirs."""

    def __init__(self, document, channel):
        self.document = copy.deepcopy(document)
        for schema in nested(self.document["components"]):
            if "properties" in schema and schema.get("type") == "object":
                schema["additionalProperties"] = False
        names = self.document["channels"][channel]["messages"]
        messages = self.document["components"]["messages"]
        self.validators = {name: self.validator(messages[name]["payload"]) for name in names}
        self.seen = set()

    def validator(self, payload):
        # Its import makes parsers of dozens of grammars: too long for every process that collects tests.
        from jsonschema import Draft202012Validator

        return Draft202012Validator({**payload, "components": self.document["components"]})

    def check(self, frame, *, of):
        """Expects that a frame is one of the messages `of`, and no other one of them."""
        fitting = [name for name in of if self.validators[name].is_valid(frame)]
        assert len(fitting) == 1, (frame, fitting)
        self.seen.update(fitting)
        return fitting[0]

    def of(self, operation):
        """The messages of an operation of the document."""
        return names_of(self.document["operations"][operation]["messages"])

    def answers_to(self, operation):
        return names_of(self.document["operations"][operation]["reply"]["messages"])


def names_of(references):
    return [reference["$ref"].rsplit("/", 1)[1] for reference in references]


def nested(value):
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from nested(part)
    elif isinstance(value, list):
        for part in value:
            yield from nested(part)


def test_the_document_is_valid(asyncapi, tmp_path):
    path = tmp_path / "asyncapi.json"
    path.write_text(json.dumps(asyncapi))
    said = run("node", HERE / "node" / "asyncapi.mjs", path, timeout=14 * TIMEOUT_SECONDS)
    assert int(said.split()[-2]) == len(asyncapi["operations"])


def commands(channel, other):
    """One of each command, and some with all their fields."""
    yield {"type": "ping"}
    yield {"type": "subscribe", "channel": other, "history": 1, "ref": "a"}
    yield {"type": "publish", "channel": channel, "data": {"n": 1}}
    publication = {"data": "aGk=", "encoding": "base64", "content_type": "image/png"}
    publication |= {"key": "k", "expires_in": 30, "echo": False}
    yield {"type": "publish", "channel": channel, **publication, "ref": 2}
    yield {"type": "history", "channel": channel, "limit": 10}
    yield {"type": "presence", "channel": channel, "limit": 5}
    yield {"type": "read", "user": "ann"}
    yield {"type": "unsubscribe", "channel": other, "ref": 3}
    entries = [other, {"channel": f"{other}-2", "history": 1}, channel]
    yield {"type": "subscribe", "channels": entries, "history": 0, "ref": 4}
    yield {"type": "unsubscribe", "channels": [other, {"channel": f"{other}-2"}, "none"]}
    yield {"type": "unsubscribe", "channel": other}
    yield {"type": "auth", "token": "none"}


def test_frames_of_v1_are_as_the_document_says(server, asyncapi, channel):
    messages = Messages(asyncapi, "severalV1")
    url = f"{server.ws}/subscribe?channel={channel}&user=ann"
    with connect(url, subprotocols=["throng.v1"]) as socket:
        receive = lambda: json.loads(socket.recv(timeout=TIMEOUT_SECONDS))
        notices = messages.of("severalV1Send")
        first = [messages.check(receive(), of=notices) for _ in range(3)]
        assert first == ["welcome", "subscribed", "subscribed"]
        for command in commands(channel, f"{channel}-other"):
            operation = f"severalV1_{command['type']}"
            messages.check(command, of=messages.of(operation))
            socket.send(json.dumps(command))
            # An answer may come behind messages.
            while (frame := receive())["type"] == "message":
                messages.check(frame, of=["message"])
            name = messages.check(frame, of=messages.answers_to(operation))
            assert frame.get("ref") == command.get("ref"), frame
            refused = command["type"] == "auth" or command == {
                "type": "unsubscribe",
                "channel": f"{channel}-other",
            }
            assert (name == "error") == refused, frame
    answers = {answer for command in messages.document["operations"] if "_" in command
               for answer in messages.answers_to(command)}
    assert answers - messages.seen == OTHERS


def test_events_and_lines_are_as_the_document_says(server, asyncapi, channel):
    server.publish(channel, "one")
    for kind, accept in [("Events", "text/event-stream"), ("Lines", "*/*")]:
        messages = Messages(asyncapi, f"channel{kind}")
        names = [name for name in messages.of(f"channel{kind}Send") if name != "body"]
        parameters = {"since": "1-1", "welcome": "true", "envelope": "true"}
        headers = {"Accept": accept}
        path = f"/channels/{channel}"
        expected = ["greeting", "message"]
        if kind == "Events":
            expected.insert(0, "resumed")
        found = []
        with server.http.stream("GET", path, params=parameters, headers=headers) as response:
            for line in response.iter_lines():
                text = line.removeprefix("data: ")
                if text.startswith("{"):
                    found.append(messages.check(json.loads(text), of=names))
                if len(found) == len(expected):
                    break
        assert found == expected
