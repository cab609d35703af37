"""What outlives the process: the data directory, against the real binary."""

import json
import os
import stat
import threading

import pytest

from support.access import SECRET, bearer, server_key
from support.server import Server, eventually, run_throng
from support.transports import subscribe


@pytest.fixture
def start(tmp_path):
    """Starts a server on the same directory; ends all of them."""
    servers = []

    def start(*flags):
        server = Server(tmp_path, "--data", tmp_path / "data", *flags)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()


def put(server, user, channels):
    response = server.http.put(f"/users/{user}/subscriptions", json={"channels": channels})
    assert response.status_code == 200, response.text


def kept(server, user):
    return sorted(server.http.get(f"/users/{user}/subscriptions").json()["channels"])


def test_kept_subscriptions_survive_a_restart(start):
    server = start()
    put(server, "ann", ["a", "b/c"])
    put(server, "bob", ["a", "é"])
    server.http.post("/users/ann/subscriptions", json={"add": ["d"], "remove": ["a"]})
    put(server, "gone", ["a"])
    assert server.http.delete("/users/gone/subscriptions").status_code == 200
    server.stop()
    server = start()
    assert kept(server, "ann") == ["b/c", "d"] and kept(server, "bob") == ["a", "é"]
    assert server.http.get("/channels/a/followers").json()["followers"] == ["bob"]
    eventually(lambda: "read 4 subscriptions of 2 users" in server.log(), "the log")
    with subscribe("sse", server, "/users/bob") as subscriber:
        server.publish("a", "after the restart")
        assert subscriber.take(1) == ["after the restart"]
    server.stop()


def unread(server):
    [line] = [
        line
        for line in server.http.get("/metrics").text.splitlines()
        if line.startswith("throng_kept_subscriptions_unread ")
    ]
    return int(line.split()[1])


def test_a_user_is_served_before_all_are_read(start):
    users = 20_000
    server = start("--sync", "never")
    for first in range(0, users, 4_000):
        lines = [
            json.dumps({"user": f"user-{n:05}", "channels": [f"{n % 997}-{k}" for k in range(10)]})
            for n in range(first, first + 4_000)
        ]
        done = server.http.post("/subscriptions", content="\n".join(lines))
        assert done.json()["lines"] == 4_000, done.text
    put(server, "the-last-of-all", ["a", "b"])
    assert unread(server) == 0
    for is_killed in [True, False]:
        if is_killed:
            server.process.kill()
            server.wait()
        else:
            server.stop()
        server = start("--sync", "never")
        # Behind all others in the order in which they are read.
        with subscribe("sse", server, "/users/the-last-of-all") as subscriber:
            server.publish("b", "hello")
            assert subscriber.take(1) == ["hello"]
        health = server.http.get("/health/ready")
        assert unread(server) > 0, "the server was as fast as ever: let more users follow"
        [reason] = health.json()["reasons"]
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert reason["reason"] == "reading_subscriptions" and " % so far" in reason["message"]
        put(server, "user-19999", ["b"])
        page = server.http.get("/channels/b/followers").json()
        assert page["partial"] and page["count"] == 2, page
        eventually(lambda server=server: unread(server) == 0, "all are read")
        eventually(
            lambda server=server: server.http.get("/health/ready").json()["status"] == "ready",
            "it is ready",
        )
        page = server.http.get("/channels/b/followers").json()
        assert "partial" not in page and page["count"] == 2, page
        put(server, "user-19999", [f"{19_999 % 997}-{k}" for k in range(10)])
        metrics = server.http.get("/metrics").text
        assert f"throng_kept_subscriptions {10 * users + 2}\n" in metrics
    server.stop()


def test_what_was_answered_survives_a_kill(start):
    for run in range(3):
        server = start()
        answered = {}

        def change(number, server=server, answered=answered, run=run):
            user = f"user-{number}"
            for count in range(1, 1000):
                channels = [f"{run}-{count}", f"{count % 7}"]
                try:
                    put(server, user, channels)
                except Exception:
                    # Killed: this change may be there or not.
                    answered[user] = (answered.get(user, ([],))[0], channels)
                    return
                answered[user] = (channels, channels)
                if number == 0 and count == 40:
                    server.process.kill()

        threads = [threading.Thread(target=change, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.wait()
        server = start()
        for user, possible in answered.items():
            assert kept(server, user) in [sorted(channels) for channels in possible]
        server.process.kill()
        server.wait()


def test_imports_and_revocations_survive(start, tmp_path):
    key, table = server_key(tmp_path, "app", "subscriptions", "administration")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    server = start()
    lines = [json.dumps({"user": f"u{n}", "channels": ["all", f"c{n % 50}"]}) for n in range(3000)]
    lines.append(json.dumps({"user": "u0", "add": ["again"]}))
    headers = bearer(key)
    answer = server.http.post("/subscriptions", content="\n".join(lines), headers=headers).json()
    assert answer == {"lines": 3001, "added": 6001, "removed": 0, "errors": []}
    assert server.http.post("/revocations/users/ann", headers=headers).status_code == 201
    server.process.kill()
    server.wait()
    server = start()
    followers = server.http.get("/channels/all/followers", headers=headers).json()
    assert followers["count"] == 3000
    first = server.http.get("/users/u0/subscriptions", headers=headers).json()
    assert sorted(first["channels"]) == ["again", "all", "c0"]
    revoked = server.http.get("/revocations", headers=headers).json()["revocations"]
    assert [revocation["user"] for revocation in revoked] == ["ann"]
    server.stop()


def test_the_directory_is_for_one_server_and_nobody_else(start, tmp_path):
    server = start()
    put(server, "ann", ["etc/passwd-like", "a/b"])
    for directory, folders, files in os.walk(tmp_path / "data"):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700, directory
        for file in files:
            assert stat.S_IMODE(os.stat(f"{directory}/{file}").st_mode) == 0o600, file
        assert not [name for name in folders + files if "passwd" in name]
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data"]
    second = run_throng(*arguments, tmp_path / "data", directory=tmp_path)
    assert second.returncode == 78
    assert f"{tmp_path}/data is in use by another server" in second.stderr
    server.stop()
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    # Others have locks of this name, too.
    for name in ("letter", "lock"):
        (other / name).write_text("dear ann")
        foreign = run_throng(*arguments, other, directory=tmp_path)
        assert foreign.returncode == 78 and "is not empty, and not of Throng" in foreign.stderr
        assert stat.S_IMODE(other.stat().st_mode) == 0o755


def test_a_damaged_directory_is_said_to_be(start, tmp_path):
    server = start()
    put(server, "ann", ["a"])
    server.stop()
    for file in (tmp_path / "data" / "store").rglob("current"):
        file.write_bytes(b"")
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data"]
    done = run_throng(*arguments, directory=tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path}/data: a file in it is damaged or missing" in done.stderr
    assert "put back a copy" in done.stderr


def test_journals_that_are_missing_are_noticed(start, tmp_path):
    server = start()
    put(server, "ann", ["a"])
    server.kill()
    journals = list((tmp_path / "data" / "store").glob("*.jnl"))
    assert journals
    for journal in journals:
        journal.unlink()
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data"]
    done = run_throng(*arguments, directory=tmp_path)
    assert done.returncode == 1
    assert "a file in it is damaged or missing (its journals are missing)" in done.stderr
