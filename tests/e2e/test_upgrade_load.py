"""Upgrades under load: in fan-outs and storms, with clients that do not read, and short of memory or disk."""

import json
import os
import resource
import shutil
import signal

import pytest

from support.floods import finish_flood, flooding
from support.raw import TEXT, Raw, RawWebSocket, frame
from support.server import BINARY, eventually, run_throng
from support.tls_server import stream_request
from support.upgrades import FAILED, TAKEN_OVER

# `make test-long` has more.
UPGRADES = int(os.environ.get("THRONG_UPGRADES", "4"))


@pytest.fixture
def start(upgradable, tmp_path, monkeypatch):
    """Starts servers whose file can be replaced."""
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    return lambda *flags, **options: upgradable("--workers", "2", *flags, **options)


def replace_file(directory, text):
    """The next process is what this script makes of the binary."""
    new = directory / "new"
    new.write_text("#!/bin/sh\n" + text.format(binary=BINARY))
    new.chmod(0o755)
    os.replace(new, directory / "throng")


def upgrade(server):
    """Upgrades; returns whether another process has taken over."""
    log = server.log()
    done, failed = len(TAKEN_OVER.findall(log)), log.count(FAILED)
    server.signal(signal.SIGUSR2)
    eventually(
        lambda: len(TAKEN_OVER.findall(server.log())) > done or server.log().count(FAILED) > failed,
        "the end of an upgrade",
    )
    if len(TAKEN_OVER.findall(server.log())) == done:
        return False
    server.upgraded(done)
    return True


def upgrade_until_the_end_of(flood, server, directory):
    """Upgrades by command again and again; returns how often."""
    count = 0
    while flood.poll() is None:
        done = run_throng("upgrade", "--listen", f"127.0.0.1:{server.port}", directory=directory)
        assert done.returncode == 0 and "has taken over" in done.stdout, done.stdout + done.stderr
        server.upgraded(count)
        count += 1
    finish_flood(flood)
    return count


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_large_fan_outs_are_whole(start, tmp_path, transport):
    server = start("--history-messages", "1000")
    # An upgrade by command takes about a second on a busy machine.
    hold = ["--hold", f"{UPGRADES}s"]
    load = ["--transport", transport, "--clients", "400", "--publish", "20", "--size", "4KiB", *hold]
    flood = flooding(tmp_path, server.url, *load)
    eventually(lambda: server.metrics()["throng_http_messages_published_total"] > 0, "load")
    assert upgrade_until_the_end_of(flood, server, tmp_path) > 0


def test_the_state_of_many_connections_is_passed_on_again_and_again(start, tmp_path):
    server = start()
    # State of more than 64 KiB of each worker is in memory that both processes share.
    load = ("--clients", "5000", "--hold", "5s", "--publish", "20", "--transport", "websocket")
    flood = flooding(tmp_path, server.url, *load)
    subscribed = lambda: server.http.get("/status.json").json()["connections"]["websocket"]
    eventually(lambda: subscribed() == 5000, "the clients of the flood")
    assert upgrade_until_the_end_of(flood, server, tmp_path) > 1


def test_storms_are_whole(start, tmp_path):
    server = start("--history-messages", "100000")
    # All lose their connections and come back, while the process is replaced.
    load = ["--clients", "200", "--publish", "20", "--hold", "2s", "--storm", "60s"]
    flood = flooding(tmp_path, server.url, *load, assertions=["publish_failures == 0", "storm.failures == 0"])
    assert upgrade_until_the_end_of(flood, server, tmp_path) > 0


def messages(count):
    return [f"{number:03} " + "x" * 30_000 for number in range(count)]


