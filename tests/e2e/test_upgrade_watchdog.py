"""The watchdog of systemd while a new process takes over."""

import os
import shutil
import signal
import socket
from contextlib import suppress


from support import TIMEOUT_SECONDS
from support.server import BINARY, eventually
from support.upgrades import FAILED, PROTOCOL

# A new process that says that it is ready, and nothing more until a file is there.
SILENT = """#!/usr/bin/env python3
import pathlib, socket, struct, time
channel = socket.socket(fileno=0)

def say(kind, content=b""):
    channel.sendall(struct.pack("<IBH", len(content), kind, 0) + content)

def hear(count):
    while count > 0:
        piece = channel.recv(count)
        assert piece, "the other end has ended"
        count -= len(piece)

say(1, b"throng" + struct.pack("<HHI", {protocol}, 65535, 0))
length, _, _ = struct.unpack("<IBH", channel.recv(7))
hear(length)
say(3)
# What comes ahead, until a message without descriptors.
while True:
    length, _, descriptors = struct.unpack("<IBH", channel.recv(7, socket.MSG_WAITALL))
    hear(length)
    if descriptors == 0:
        break
say(10)
# The state: all has come to rest.
hear(1)
pathlib.Path("{begun}").touch()
while not pathlib.Path("{go}").exists():
    time.sleep(0.01)
"""


def test_the_watchdog_is_fed_while_everything_is_handed_over(upgradable, tmp_path, monkeypatch):
    copy, begun, go = tmp_path / "throng", tmp_path / "begun", tmp_path / "go"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_SECONDS)
        watchdog = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        server = upgradable("--data", tmp_path / "data", environment=watchdog)
        silent = tmp_path / "silent"
        silent.write_text(SILENT.format(protocol=PROTOCOL, begun=begun, go=go))
        silent.chmod(0o755)
        os.replace(silent, copy)
        server.signal(signal.SIGUSR2)
        eventually(begun.exists, "everything at rest")
        manager.setblocking(False)
        with suppress(BlockingIOError):
            while manager.recv(100):
                pass
        manager.settimeout(TIMEOUT_SECONDS)
        # More than it takes until the service would be killed; it is notified ten times in that time.
        for _ in range(20):
            assert manager.recv(100) == b"WATCHDOG=1"
        assert FAILED not in server.log() and "has stalled" not in server.log()
        go.touch()
        eventually(lambda: FAILED in server.log(), "the failure of the upgrade")
        # The clients' side goes on, and so does the data directory.
        server.publish("a", "hello")
