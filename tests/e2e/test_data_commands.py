"""`throng data`: check, export and compact the directory of a server, and back it up while it runs."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key
from support.server import BINARY, Server, clean_environment, eventually, run_throng
from support.small_disk import mount_small
from support.transports import subscribe
from support.upgrades import UpgradableServer

SETTINGS = """
[[channels]]
match = "kept"
durable = true
messages = 1000
read-markers = true

[[channels]]
match = "busy"
durable = true
messages = 1000000

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

    def start_next(name="data"):
        servers.append(Server(tmp_path, "--data", tmp_path / name))
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
    answer = server.http.put("/channels/kept/read", params={"id": kept[0], "reader": "ann"})
    assert answer.json()["unread"] == 4, answer.text
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
        {"type": "read_marker", "user": "ann", "channel": "kept", "read": kept[0]},
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
            assert "7 messages of 2 channels and users, 2 subscriptions, 2 read markers," in done.stdout
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
    assert done.returncode == 0 and "begins a new epoch" in done.stdout, done.stderr
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


class Publishers:
    """Threads that publish numbered messages to `busy`, each in its order, until told to stop."""

    def __init__(self, server):
        self.server = server
        self.acknowledged = [[] for _ in range(4)]
        self.refused = []
        self.is_over = threading.Event()
        self.threads = [
            threading.Thread(target=self.publish, args=(own,)) for own in range(len(self.acknowledged))
        ]
        for thread in self.threads:
            thread.start()

    def publish(self, own):
        with httpx.Client(base_url=self.server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
            while not self.is_over.is_set():
                number = len(self.acknowledged[own])
                answer = http.post("/channels/busy", content=f"{own} {number}")
                if answer.status_code != 201:
                    self.refused.append(answer.text)
                    return
                self.acknowledged[own].append(number)

    def counts(self):
        return [len(acknowledged) for acknowledged in self.acknowledged]

    def wait_for_more(self):
        before = self.counts()
        eventually(
            lambda: self.refused or all(now > then for now, then in zip(self.counts(), before)),
            "more messages of each publisher",
        )

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def test_a_server_is_backed_up_while_clients_publish(start, tmp_path):
    server = start()
    kept, _ = fill(server)
    target = tmp_path / "backup"
    settings = ["--listen", f"{server.host}:{server.port}", "--data", tmp_path / "data"]
    publishers = Publishers(server)
    try:
        for _ in range(50):
            publishers.wait_for_more()
        before = publishers.counts()
        done = run_throng("data", "backup", target, *settings, directory=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        publishers.wait_for_more()
    finally:
        publishers.stop()
    assert publishers.refused == []
    assert "entries in all, are in" in done.stdout.splitlines()[-1]
    again = run_throng("data", "backup", target, *settings, directory=tmp_path)
    assert again.returncode == CONFIGURATION
    assert "has data of Throng already" in again.stderr
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [target, *target.rglob("*")]}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    server.stop()
    checked = data(tmp_path, "check", target)
    assert checked.stdout.endswith("nothing is wrong\n"), checked.stdout + checked.stderr
    copy = start("backup")
    assert "an older copy that was put back" in copy.log()
    page = copy.http.get("/channels/kept/history").json()
    assert [message["data"] for message in page["messages"]] == [f"{n}" for n in range(len(kept))]
    page = copy.http.get("/users/ann/history").json()
    assert {"é": [1, 2]} in [message["data"] for message in page["messages"]]
    followed = copy.http.get("/users/ann/subscriptions").json()
    assert followed["channels"] == ["brief", "kept"]
    copy.stop()
    exported = data(tmp_path, "export", target).stdout.splitlines()
    lines = [line for line in map(json.loads, exported) if line.get("channel") == "busy"]
    published = [line["data"] for line in lines if line["type"] == "message"]
    for own, (counted, acknowledged) in enumerate(zip(before, publishers.counts())):
        numbers = [int(text.split()[1]) for text in published if text.split()[0] == f"{own}"]
        # All of before, and then none after one that is missing.
        assert numbers == list(range(len(numbers)))
        assert counted <= len(numbers) <= acknowledged


def test_a_backup_has_the_revocations_of_a_file_elsewhere(start, tmp_path):
    key, table = server_key(tmp_path, "app", "administration")
    own = f"revocations-file = 'elsewhere'\n[[token-keys]]\nsecret = '{SECRET}'\n{table}"
    (tmp_path / "throng.toml").write_text(own + SETTINGS)
    server = start()
    # From a time before the setting: it is not used any more.
    (tmp_path / "data/revocations").write_text("stale\n")
    revoked = server.http.post("/revocations/users/ann", headers=bearer(key))
    assert revoked.status_code == 201, revoked.text
    settings = ["--listen", f"{server.host}:{server.port}", "--data", tmp_path / "data"]
    done = run_throng("data", "backup", tmp_path / "backup", *settings, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    copied = (tmp_path / "backup/revocations").read_bytes()
    assert b"ann" in copied and copied == (tmp_path / "elsewhere").read_bytes()


def is_asleep(process, thread):
    """Whether a thread of this name waits in a system call."""
    for task in Path(f"/proc/{process}/task").iterdir():
        # Others may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text() == f"{thread}\n":
                return (task / "stat").read_text().rpartition(")")[2].split()[0] in "SD"
    return False


def test_a_backup_to_a_disk_that_hangs_does_not_hold_up_the_end_of_the_data(start, tmp_path):
    server = start()
    target = tmp_path / "backup"
    target.mkdir()
    # Whoever opens it waits until somebody reads it.
    os.mkfifo(target / "lock")
    settings = ["--listen", f"{server.host}:{server.port}", "--data", tmp_path / "data"]
    command = [BINARY, "data", "backup", target, *settings]
    with subprocess.Popen(command, cwd=tmp_path, env=clean_environment()) as backup:
        eventually(lambda: is_asleep(server.process.pid, "backup"), "a backup that hangs")
        server.signal()
        running = tmp_path / "data/store.running"
        eventually(lambda: not running.exists(), "the end of the data directory")
        os.close(os.open(target / "lock", os.O_RDONLY | os.O_NONBLOCK))
        server.wait()
        assert backup.wait(TIMEOUT_SECONDS) != 0
    assert list(target.iterdir()) == []


def test_an_upgrade_leaves_nothing_of_a_backup(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    server = UpgradableServer(tmp_path, "--data", tmp_path / "data")
    target = tmp_path / "backup"
    target.mkdir()
    # Whoever opens it waits until somebody reads it.
    os.mkfifo(target / "lock")
    settings = ["--listen", f"{server.host}:{server.port}", "--data", tmp_path / "data"]
    command = [BINARY, "data", "backup", target, *settings]
    with subprocess.Popen(command, cwd=tmp_path, env=clean_environment()) as backup:
        eventually(lambda: is_asleep(server.pid, "backup"), "a backup that hangs")
        server.signal(signal.SIGUSR2)
        eventually(lambda: "this one ends" in server.log(), "an upgrade")
        os.close(os.open(target / "lock", os.O_RDONLY | os.O_NONBLOCK))
        server.upgraded(0)
        assert backup.wait(TIMEOUT_SECONDS) != 0
    assert list(target.iterdir()) == []
    server.stop()


def test_a_backup_on_a_file_system_that_only_the_server_sees(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    private = tmp_path / "private"
    private.mkdir()
    flags = ["--data", private / "data"]
    server = Server(tmp_path, *flags, prepare=mount_small(private, 256))
    try:
        seen = Path(f"/proc/{server.process.pid}/root{private}")

        def back_up(name):
            settings = ["--listen", f"{server.host}:{server.port}", *flags]
            return run_throng("data", "backup", private / name, *settings, directory=tmp_path)

        done = back_up("first")
        assert (done.returncode, done.stdout) == (RUNTIME_ERROR, "")
        assert "has made the backup where only it sees it" in done.stderr
        assert "PrivateTmp=" in done.stderr
        assert (seen / "first/store").is_dir()
        # It would fill the disk of the data.
        with (seen / "filler").open("wb") as filler:
            disk = os.statvfs(seen)
            os.posix_fallocate(filler.fileno(), 0, disk.f_bavail * disk.f_frsize - (32 << 20))
        done = back_up("second")
        assert done.returncode == RUNTIME_ERROR
        assert "and its file system has 32 MiB; make room" in done.stderr
        assert not (seen / "second").exists()
    finally:
        server.stop()


def test_a_server_without_a_directory_has_no_backup(serve, tmp_path):
    server = serve()
    settings = ["--listen", f"{server.host}:{server.port}"]
    done = run_throng("data", "backup", tmp_path / "backup", *settings, directory=tmp_path)
    assert done.returncode == CONFIGURATION
    assert "the server has no data directory" in done.stderr
    assert not (tmp_path / "backup").exists()
