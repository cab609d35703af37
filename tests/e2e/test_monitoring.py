"""The dashboard and the alerts of monitoring/, against the metrics of a real server, with promtool."""

import json
import re
import shutil
import subprocess

import pytest

from support import TIMEOUT_SECONDS
from support.certificates import make_certificate, trusting
from support.issuer import Issuer
from support.server import ROOT, Server, eventually

MONITORING = ROOT / "monitoring"
DASHBOARD, ALERTS = MONITORING / "grafana-dashboard.json", MONITORING / "alerts.yml"
CALLOUT = """
[[callouts]]
url = "http://127.0.0.1:9/"
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="]
decides = ["publish"]
"""


def promtool(*arguments, input=None):
    """Runs promtool; returns its exit code and its output."""
    tool = shutil.which("promtool")
    assert tool, "promtool is missing: scripts/setup"
    done = subprocess.run(
        [tool, *map(str, arguments)],
        input=input,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scrape(tmp_path_factory):
    """The metrics of a server that has everything: a canary, callouts, a key set, TLS, ACME, and data."""
    directory = tmp_path_factory.mktemp("scrape")
    (directory / "throng.toml").write_text(CALLOUT)
    issuer = Issuer()
    certificate, key = make_certificate(directory, "own", "localhost")
    flags = ["--token-key-urls", issuer.url, "--admin-listen", "127.0.0.1:0"]
    flags += ["--admin-tls", "--tls-cert", certificate, "--tls-key", key]
    flags += ["--tls-listen", "127.0.0.1:0", "--acme", "push.example.com", "--state", directory]
    flags += ["--acme-directory", "https://127.0.0.1:9/", "--acme-ca", certificate]
    flags += ["--data", directory / "data"]
    server = Server(directory, *flags, "--drain-window", "0")
    # Before that, the age of the set is not known.
    eventually(lambda: f"the key set {issuer.url} is new" in server.log(), "the key set")
    with server.admin(trusting(certificate)) as admin:
        text = admin.get("/metrics").text
    server.stop()
    issuer.close()
    return text


def series(scrape):
    """The names of all samples."""
    lines = [line for line in scrape.splitlines() if not line.startswith("#")]
    return {re.match(r"\w+", line).group() for line in lines}


def named(text):
    """The names of metrics in a document."""
    return set(re.findall(r"\bthrong_\w+", text))


def test_the_names_follow_the_conventions_of_prometheus(scrape):
    assert promtool("check", "metrics", input=scrape) == (0, "")


def test_the_alerts_are_valid_and_fire_when_they_should():
    code, output = promtool("check", "rules", ALERTS)
    assert code == 0 and "SUCCESS" in output, output
    code, output = promtool("test", "rules", MONITORING / "alerts_test.yml")
    assert code == 0 and "SUCCESS" in output, output


def test_the_alerts_name_only_metrics_there_are(scrape):
    names = named(ALERTS.read_text())
    assert len(names) > 10 and names <= series(scrape)


def test_the_dashboard_names_only_metrics_there_are_and_its_queries_are_valid(scrape, tmp_path):
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] == "timeseries"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20 and named(DASHBOARD.read_text()) <= series(scrape)
    plain = [query.replace("$__rate_interval", "5m").replace("$instance", ".*") for query in queries]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(plain)]
    # YAML includes JSON.
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "a", "rules": rules}]}))
    code, output = promtool("check", "rules", "--lint=none", tmp_path / "rules.yml")
    assert code == 0 and f"{len(queries)} rules found" in output, output
    places = [tuple(sorted(panel["gridPos"].items())) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) and len({p["id"] for p in dashboard["panels"]}) == len(places)
