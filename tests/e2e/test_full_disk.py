"""A data directory on a file system that is full, and has room again."""

import json
import os
from pathlib import Path

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.server import Server, eventually
from support.small_disk import mount_small
from support.transports import subscribe

SETTINGS = """
[[channels]]
match = "kept"
durable = true
messages = 100000
bytes = "64MiB"

[[channels]]
users = "*"
durable = true
"""

REFUSES = 'throng_data_directory_refuses{reason="full"}'
MESSAGE = "x" * 4096


@pytest.fixture
def server(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    data = tmp_path / "data"
    data.mkdir()
    flags = ["--data", data, "--idempotency-window", "1h"][:2]
    server = Server(tmp_path, *flags, prepare=mount_small(data, 192))
    # The file system is in the server's namespace only.
    server.disk = Path(f"/proc/{server.process.pid}/root{data}")
    yield server
    server.stop()


def fill(disk):
    """Writes a file until nothing fits any more; returns it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return filler


def read_over_websocket(server, id):
    """The answer to a read marker."""
    with connect(server.ws + "/subscribe", subprotocols=["throng.v1"], proxy=None) as device:
        assert json.loads(device.recv(TIMEOUT_SECONDS))["type"] == "welcome"
        device.send(json.dumps({"type": "read", "user": "ann", "id": id}))
        return json.loads(device.recv(TIMEOUT_SECONDS))


def test_a_disk_that_messages_fill_is_full_and_does_not_fail(server):
    # Little room, so that the first to find none is whatever writes files of messages.
    with (server.disk / "filler").open("wb") as filler:
        disk = os.statvfs(server.disk)
        os.posix_fallocate(filler.fileno(), 0, disk.f_bavail * disk.f_frsize - (24 << 20))

    def publish():
        # Nothing that could be compressed.
        return server.http.post("/channels/kept", content=os.urandom(30_000).hex()).status_code

    answers = []
    while 507 not in answers:
        answers.append(publish())
        assert len(answers) < 5_000
    assert set(answers) <= {201, 504, 507}
    eventually(lambda: "the data directory is full" in server.log(), "a line in the log")
    assert "the disk of the data directory fails" not in server.log()


def test_a_full_file_system_refuses_durable_messages_until_it_has_room(server):
    def publish(channel="kept"):
        return server.http.post(f"/channels/{channel}", content=MESSAGE)

    first = publish().json()["id"]
    letter = server.http.post("/users/ann", content="letter").json()["id"]
    with subscribe("sse", server, "/channels/kept", since=first) as subscriber:
        acknowledged = []

        def status():
            answer = publish()
            if answer.status_code == 201:
                acknowledged.append(answer.json()["id"])
            return answer.status_code

        filler = fill(server.disk)
        # What is under way when the disk has no room is answered once it is there, or in 5 s.
        eventually(lambda: status() in (504, 507), "an end of the acknowledgements")
        refusal = publish()
        assert (refusal.status_code, refusal.json()["error"]) == (507, "not_stored")
        marker = server.http.put("/users/ann/read", params={"id": letter})
        assert (marker.status_code, marker.json()["error"]) == (507, "not_stored")
        assert read_over_websocket(server, letter)["code"] == "not_stored"
        # Everything else goes on.
        assert publish("brief").status_code == 201
        page = server.http.get("/channels/kept/history", params={"limit": 1})
        assert page.status_code == 200 and len(page.json()["messages"]) == 1
        ready = server.http.get("/health/ready").json()
        assert [reason["reason"] for reason in ready["reasons"]] == ["data_full"]
        assert server.metrics()[REFUSES] == 1
        eventually(lambda: "the data directory is full" in server.log(), "a line in the log")
        filler.unlink()
        eventually(lambda: status() == 201, "an acknowledgement")
        got = [subscriber.next()[0]]
        while got[-1] != acknowledged[-1]:
            got.append(subscriber.next()[0])
    # What was refused is not there; what was under way is.
    assert set(acknowledged) <= set(got) and len(got) <= len(acknowledged) + 1
    offsets = [int(id.split("-")[1]) for id in [first, *got]]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    assert server.metrics()[REFUSES] == 0
    assert server.metrics()['throng_data_written_total{of="messages"}'] == len(got) + 2
