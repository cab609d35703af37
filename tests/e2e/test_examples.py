"""The examples, started as their README says, and used in a browser."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.commands import run
from support.postgres import Postgres
from support.server import BINARY, ROOT, clean_environment, eventually

EXAMPLES = ROOT / "examples"
OPEN = re.compile(r"open (http://127\.0\.0\.1:\d+)")


class Program:
    """A program that says where to open it, and is ended with Ctrl-C."""

    def __init__(self, command, directory, environment):
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C reaches all that it has started.
            start_new_session=True,
        )
        self.output, self.url = [], None
        self.is_open = threading.Event()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.output.append(line)
            if found := OPEN.search(line):
                self.url = found.group(1)
                self.is_open.set()
        self.is_open.set()

    def wait_until_open(self):
        assert self.is_open.wait(TIMEOUT_SECONDS * 6) and self.url, "".join(self.output)
        return self.url

    def stop(self):
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(TIMEOUT_SECONDS)
        self.reader.join(TIMEOUT_SECONDS)


def install_packages(modules):
    """What the examples need of npm, from where the tests have it."""
    client = ROOT / "clients" / "javascript"
    (modules / "@throng-push").mkdir(parents=True)
    (modules / "@throng-push" / "client").symlink_to(client)
    for name in ("express", "pg"):
        (modules / name).symlink_to(ROOT / "tests" / "node_modules" / name)
    for name in ("esbuild", "react", "react-dom", "scheduler"):
        (modules / name).symlink_to(client / "node_modules" / name)


@pytest.fixture
def start(tmp_path):
    """Starts an example, or another command in its directory; what it would install is there."""
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns(".venv", "node_modules"))
    started = []

    def start(name, *command, environment=None):
        directory = folder / name
        if not (directory / ".venv").exists():
            (directory / ".venv").symlink_to(sys.prefix)
            install_packages(directory / "node_modules")
        environment = {
            **(environment or {}),
            "THRONG_BIN": str(BINARY),
            "THRONG_LISTEN": "127.0.0.1:0",
            "PORT": "0",
            "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
            "NO_PROXY": "*",
        }
        program = Program(command or [folder / "run", name], directory, environment)
        started.append(program)
        return program.wait_until_open()

    start.programs = started
    yield start
    for program in started:
        program.stop()
    said = "".join(line for program in started for line in program.output)
    assert "Traceback" not in said and "panicked" not in said, said


def use(chromium, example, url):
    run("node", HERE / "node" / "examples.mjs", chromium, example, url)


def test_notifications_with_a_login_reach_their_user(start, chromium):
    use(chromium, "notifications", start("notifications"))


def test_people_chat_under_their_own_names(start, chromium):
    use(chromium, "chat", start("chat"))


def test_a_page_shows_the_prices_of_200_channels(start, chromium):
    # Fewer than a busy machine can show.
    use(chromium, "prices", start("prices", environment={"UPDATES": "5"}))


def test_two_people_change_a_list_together(start, chromium):
    use(chromium, "list", start("list"))


@pytest.mark.parametrize("command", [[], ["node", "before.mjs"]], ids=["after", "before"])
def test_pages_are_told_of_orders_before_and_after_the_move(start, chromium, command):
    use(chromium, "express-sse", start("express-sse", *command))


@pytest.fixture
def postgres():
    running = Postgres()
    yield running
    running.close()


def test_what_a_transaction_has_stored_is_published_once(start, postgres):
    url = start("outbox", environment=postgres.environment)
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as http:
        page = http.get(url).text
        channel = re.search(r'EventSource\("(.*/channels/orders)', page).group(1)

        def told():
            messages = http.get(f"{channel}/history").json()["messages"]
            return [message["data"]["article"] for message in messages]

        def order(article):
            return http.post(f"{url}/orders", data={"article": article}).status_code

        assert (order("tea"), order(""), order("cake")) == (201, 500, 201)
        eventually(lambda: told() == ["tea", "cake"], "both orders")
        eventually(lambda: postgres.sql("SELECT count(*) FROM outbox") == "0", "an empty outbox")
        # Rows of another program; the first is refused for good, and holds up no other.
        rows = """('', '1'), ('orders', '{"article": "milk"}')"""
        postgres.sql(f"INSERT INTO outbox (channel, data) VALUES {rows}")
        eventually(lambda: told() == ["tea", "cake", "milk"], "the row of another program")
        refused = "SELECT refused FROM outbox"
        eventually(lambda: "empty" in postgres.sql(refused), "the reason of the refusal")
        postgres.stop()
        postgres.start()
        eventually(lambda: order("bread") == 201, "the database again")
        eventually(lambda: told() == ["tea", "cake", "milk", "bread"], "the order after that")


def test_a_relay_that_waits_takes_over(start, postgres):
    def orders(url):
        page = httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False).text
        channel = re.search(r'EventSource\("(.*/channels/orders)', page).group(1)

        def order(article):
            body = {"article": article}
            return httpx.post(f"{url}/orders", data=body, timeout=TIMEOUT_SECONDS).status_code

        def told():
            answer = httpx.get(f"{channel}/history", timeout=TIMEOUT_SECONDS, trust_env=False)
            return [message["data"]["article"] for message in answer.json()["messages"]]

        return order, told

    order, told = orders(start("outbox", environment=postgres.environment))
    assert order("tea") == 201
    eventually(lambda: told() == ["tea"], "the first relay works")
    # Each has a Throng of its own, so that it shows which of them publishes.
    other_order, told_by_other = orders(start("outbox", environment=postgres.environment))
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    eventually(lambda: postgres.sql(waiting) == "1", "the second relay waits")
    assert other_order("cake") == 201
    eventually(lambda: told() == ["tea", "cake"], "the first relay still works")
    start.programs[0].stop()
    assert other_order("milk") == 201
    eventually(lambda: told_by_other() == ["milk"], "the second relay has taken over")


def test_changes_of_a_list_at_the_same_time_are_all_told(start):
    url = start("list")
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as http:
        page = http.get(f"{url}/page.js").text
        throng = re.search(r"http://127\.0\.0\.1:\d+", page).group(0)
        token = http.get(f"{url}/push-token", params={"name": "ann"}).text

        def told():
            headers = {"Authorization": f"Bearer {token}"}
            answer = http.get(f"{throng}/channels/list/history", headers=headers)
            return [message["data"]["version"] for message in answer.json()["messages"]]

        def change(number):
            return http.post(f"{url}/changes", json={"text": f"item {number}"}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(change, range(40))) == {200}
        eventually(lambda: len(told()) == 40, "all changes")
        first = told()[0]
        assert told() == list(range(first, first + 40))


def test_an_unknown_example_is_refused():
    done = subprocess.run([EXAMPLES / "run", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "outbox" in done.stderr
