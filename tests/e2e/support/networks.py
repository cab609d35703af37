"""Two private network namespaces for a test, joined by a cable that it can cut."""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
SERVER, CLIENT = "10.99.0.1", "10.99.0.2"
LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def missing():
    """Why namespaces are unavailable here, or None."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    if int(effective.split()[1], 16) >> 21 & 1 == 0:
        return "network namespaces need root (CAP_SYS_ADMIN)"
    made = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no veth devices: {made.stderr.strip()}" if made.returncode else None


needs_networks = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def own_network():
    """The calling thread in a new namespace that has only loopback; what it starts inherits it.

    A device that comes or goes makes every browser of its namespace abandon its requests
    (`ERR_NETWORK_CHANGED`). Without the right to make a namespace, nothing changes.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if LIBC.unshare(CLONE_NEWNET) != 0:
            yield
            return
        _ip("link", "set", "lo", "up")
        try:
            yield
        finally:
            _check(LIBC.setns(before, CLONE_NEWNET), "setns")
    finally:
        os.close(before)


def in_a_network(body):
    """Runs `body(cable)` in a thread whose namespace is the server's; what it starts inherits it."""
    outcome = []

    def run():
        try:
            with Cable() as cable:
                body(cable)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if outcome:
        raise outcome[0]


class Cable:
    """The calling thread's new namespace, another one for clients, and what joins them."""

    server = SERVER

    def __enter__(self):
        _check(LIBC.unshare(CLONE_NEWNET), "unshare")
        self.here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _check(LIBC.unshare(CLONE_NEWNET), "unshare")
        self.there = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._enter(self.here)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "near", "type", "veth", "peer", "name", "far")
        _ip("link", "set", "far", "netns", f"/proc/{os.getpid()}/fd/{self.there}")
        _ip("addr", "add", f"{SERVER}/24", "dev", "near")
        _ip("link", "set", "near", "up")
        self._enter(self.there)
        _ip("addr", "add", f"{CLIENT}/24", "dev", "far")
        _ip("link", "set", "far", "up")
        self._enter(self.here)
        return self

    def __exit__(self, *_):
        os.close(self.here)
        os.close(self.there)

    def _enter(self, namespace):
        _check(LIBC.setns(namespace, CLONE_NEWNET), "setns")

    def client_socket(self):
        """A socket on the other side."""
        self._enter(self.there)
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            self._enter(self.here)

    def cut(self):
        """Drops all packets in both directions from now on, without an error to either side."""
        _ip("neigh", "replace", CLIENT, "lladdr", "02:00:00:00:00:99", "dev", "near")
        self._enter(self.there)
        try:
            _ip("neigh", "replace", SERVER, "lladdr", "02:00:00:00:00:99", "dev", "far")
        finally:
            self._enter(self.here)
