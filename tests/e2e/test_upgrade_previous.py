"""The newest version that has a tag is upgraded to this one."""

import os
import shutil
import subprocess

import pytest

from support.floods import finish_flood, flooding
from support.raw import RawWebSocket
from support.server import BINARY, ROOT, eventually

KEPT = ROOT / ".cache" / "previous"
BUILD_SECONDS_MAX = 2400


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def previous():
    """The commit to upgrade from: that of THRONG_UPGRADE_FROM, or of the newest tag of a version before this
    one; None if there is none."""
    if revision := os.environ.get("THRONG_UPGRADE_FROM"):
        return git("rev-parse", f"{revision}^{{commit}}")[0]
    if not (ROOT / ".git").exists():
        return None
    tags = git("tag", "--list", "v[0-9]*", "--merged", "HEAD", "--sort=-version:refname")
    commits = [git("rev-parse", f"{tag}^{{commit}}")[0] for tag in tags]
    head = git("rev-parse", "HEAD")[0]
    return next((commit for commit in commits if commit != head), None)


def build(commit):
    """The binary of a commit, which is built once."""
    binary = KEPT / f"throng-{commit}"
    if binary.exists():
        return binary
    source = KEPT / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x"], cwd=source, stdin=archive.stdout, check=True)
    assert archive.wait() == 0
    target = KEPT / "target"
    command = ["cargo", "build", "--locked", "--quiet", "-p", "throng", "--target-dir", target]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
    assert built.returncode == 0, built.stderr
    # Whole or not at all.
    part = KEPT / "throng-part"
    shutil.copy2(target / "debug" / "throng", part)
    os.replace(part, binary)
    return binary


def test_the_newest_tagged_version_is_upgraded_to_this_one(upgradable, tmp_path, monkeypatch):
    commit = previous()
    if commit is None:
        pytest.skip("no version before this one has a tag")
    binary = tmp_path / "throng"
    shutil.copy(build(commit), binary)
    monkeypatch.setattr("support.server.BINARY", binary)
    server = upgradable("--history-messages", "1000")
    for number in range(100):
        server.publish("kept", f"message {number}", Idempotency_Key=f"key-{number}")
    kept = server.history("kept", limit=1000)
    with RawWebSocket(server, "/channels/kept") as client:
        plan = ("--clients", "50", "--hold", "6s", "--publish", "100", "--transport", "websocket")
        flood = flooding(tmp_path, server.url, *plan)
        connected = lambda: server.http.get("/status.json").json()["connections"]["websocket"]
        eventually(lambda: connected() > 50, "the clients of the flood")
        new = tmp_path / "new"
        shutil.copy(BINARY, new)
        os.replace(new, binary)
        server.upgrade()
        assert os.path.samefile(f"/proc/{server.pid}/exe", binary)
        finish_flood(flood)
        assert server.history("kept", limit=1000) == kept
        # What was published with a key before is not published again.
        server.publish("kept", "message 99", Idempotency_Key="key-99")
        server.publish("kept", "after")
        received = client.read_until(b"after")
    assert b"message" not in received
