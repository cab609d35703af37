"""A small file system that only one process, and what it starts, sees."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC_PRIVATE = 0x44000

SYSTEM = ctypes.CDLL(None, use_errno=True)


def must(result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def mount_small(path, mib):
    """A function that gives its process a small file system of its own at `path`."""
    user, group = os.geteuid(), os.getegid()

    def mount():
        must(SYSTEM.unshare(CLONE_NEWNS | (0 if user == 0 else CLONE_NEWUSER)))
        if user != 0:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        must(SYSTEM.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
        options = f"size={mib}m,mode=700".encode()
        must(SYSTEM.mount(b"tmpfs", bytes(path), b"tmpfs", 0, options))

    return mount
