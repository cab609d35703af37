"""The real binary as a child process: started on a free port, stopped with SIGTERM."""

import atexit
import codecs
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from . import NO_TLS, TIMEOUT_SECONDS

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("THRONG_BIN", ROOT / "target" / "debug" / "throng")).resolve()
ADMIN = re.compile(r"admin listener on (https?://\S+)")
LISTENING = re.compile(r"listening on http://([\d.]+|\[[^\]]+\]):(\d+)")


# How long new connections wait depends on what else this machine does: a test of storms says when
# clients are told to come back.
PATIENT = {"THRONG_ADMISSION_WAIT": "0"}
# Where servers have their control sockets. Its name is short: the path of a socket has 107 bytes.
RUNTIME = tempfile.mkdtemp(prefix="throng-e2e-", dir="/tmp")
atexit.register(shutil.rmtree, RUNTIME, ignore_errors=True)


def clean_environment(extra=None):
    """The environment without THRONG_ variables: settings of the shell are not meant for tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
    return {**kept, "RUNTIME_DIRECTORY": RUNTIME, **(extra or {})}


def limit_descriptors(count):
    """A `preexec_fn` that sets the descriptor limit of a child; None if `count` is None."""
    if count is None:
        return None
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def run_throng(
    *arguments,
    directory,
    environment=None,
    input=None,
    timeout=TIMEOUT_SECONDS,
    binary=BINARY,
):
    """Runs the binary to its end. Returns the completed process with its output as text.

    Pass a longer timeout for a command that takes long.
    """
    return subprocess.run(
        [binary, *map(str, arguments)],
        cwd=directory,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        input=input,
        timeout=timeout,
        check=False,
    )


class Server:
    """One running server and the short requests that most tests need."""

    def __init__(
        self,
        directory,
        *flags,
        environment=None,
        port=0,
        listen="127.0.0.1",
        descriptors=None,
        prepare=None,
    ):
        """`prepare` runs in the child before the server does. Without a port, the settings name one."""
        place = [] if port is None else ["--listen", f"{listen}:{port}"]
        self.flags = [*place, *map(str, flags)]
        self.process = subprocess.Popen(
            [BINARY, "serve", *self.flags],
            cwd=directory,
            env=clean_environment({**PATIENT, **(environment or {})}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare or limit_descriptors(descriptors),
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = []
        self._pipe, self._rest = threading.Lock(), ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._address = threading.Event()
        self.host = self.port = None
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        if not self._address.wait(TIMEOUT_SECONDS) or self.port is None:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not start:\n{self.log()}")
        weakref.finalize(self, keep_port(self.host, self.port).close)
        self.http = httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS, trust_env=False, verify=NO_TLS)

    def _read_output(self):
        waits = select.poll()
        waits.register(self.process.stdout, select.POLLIN)
        while self._read_pipe():
            waits.poll()
        self._address.set()

    def _read_pipe(self):
        """Reads what is in the pipe. Returns whether more may come."""
        with self._pipe:
            try:
                while chunk := os.read(self.process.stdout.fileno(), 1 << 16):
                    self._take(self._decoder.decode(chunk))
            except BlockingIOError:
                return True
            self._take("\n" if self._rest else "")
            return False

    def _take(self, text):
        *lines, self._rest = (self._rest + text).split("\n")
        # First: with the address, everything else that is printed with it is known.
        self.output += [f"{line}\n" for line in lines]
        found = next(filter(None, map(LISTENING.search, lines)), None)
        if found and self.port is None:
            self.host, self.port = found.group(1), int(found.group(2))
            self._address.set()

    def log(self):
        """Everything that the server has printed until now.

        In the server, a thread of its own writes the log: a line may come after all else that an event brings
        about. While the server runs, wait for it with `says`.
        """
        self._read_pipe()
        return "".join(self.output)

    def says(self, text, count=1):
        """Waits until the server has printed a text, this often at least. Returns the last line with it."""
        eventually(lambda: self.log().count(text) >= count, lambda: f"{text!r} in:\n{self.log()}")
        return [line for line in self.log().splitlines() if text in line][-1]

    def admin(self, verify=NO_TLS):
        """A client of the admin listener, whose address is printed after that of the other.

        `verify` is the SSL context of one that speaks TLS.
        """
        eventually(lambda: ADMIN.search(self.log()), "the address of the admin listener")
        url = ADMIN.search(self.log()).group(1)
        return httpx.Client(
            base_url=url,
            verify=verify,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
        )

    @property
    def url(self):
        """The address for HTTP, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    @property
    def ws(self):
        """The address for WebSocket, without a slash at the end."""
        return f"ws://{self.host}:{self.port}"

    def publish(self, channel, body, **headers):
        """Publishes to a channel; returns the answer's JSON."""
        return self._publish(f"/channels/{quote(channel, safe='')}", body, headers)

    def publish_surely(self, channel, body):
        """Publishes to a channel, again under the same idempotency key while the outcome is not known."""
        path, key = f"/channels/{quote(channel, safe='')}", {"Idempotency-Key": uuid.uuid4().hex}

        def publish():
            answer = self.http.post(path, content=body, headers=key)
            assert answer.status_code in (200, 201, 504), (answer.status_code, answer.text)
            return answer.status_code != 504

        eventually(publish, "a publication is answered")

    def publish_to_user(self, user, body, **headers):
        """Publishes to a user; returns the answer's JSON."""
        return self._publish(f"/users/{quote(user, safe='')}", body, headers)

    def _publish(self, path, body, headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.http.post(path, content=body, headers=named)
        assert response.status_code in (200, 201), (response.status_code, response.text)
        return response.json()

    def publish_batch(self, lines):
        """Publishes a batch of objects; returns the answer objects."""
        content = "".join(json.dumps(line) + "\n" for line in lines)
        response = self.http.post("/publish", content=content)
        assert response.status_code == 200, (response.status_code, response.text)
        return [json.loads(line) for line in response.text.splitlines()]

    def history(self, channel, **parameters):
        """A page of a channel's history."""
        path = f"/channels/{quote(channel, safe='')}/history"
        response = self.http.get(path, params=parameters)
        assert response.status_code == 200, (response.status_code, response.text)
        return response.json()

    def presence(self, channel, **parameters):
        """Who is in a channel."""
        path = f"/channels/{quote(channel, safe='')}/presence"
        response = self.http.get(path, params=parameters)
        assert response.status_code == 200, (response.status_code, response.text)
        return response.json()

    def wait_for_connections(self, channel, count):
        """Waits until a channel has exactly `count` connections."""
        eventually(lambda: self.presence(channel)["connections"] == count, f"{count} connections")

    def metrics(self):
        """Every sample of /metrics: the name with its labels, and the value."""
        samples = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def signal(self, number=signal.SIGTERM):
        """Sends a signal and does not wait."""
        self.process.send_signal(number)

    @contextmanager
    def frozen(self):
        """Stops all threads of the server for the block; the kernel still accepts bytes for it."""
        self.signal(signal.SIGSTOP)
        try:
            # kill() returns before the threads have stopped; until then they would answer.
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            yield
        finally:
            self.signal(signal.SIGCONT)

    def wait(self):
        """Waits for the end of the process; returns its exit code."""
        try:
            code = self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop:\n{self.log()}") from None
        self._reader.join(TIMEOUT_SECONDS)
        return code

    def stop(self):
        """Stops the server as an operator would; expects a clean exit."""
        self.http.close()
        if self.process.poll() is None:
            self.signal()
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.log()}"
        assert "panicked" not in self.log(), self.log()

    def kill(self):
        """Kills the server, as a crash would."""
        self.http.close()
        self.process.kill()
        self.process.wait()


def on_free_port(start):
    """What `start` returns for the number of a port that is free, and this port.

    Others may take a port before the server does; then there is another one.
    """
    for last in (False, False, False, True):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            return start(port), port
        except RuntimeError as error:
            if last or "in use" not in str(error):
                raise
    raise AssertionError("the last attempt returns or raises")


def keep_port(host, port):
    """A socket that keeps a port from others, so that a server can be started there again.

    It does not listen: while no server does, connections are refused.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kept = socket.socket(family)
    # As the server's sockets have them, so that both may have the port.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    kept.bind((host.strip("[]"), port))
    return kept


@contextmanager
def closed_port():
    """The number of a port at which nothing listens, nor will in the block."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def eventually(condition, what):
    """Polls until `condition` holds: for states that no connection reports.

    `what` says what was waited for: a text, or a function that returns it when it was in vain.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            said = what() if callable(what) else what
            raise AssertionError(f"waited in vain for: {said}")
        time.sleep(0.02)
