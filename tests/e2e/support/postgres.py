"""A PostgreSQL of a test's own, at a Unix socket."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from support import TIMEOUT_SECONDS
from support.server import eventually


class Postgres:
    """A database that can be stopped and started again, and answers as `psql` asks."""

    def __init__(self):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        assert found, "PostgreSQL is missing: scripts/setup"
        self.programs = found[-1].parent
        # The path of a socket has 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix="throng-pg-", dir="/tmp"))
        # PostgreSQL does not run as root.
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            os.chown(self.directory, pwd.getpwnam(self.user).pw_uid, -1)
        self.environment = {
            "PGHOST": str(self.directory),
            "PGUSER": "shop",
            "PGDATABASE": "postgres",
        }
        data = ["-D", self.directory / "data"]
        self.run("initdb", *data, "-U", "shop", "-A", "trust", "--no-sync", "--no-instructions")
        self.start()

    def run(self, program, *arguments):
        done = subprocess.run(
            [self.programs / program, *map(str, arguments)],
            cwd=self.directory,
            env={**os.environ, **self.environment},
            user=self.user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS * 3,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def sql(self, statement):
        """The result of a statement, as text."""
        return self.run("psql", "-X", "-q", "-A", "-t", "-c", statement)

    def start(self):
        log = (self.directory / "log").open("ab")
        settings = [f"unix_socket_directories={self.directory}", "listen_addresses=", "fsync=off"]
        settings += ["shared_buffers=8MB", "max_connections=20"]
        options = [part for setting in settings for part in ("-c", setting)]
        self.process = subprocess.Popen(
            [self.programs / "postgres", "-D", self.directory / "data", *options],
            cwd=self.directory,
            user=self.user,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        eventually(self.is_ready, "PostgreSQL")

    def is_ready(self):
        assert self.process.poll() is None, (self.directory / "log").read_text()
        ready = [self.programs / "pg_isready", "-q", "-h", self.directory]
        return subprocess.run(ready, check=False).returncode == 0

    def stop(self):
        """Ends all connections, and the server."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(TIMEOUT_SECONDS)

    def close(self):
        if self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.directory)
