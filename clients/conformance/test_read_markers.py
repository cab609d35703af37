"""Read markers of a user, in the inbox and in channels, on several devices."""

import pytest


def test_a_read_marker_is_the_same_on_all_devices(connect, server, channel):
    user = f"ä/{channel}"

    def publish(text):
        answer = server.http.post("/publish", params={"user": user}, content=text)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    ids = [publish(str(number)) for number in range(3)]
    devices = [connect(server.url, random=0, transports=["websocket"], user=user) for _ in range(2)]

    def read(device, **fields):
        device.tell("read", **fields)
        found = device.until(lambda it: it["event"] == "read")
        return found["read"], found["unread"]

    assert read(devices[0]) == (None, 3)
    assert read(devices[0], id=ids[1]) == (ids[1], 1)
    assert read(devices[1], id=ids[0]) == (ids[1], 1), "it moves forward only"
    assert read(devices[1], id=ids[2]) == (ids[2], 0)
    assert read(devices[0]) == (ids[2], 0)


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_unread_messages_are_told_to_all_devices(connect, server, channel, transport):
    user = f"ä/{channel}"

    def publish(text):
        answer = server.http.post("/publish", params={"user": user}, content=text)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    ids = [publish(str(number)) for number in range(3)]
    options = {"random": 0, "transports": [transport], "user": user}
    devices = [connect(server.url, **options) for _ in range(2)]
    for device in devices:
        device.tell("subscribe", channels=[channel], history=1)
    server.publish(channel, "all are here")
    for device in devices:
        device.until_all("message", 1)
        told = device.until_all("unread", 1)[0]
        assert (told["read"], told["unread"]) == (None, 3), "of the greeting"
    answer = server.http.put("/read", params={"user": user, "id": ids[0]})
    assert answer.json()["unread"] == 2, answer.text
    for device in devices:
        device.until(lambda it: it["event"] == "unread" and it["read"] == ids[0])
    devices[0].tell("read", id=ids[2])
    for device in devices:
        told = device.until(lambda it: it["event"] == "unread" and it["read"] == ids[2])
        assert told["unread"] == 0
        assert len(device.all("unread")) == 3, "each once"


def test_a_channel_has_a_read_marker_of_the_user(connect, server, channel):
    user, room = f"ä/{channel}", f"marked-{channel}"
    ids = [server.publish(room, str(number))["id"] for number in range(3)]
    options = {"random": 0, "transports": ["websocket"], "user": user}
    devices = [connect(server.url, **options) for _ in range(2)]
    for device in devices:
        # The user's inbox is followed with it.
        device.tell("subscribe", channels=[channel], history=1)
    server.publish(channel, "all are here")
    for device in devices:
        device.until_all("message", 1)
        device.until_all("unread", 1)

    def read(device, **fields):
        device.tell("read", channel=room, **fields)
        found = device.until(lambda it: it["event"] == "read")
        return found["read"], found["unread"]

    assert read(devices[0]) == (None, 3)
    assert read(devices[0], id=ids[1]) == (ids[1], 1)

    def is_told(it):
        return it["event"] == "unread" and it["read"] == ids[1]

    for device in devices:
        # It may have come before the answer.
        told = next(filter(is_told, device.heard), None) or device.until(is_told)
        assert (told["channel"], told["unread"]) == (room, 1)
    assert read(devices[1], id=ids[0]) == (ids[1], 1), "it moves forward only"
    devices[1].tell("read")
    inbox = devices[1].until(lambda it: it["event"] == "read" and it["read"] is None)
    assert inbox["unread"] == 0, "the inbox has a marker of its own"
