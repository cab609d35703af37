"""`throng data`: check, export and compact the directory of a server that does not run."""

import json
import os
import shutil

import pytest

from support.server import Server, eventually, run_throng
from support.transports import subscribe

SETTINGS = """
[[channels]]
match = "kept"
durable = true
messages = 1000

[[channels]]
users = "*"
durable = true
"""

RUNTIME_ERROR, CONFIGURATION = 1, 78


@pytest.fixture
def start(tmp_path):
    """Starts servers on one data directory, one after the other."""
    (tmp_path / "throng.toml").write_text(SETTINGS)
    servers = []

    def start_next():
        servers.append(Server(tmp_path, "--data", tmp_path / "data"))
        return servers[-1]

    yield start_next
    if servers and servers[-1].process.poll() is None:
        servers[-1].stop()


def data(tmp_path, *arguments):
    """Runs the command outside the directory with the settings: it needs none."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return run_throng("data", *arguments, directory=elsewhere)


def fill(server):
    """Publishes some of everything. Returns the ids of the messages of `kept` and of ann."""
    kept = [server.publish("kept", f"{n}")["id"] for n in range(5)]
    body = {"é": [1, 2]}
    answer = server.http.post("/users/ann", json=body)
    assert answer.status_code == 201, answer.text
    inbox = answer.json()["id"]
    server.publish_to_user("ann", "gone", throng_expires_in="1")
    subscriptions = {"channels": ["kept", "brief"]}
    answer = server.http.put("/users/ann/subscriptions", json=subscriptions)
    assert answer.status_code == 200, answer.text
    answer = server.http.put("/users/ann/read", params={"id": inbox})
    assert answer.status_code == 200, answer.text
    return kept, inbox


def test_everything_is_exported(start, tmp_path):
    server = start()
    kept, inbox = fill(server)

    def is_expired():
        page = server.http.get("/users/ann/history").json()
        return [message["id"] for message in page["messages"]] == [inbox]

    eventually(is_expired, "the end of a message")
    server.stop()
    done = data(tmp_path, "export", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    messages = [line for line in lines if line["type"] == "message"]
    of_channel = [(line["id"], line["data"]) for line in messages if line.get("channel") == "kept"]
    assert of_channel == [(id, f"{n}") for n, id in enumerate(kept)]
    of_user = [(line["id"], line["data"]) for line in messages if line.get("user") == "ann"]
    assert of_user == [(inbox, {"é": [1, 2]})]
    others = [line for line in lines if line["type"] != "message"]
    assert others == [
        {"type": "subscription", "user": "ann", "channel": "brief"},
        {"type": "subscription", "user": "ann", "channel": "kept"},
        {"type": "read_marker", "user": "ann", "read": inbox},
    ]
    assert len(lines) == len(of_channel) + len(of_user) + len(others)
    file = tmp_path / "export.ndjson"
    assert data(tmp_path, "export", tmp_path / "data", file).returncode == 0
    assert file.read_text() == done.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    again = data(tmp_path, "export", tmp_path / "data", file)
    assert again.returncode == RUNTIME_ERROR and "cannot make the file" in again.stderr
    assert file.read_text() == done.stdout


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_directory_is_checked_and_compacted_and_goes_on(start, tmp_path, is_killed):
    server = start()
    kept, _ = fill(server)
    if is_killed:
        server.process.kill()
        server.wait()
    else:
        server.stop()
    for command in ("check", "compact", "check"):
        done = data(tmp_path, command, tmp_path / "data")
        assert done.returncode == 0, done.stdout + done.stderr
        if command == "check":
            assert "7 messages of 2 channels and users, 2 subscriptions, 1 read markers" in done.stdout
            assert done.stdout.endswith("nothing is wrong\n")
    again = start()
    page = again.http.get("/channels/kept/history").json()
    assert [message["id"] for message in page["messages"]] == kept


def test_ids_of_a_copy_that_is_put_back_are_given_to_nothing_else(start, tmp_path):
    first = start()
    first.publish("kept", "in the copy")
    first.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    second = start()
    later = second.publish("kept", "not in the copy")["id"]
    second.stop()
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "copy").rename(tmp_path / "data")
    done = data(tmp_path, "restored", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    third = start()
    assert "an older copy that was put back" in third.log()
    assert third.publish("kept", "afterwards")["id"] != later
    with subscribe("sse", third, "/channels/kept", since=later) as subscriber:
        assert subscriber.recovered is False
        third.publish("kept", "live")
        assert subscriber.take(3) == ["in the copy", "afterwards", "live"]
    third.stop()
    # Once is enough: ids stay what they are from now on.
    fourth = start()
    assert "an older copy" not in fourth.log()
    page = fourth.http.get("/channels/kept/history").json()
    assert [message["data"] for message in page["messages"]] == ["in the copy", "afterwards", "live"]


def test_damage_is_found_and_named(start, tmp_path):
    server = start()
    for n in range(200):
        server.publish("kept", f"{n} " + os.urandom(2000).hex())
    server.stop()
    assert data(tmp_path, "compact", tmp_path / "data").returncode == 0
    # The largest file has the messages.
    files = [path for path in (tmp_path / "data/store").rglob("*") if path.parent.name == "tables"]
    table = max(files, key=lambda path: path.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    done = data(tmp_path, "check", tmp_path / "data")
    assert done.returncode == RUNTIME_ERROR, done.stdout + done.stderr
    assert "the table of messages cannot be read after " in done.stdout
    assert "1 thing is wrong" in done.stdout
    exported = data(tmp_path, "export", tmp_path / "data", tmp_path / "export.ndjson")
    assert exported.returncode == RUNTIME_ERROR
    assert "is not whole" in exported.stderr


def test_directories_that_cannot_be_used_are_refused(start, tmp_path):
    server = start()
    for command in ("check", "export", "compact", "restored"):
        done = data(tmp_path, command, tmp_path / "data")
        assert done.returncode == CONFIGURATION
        assert "is in use by a server; stop it first" in done.stderr
        done = data(tmp_path, command, tmp_path / "none")
        assert done.returncode == CONFIGURATION
        assert "is not there, or has nothing of Throng in it" in done.stderr
        assert not (tmp_path / "none").exists()
    assert server.http.get("/health").status_code == 200
