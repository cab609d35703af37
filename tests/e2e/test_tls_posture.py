"""What testssl.sh finds at a TLS listener: versions, suites, groups, known attacks. It takes minutes, so
only `scripts/test --long` runs it."""

import json
import os
import subprocess

import pytest

from support.tls_server import start_tls

SECONDS_MAX = 900
HARMLESS = ("OK", "INFO", "DEBUG", "LOW")
# What it objects to in spite of that, and why that may be.
EXCEPTED = {
    # About the machine that asks.
    "engine_problem": "the openssl of this machine has no engine for GOST, which no server needs",
    # About the certificate of the test, which the operator chooses.
    "cert_revocation": "the certificate is self-signed: there is nobody who could revoke it",
    # Measured with openssl s_client; tests of resumption are in test_tls_clients.py.
    "sessionresumption_ticket": "it resumes with a connection that it does not finish",
}


@pytest.mark.skipif(
    "THRONG_TEST_TESTSSL" not in os.environ, reason="takes minutes: THRONG_TEST_TESTSSL=1 runs it"
)
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("flags", [[], ["--tls-min-version", "1.3"]], ids=["1.2", "1.3"])
def test_testssl_finds_nothing_above_low(tmp_path, flags):
    tls = start_tls(tmp_path, *flags, days=365)
    found = tmp_path / "found.json"
    command = ["testssl", "--quiet", "--color", "0", "--warnings", "off", "--nodns", "min"]
    command += ["--openssl-timeout", "5", "--add-ca", tls.certificate, "--jsonfile", found]
    subprocess.run(
        [*command, f"localhost:{tls.port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=SECONDS_MAX,
    )
    tls.plain.stop()
    findings = json.loads(found.read_text())
    # It has looked: at versions, suites and attacks.
    assert {"TLS1_3", "heartbleed", "cert_trust"} <= {finding["id"] for finding in findings}
    bad = [
        finding
        for finding in findings
        if finding["severity"] not in HARMLESS and finding["id"].split(" ")[0] not in EXCEPTED
    ]
    assert not bad, bad
