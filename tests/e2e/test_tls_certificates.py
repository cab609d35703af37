"""Certificates over time: what the status says of them, expired ones, and the port that needs a right."""

import os
import random
import shutil
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support import TIMEOUT_SECONDS
from support.certificates import make_certificate, trusting
from support.server import BINARY, ROOT, clean_environment, eventually, on_free_port
from support.tls_server import TlsServer

NAME = "localhost"
UNIT = ROOT / "packaging" / "systemd" / "throng.service"


def valid_between(directory, begins, ends):
    """Writes own.pem and own.key, which are valid from `begins` to `ends` from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "own.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "own.key").touch(mode=0o600)
    (directory / "own.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return directory / "own.pem", certificate


@pytest.fixture
def start(serve, tmp_path):
    """Starts a server with own.pem and own.key."""

    def start(*flags):
        files = ["--tls-cert", tmp_path / "own.pem", "--tls-key", tmp_path / "own.key"]
        server = serve("--tls-listen", "127.0.0.1:0", *files, *flags)
        return TlsServer(server, tmp_path / "own.pem")

    return start


def status(tls):
    """What the newest sample says of TLS."""
    return tls.plain.http.get("/status.json").json()["tls"]


def shown(tls):
    """The certificate that the server shows, in DER; `tls.context` may not trust it any more."""
    context = trusting(tls.certificate)
    context.check_hostname, context.verify_mode = False, 0
    with context.wrap_socket(tls.tcp(), server_hostname=NAME) as connection:
        return connection.getpeercert(binary_form=True)


def ready(tls):
    return tls.plain.http.get("/health/ready").json()


def test_the_status_says_until_when_certificates_are_valid(start, tmp_path):
    _, certificate = valid_between(tmp_path, -timedelta(days=1), timedelta(days=5))
    tls = start()
    found = status(tls)
    ms = [
        int(at.timestamp() * 1000)
        for at in (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    ]
    one = {"name": NAME, "not_before_ms": ms[0], "not_after_ms": ms[1], "renewal": None}
    assert found == {"error": None, "certificates": [one], "left_out": 0}
    for which, at in zip(("before", "after"), ms, strict=True):
        name = f'tls_certificate_not_{which}_timestamp_seconds{{certificate="{NAME}"}}'
        assert tls.metric(name) == at // 1000
    # It cannot be read, and then it can again.
    text = (tmp_path / "own.pem").read_text()
    (tmp_path / "own.pem").write_text(text[:100])
    tls.plain.signal(signal.SIGHUP)
    eventually(lambda: status(tls)["error"], "the error")
    assert "own.pem" in status(tls)["error"] and status(tls)["certificates"] == [one]
    (tmp_path / "own.pem").write_text(text)
    tls.plain.signal(signal.SIGHUP)
    eventually(lambda: status(tls)["error"] is None, "the end of the error")


def test_a_server_without_tls_has_none_on_its_status(server):
    assert server.http.get("/status.json").json()["tls"] is None


def test_an_expired_certificate_replaces_no_valid_one(start, tmp_path):
    valid_between(tmp_path, -timedelta(days=1), timedelta(days=5))
    tls = start()
    old = shown(tls)
    valid_between(tmp_path, -timedelta(days=9), -timedelta(days=1))
    tls.plain.signal(signal.SIGHUP)
    refused = 'tls_reloads_total{outcome="refused"}'
    # The server may have looked at the files by itself, before the signal.
    eventually(lambda: tls.metric(refused) >= 1, "the refusal")
    assert shown(tls) == old
    eventually(lambda: "expired" in tls.plain.log(), "the log")
    eventually(lambda: "expired" in (status(tls)["error"] or ""), "the reason on the status")
    assert ready(tls)["status"] == "degraded"
    # A good one holds at once.
    valid_between(tmp_path, -timedelta(days=1), timedelta(days=9))
    tls.plain.signal(signal.SIGHUP)
    eventually(lambda: shown(tls) != old, "the new one")
    eventually(lambda: status(tls)["error"] is None, "the end of the error")
    assert ready(tls).get("status") != "degraded"


def test_a_server_starts_with_an_expired_certificate_and_takes_the_next_one(start, tmp_path):
    """Clients are told what is wrong, which a closed port would not do."""
    valid_between(tmp_path, -timedelta(days=9), -timedelta(days=1))
    tls = start()
    old = shown(tls)
    assert "has expired" in tls.plain.log() and ready(tls)["status"] == "degraded"
    # Another expired one is no worse.
    valid_between(tmp_path, -timedelta(days=8), -timedelta(days=2))
    tls.plain.signal(signal.SIGHUP)
    eventually(lambda: shown(tls) != old, "the other one")
    valid_between(tmp_path, -timedelta(days=1), timedelta(days=9))
    tls.plain.signal(signal.SIGHUP)
    eventually(lambda: ready(tls).get("status") != "degraded", "the end of the ailment")
    context = trusting(tls.certificate)
    with httpx.Client(verify=context, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
        assert http.get(f"https://{NAME}:{tls.port}/health").status_code == 200


def test_clients_are_redirected_to_the_port_of_a_mapping(start, tmp_path):
    valid_between(tmp_path, -timedelta(days=1), timedelta(days=5))
    flags = ["--redirect-port", "443", "--redirect-http"]
    tls, port = on_free_port(lambda port: start(*flags, f"127.0.0.1:{port}"))
    with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as http:
        for asked, host in ((f"localhost:{port}", "localhost"), ("push.example", "push.example")):
            url = f"http://127.0.0.1:{port}/channels/a?wait=1"
            answer = http.get(url, headers={"Host": asked})
            # The port of https is not named.
            expected = f"https://{host}/channels/a?wait=1"
            assert (answer.status_code, answer.headers["location"]) == (308, expected)
    assert tls.port != 443


def granted_by_the_unit():
    """What setpriv needs to grant what the unit of the packages does, and nothing else."""
    settings = dict(
        line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line[:60]
    )
    names = settings["AmbientCapabilities"]
    assert settings["CapabilityBoundingSet"] == names, "it may gain no others"
    assert settings["NoNewPrivileges"] == "yes"
    granted = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())
    return ["--bounding-set", f"-all,{granted}", "--inh-caps", granted, "--ambient-caps", granted]


@pytest.mark.skipif(
    shutil.which("setpriv") is None or os.geteuid() != 0,
    reason="setpriv is missing, or the tests do not run as root",
)
@pytest.mark.parametrize("is_granted", [True, False])
def test_port_443_without_root(tmp_path, is_granted):
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if first <= 443 and not is_granted:
        pytest.skip("this system grants low ports to everybody")
    certificate, key = make_certificate(tmp_path, "own", NAME)
    # Other tests have the other addresses of loopback.
    address = f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(2, 250)}"
    rights = granted_by_the_unit() if is_granted else []
    # By descriptors: the user may have no access to the folders of the test and the build.
    for path in (certificate, key):
        os.chown(path, 65534, 65534)
    files = [os.open(path, os.O_RDONLY) for path in (BINARY, certificate, key)]
    program, own, secret = (f"/proc/self/fd/{number}" for number in files)
    command = [
        *("setpriv", "--no-new-privs", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
        *(*rights, program, "serve", "--listen", "127.0.0.1:0"),
        *("--tls-listen", f"{address}:443", "--tls-cert", own, "--tls-key", secret),
    ]
    process = subprocess.Popen(
        command,
        cwd="/",
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=files,
    )
    try:
        if not is_granted:
            log, _ = process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.returncode == 1, log
            assert f"{address}:443" in log and "CAP_NET_BIND_SERVICE" in log, log
            return
        context = trusting(certificate)
        with httpx.Client(verify=context, timeout=TIMEOUT_SECONDS, trust_env=False) as http:

            def served():
                try:
                    headers = {"Host": NAME}
                    extensions = {"sni_hostname": NAME}
                    url = f"https://{address}/health"
                    return http.get(url, headers=headers, extensions=extensions).is_success
                except httpx.TransportError:
                    assert process.poll() is None, process.stdout.read()
                    return False

            eventually(served, "the port")
        facts = Path(f"/proc/{process.pid}/status").read_text()
        assert "\nUid:\t65534\t65534\t" in facts
    finally:
        process.kill()
        process.communicate()
        for number in files:
            os.close(number)
