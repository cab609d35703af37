"""Certificates that the server obtains and renews by itself, from a real authority for tests."""

import os
import re
import signal
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta

import pytest

from support import TIMEOUT_SECONDS
from support.certificates import Authority, make_certificate, trusting
from support.pebble import Door, Forgetful, Pebble
from support.server import eventually, run_throng

ADDRESS = re.compile(r"TLS listener on https://[\d.]+:(\d+)")
NAME = "push.example.com"


class World:
    """An authority, and the servers that it knows."""

    def __init__(self, serve, directory, **options):
        self._serve, self.state = serve, directory / "state"
        self.door = Door()
        self.pebble = Pebble(directory, self.door.port, **options)
        self.port = None

    def serve(self, *flags, names=NAME):
        self.door.target = None
        server = self._serve(
            *("--tls-listen", "127.0.0.1:0", "--acme", names, "--state", self.state),
            *("--acme-directory", self.pebble.url, "--acme-ca", self.pebble.ca),
            *("--acme-email", "admin@example.com", *flags),
        )
        eventually(lambda: ADDRESS.search(server.log()), "the TLS listener")
        self.port = int(ADDRESS.search(server.log()).group(1))
        self.door.target = ("127.0.0.1", self.port)
        return server

    def shown(self, name=NAME, context=None):
        """The certificate that the server shows for a name, in DER."""
        context = context or trusting(self.pebble.root())
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS) as plain:
            with context.wrap_socket(plain, server_hostname=name) as connection:
                return connection.getpeercert(binary_form=True)

    def files(self):
        return {path.name: path for path in self.state.rglob("*") if path.is_file()}


@pytest.fixture
def world(serve, tmp_path):
    worlds = []

    def make(start=True, **options):
        worlds.append(World(serve, tmp_path, **options))
        # Its port has to be known before it runs.
        worlds[0].pebble.start()
        if not start:
            worlds[0].pebble.stop()
        return worlds[0]

    yield make
    for each in worlds:
        each.pebble.close()
        each.door.__exit__()


def grow_old(path):
    """Makes a certificate look as if it had been obtained two hours ago."""
    past = path.stat().st_mtime - 2 * 3600
    os.utime(path, (past, past))


def metric(server, sample, **labels):
    wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return int(server.metrics().get(f"throng_{sample}{{{wanted}}}", 0))


def wait_for(server, count=1):
    def obtained():
        return metric(server, "acme_attempts_total", outcome="obtained") >= count

    try:
        eventually(obtained, f"{count} certificates")
    except AssertionError as error:
        raise AssertionError(server.log()) from error


def test_a_certificate_is_obtained_and_served(world):
    world = world()
    server = world.serve()
    wait_for(server)
    assert world.shown()
    assert metric(server, "acme_failures", name=NAME) == 0
    assert f'throng_tls_certificate_not_after_timestamp_seconds{{certificate="{NAME}"}}' in (
        server.metrics()
    )
    files = world.files()
    assert set(files) == {"account.json", f"{NAME}.pem"}
    for path in files.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert server.http.get("/health/ready").json().get("status") != "degraded"


def test_each_name_has_a_certificate_also_where_clients_must_show_one(world, tmp_path):
    world = world()
    own = make_certificate(tmp_path, "own", "localhost")
    authority = Authority(tmp_path)
    flags = ["--tls-cert", own[0], "--tls-key", own[1], "--tls-client-ca", authority.certificate]
    server = world.serve(*flags, names=f"{NAME},other.example.com")
    wait_for(server, 2)
    for name in (NAME, "other.example.com"):
        context = trusting(world.pebble.root(), authority.sign("ann"))
        assert world.shown(name, context)
    assert world.shown("localhost", trusting(own[0], authority.sign("bob")))
    assert "There are now 2 accounts" not in world.pebble.log(), "one account for all"


def test_a_certificate_is_renewed_before_it_expires(world):
    world = world(life=12)
    server = world.serve()
    wait_for(server, 1)
    first = world.files()[f"{NAME}.pem"].read_text()
    account = world.files()["account.json"].read_text()
    wait_for(server, 2)
    assert world.files()[f"{NAME}.pem"].read_text() != first
    eventually(lambda: ssl.DER_cert_to_PEM_cert(world.shown()) not in first, "the new one")
    assert world.files()["account.json"].read_text() == account


def test_a_certificate_is_renewed_when_the_authority_wants_it(world):
    world = world()
    server = world.serve()
    wait_for(server)
    first = world.files()[f"{NAME}.pem"].read_text()
    certificate = first[first.index("-----BEGIN CERTIFICATE") :]
    now = datetime.now(UTC)

    def planned(earliest, latest):
        next_s = metric(server, "acme_next_attempt_timestamp_seconds", name=NAME)
        return earliest.timestamp() - 1 <= next_s <= latest.timestamp() + 1

    # The authority's own plan: a day before the last third of the life, to a day after it begins.
    eventually(lambda: "wants the certificate" in server.log(), "the window of the authority")
    eventually(lambda: planned(now + timedelta(days=58), now + timedelta(days=62)), "its plan")
    week = (now + timedelta(days=7), now + timedelta(days=8))
    world.pebble.want_renewal(certificate, week)
    server.signal(signal.SIGHUP)
    eventually(lambda: planned(*week), "a plan for another window")
    server.says("(https://ca.example/why)")
    server.stop()
    # As if it were to be revoked: but not within an hour of the last one, also after a restart.
    world.pebble.want_renewal(certificate, (now - timedelta(days=2), now - timedelta(days=1)))
    path = world.files()[f"{NAME}.pem"]
    server = world.serve()
    hour = datetime.fromtimestamp(path.stat().st_mtime, UTC) + timedelta(hours=1)
    eventually(lambda: planned(hour, hour), "a plan for an hour after the last one")
    server.stop()
    grow_old(path)
    # At a renewal it learns which certificate is replaced.
    server = world.serve()
    wait_for(server)
    assert path.read_text() != first
    eventually(lambda: "is a replacement of" in world.pebble.log(), "what the authority was told")