def test_clients_that_read_nothing_get_all_of_it_afterwards(start):
    server = start()
    with Raw(server, receive_buffer_bytes=4096) as stream:
        stream.send(stream_request("a"))
        server.wait_for_connections("a", 1)
        sent = messages(24)
        for message in sent[:12]:
            server.publish("a", message)
        # The kernel takes a part of a message, and the server keeps the rest.
        eventually(lambda: server.metrics()["throng_connections_behind"] == 1, "a full socket")
        for _ in range(2):
            server.upgrade()
        for message in sent[12:]:
            server.publish("a", message)
        received = stream.read_until(f"data: {sent[-1]}\n\n".encode())
    lines = [line[6:] for line in received.decode().splitlines() if line.startswith("data: ")]
    assert lines == sent


def test_half_sent_frames_are_finished_while_others_are_read(start):
    server = start()
    with RawWebSocket(server, "/subscribe?channel=a", "throng.v1") as publisher, Raw(server) as reader:
        reader.send(stream_request("b").decode())
        reader.read_until(b"\r\n\r\n")
        for number in range(3):
            command = json.dumps({"type": "publish", "channel": "b", "data": f"{number} " + "x" * 300})
            whole = frame(TEXT, command)
            # A part of it before each upgrade: of the head, of the payload, and all but the end.
            at = [1, 40, len(whole) - 1][number]
            publisher.send(whole[:at])
            server.upgrade()
            publisher.send(whole[at:])
            reader.read_until(f"data: {number} ".encode())


def test_a_new_process_without_enough_memory_leaves_the_old_one(start, tmp_path):
    server = start("--history-messages", "100000", "--history-total-bytes", "256MiB", is_killed=True)
    with Raw(server) as stream:
        stream.send(stream_request("a").decode())
        stream.read_until(b"\r\n\r\n")
        for message in range(200):
            server.publish("b", str(message) * 10_000)
        # Less than it takes to start, then less than it must be able to get, and at last enough. In between, the heaps
        # of threads reserve what the limit leaves, so that a process may serve and end soon.
        for mib, is_enough in [(32, False), (64, False), (4096, True)]:
            replace_file(tmp_path, f'ulimit -v {mib << 10}\nexec {{binary}} "$@"\n')
            assert upgrade(server) == is_enough, server.log()
            server.publish("a", str(mib))
            stream.read_until(f"data: {mib}\n".encode())
    assert server.history("b", limit=1)["messages"][-1]["data"] == "199" * 10_000


def test_a_limit_of_file_sizes_ends_no_process(start):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))

    server = start(prepare=limit)
    sent = messages(24)
    with Raw(server) as stream:
        stream.send(stream_request("a"))
        stream.read_until(b"\r\n\r\n")
        for message in sent:
            server.publish("a", message)
        # The logs do not fit into one file, and shared memory is one to the kernel.
        for _ in range(2):
            server.upgrade()
        server.publish("a", "last")
        stream.read_until(b"data: last\n\n")
    assert server.log().count("memory that both processes share cannot be made") == 2, server.log()
    after = server.history("a", limit=100)["messages"]
    assert [message["data"] for message in after] == [*sent, "last"]


def test_a_new_process_with_a_full_disk_refuses_messages_and_loses_none(start, tmp_path):
    settings = tmp_path / "throng.toml"
    settings.write_text('[[channels]]\nmatch = "*"\ndurable = true\nmessages = 1000\n')
    flags = ["--config", settings, "--data", tmp_path / "data"]
    server = start(*flags)
    before = [server.publish("a", f"{number}")["id"] for number in range(3)]
    # It can write to no file: that fails as on a full disk.
    replace_file(tmp_path, 'ulimit -f 0\nexec {binary} "$@"\n')
    assert upgrade(server)
    refused = server.http.post("/channels/a", content="not kept")
    assert refused.status_code in (503, 507), refused.text
    assert [message["id"] for message in server.history("a")["messages"]] == before
    server.stop()
    # And one that can write has all of it.
    replace_file(tmp_path, 'exec {binary} "$@"\n')
    again = start(*flags)
    again.publish("a", "kept")
    ids = [message["id"] for message in again.history("a")["messages"]]
    assert ids[:3] == before and len(ids) == 4
