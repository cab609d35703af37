"""Whether `throng flood --network tunnel` (clients without sockets) works here."""

from pathlib import Path

import pytest

NODE = Path("/dev/net/tun")
CAP_NET_ADMIN = 1 << 12


def missing():
    """Why a tunnel is unavailable here, or None."""
    if not NODE.exists():
        return f"{NODE} does not exist"
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    if not int(effective.split()[1], 16) & CAP_NET_ADMIN:
        return "the tests run without CAP_NET_ADMIN"
    return None


needs_tunnel = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def without_rights(command):
    """The command, run without the right to create network devices, even for root."""
    return ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", *command]