def test_an_authority_that_does_not_repeat_what_is_replaced_renews_all_the_same(world):
    with Forgetful() as forgetful:
        world = world(front=forgetful)
        server = world.serve()
        wait_for(server)
        server.stop()
        path = world.files()[f"{NAME}.pem"]
        first = path.read_text()
        now = datetime.now(UTC)
        certificate = first[first.index("-----BEGIN CERTIFICATE") :]
        world.pebble.want_renewal(certificate, (now - timedelta(days=2), now - timedelta(days=1)))
        grow_old(path)
        server = world.serve()
        wait_for(server)
        assert path.read_text() != first
        assert forgetful.dropped == 1, "it was told what is replaced"
        assert metric(server, "acme_failures", name=NAME) == 0


def test_a_restart_goes_on_with_what_is_stored(world):
    world = world()
    server = world.serve()
    wait_for(server)
    shown, files = world.shown(), {name: path.read_text() for name, path in world.files().items()}
    root = trusting(world.pebble.root())
    server.stop()
    world.pebble.stop()
    server = world.serve()
    assert world.shown(context=root) == shown
    assert {name: path.read_text() for name, path in world.files().items()} == files
    assert "obtaining" not in server.log()


def test_without_the_authority_plain_listeners_serve_and_it_is_tried_again(world, channel):
    world = world(start=False)
    server = world.serve()
    eventually(lambda: metric(server, "acme_failures", name=NAME) == 1, "a failure")
    told = ["the certificate authority cannot be reached", "the next attempt is at"]
    eventually(lambda: all(words in server.log() for words in told), "the log")
    server.publish(channel, "plain")
    with pytest.raises(ssl.SSLError):
        world.shown(context=ssl.create_default_context())
    reasons = server.http.get("/health/ready").text
    assert "acme_failed" in reasons, reasons
    world.pebble.start()
    # It would try by itself, after ten seconds and more.
    server.signal(signal.SIGHUP)
    wait_for(server)
    assert world.shown()
    assert metric(server, "acme_failures", name=NAME) == 0
    assert f"{NAME}.failed" not in world.files()


def test_a_name_that_leads_elsewhere_is_told_and_waits_also_after_a_restart(world):
    world = world()
    name = "push.elsewhere.example"
    server = world.serve(names=f"{name},{NAME}")
    wait_for(server)
    eventually(lambda: metric(server, "acme_failures", name=name) == 1, "a failure")
    assert world.shown(), "the other name is not held up"
    eventually(lambda: f"no certificate for {name}" in server.log(), "the log")
    line = next(line for line in server.output if f"no certificate for {name}" in line)
    assert "the certificate authority refuses" in line and "Failed to connect to 127.0.0.2" in line, line
    next_s = metric(server, "acme_next_attempt_timestamp_seconds", name=name)
    server.stop()
    server = world.serve(names=f"{name},{NAME}")
    assert metric(server, "acme_failures", name=name) == 1
    assert abs(metric(server, "acme_next_attempt_timestamp_seconds", name=name) - next_s) <= 1
    eventually(lambda: "have failed before the start" in server.log(), "the log")


def test_an_account_that_the_authority_has_forgotten_is_replaced(world):
    world = world(life=12)
    server = world.serve()
    wait_for(server)
    account = world.files()["account.json"].read_text()
    world.pebble.stop()
    world.pebble.start()
    wait_for(server, 2)
    assert world.files()["account.json"].read_text() != account


def test_settings_that_cannot_work_are_told(tmp_path):
    (tmp_path / "state").write_text("a file in its place")
    flags = ["--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0"]
    ca = make_certificate(tmp_path, "ca", "localhost")[0]
    for more, expected in [
        (["--acme", NAME, "--state", tmp_path / "state"], "acme cannot keep certificates: cannot make "),
        (["--acme", NAME], "acme needs a directory for its account and certificates; add --state DIR"),
        (["--acme", "localhost"], "no authority validates"),
    ]:
        done = run_throng("serve", *flags, *more, "--acme-ca", ca, directory=tmp_path)
        assert done.returncode != 0
        assert expected in done.stderr, done.stderr


def test_other_commands_need_no_directory_that_only_the_unit_names(tmp_path):
    text = f"acme = ['{NAME}']\ntls-listen = '127.0.0.1:0'\nlisten = '127.0.0.1:1'\n"
    (tmp_path / "throng.toml").write_text(text)
    done = run_throng("check", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "`throng serve` would not start as things are here: acme needs a directory" in done.stderr
    health = run_throng("health", directory=tmp_path)
    assert health.returncode == 1 and "cannot reach" in health.stderr
