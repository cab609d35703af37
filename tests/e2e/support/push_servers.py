"""Other push servers for `throng flood` to load: those of `bench/peers`, started as there.

Mercure is in no package registry that the tests use, and Centrifugo takes minutes to build, which
`bench/peers/centrifugo/install` does and `scripts/setup` does not: they are tried where they are
built, or where THRONG_TEST_CENTRIFUGO and THRONG_TEST_MERCURE name their binaries.
"""

import contextlib
import os
import sys

import pytest

from .server import ROOT

sys.path.insert(0, str(ROOT / "bench" / "peers"))

from harness import servers  # noqa: E402


@contextlib.contextmanager
def running(name, environment=None):
    """A server that answers when the block begins; yields its URL, and its flags by transport.

    Skips the test, loudly, where the server is not installed.
    """
    variable = f"THRONG_TEST_{name.upper()}"
    binary = os.environ.get(variable)
    peer = servers.Peer.named(f"{name}={binary}" if binary else name)
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(servers.running(peer, environment=environment))
        except servers.Unavailable as missing:
            pytest.skip(f"{name} is not tried: {missing} (or {variable})")
        yield server["url"], server["transports"]
