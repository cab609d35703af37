"""/metrics, read with the parser of the Prometheus client, and its table in the guide."""

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from support import TIMEOUT_SECONDS
from support.certificates import make_certificate, trusting
from support.server import ROOT, eventually
from support.transports import subscribe

GUIDE = ROOT / "docs" / "guides" / "watch.md"
LATENCY = "throng_publish_to_last_write_seconds"


def families(server):
    """The metric families of the server, by name."""
    response = server.http.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = list(text_string_to_metric_families(response.text))
    assert len({family.name for family in found}) == len(found), "no family is repeated"
    return {family.name: family for family in found}


def histogram(family):
    """The buckets of a histogram in order, its sum and its count."""
    assert family.type == "histogram"
    samples = {}
    for sample in family.samples:
        samples.setdefault(sample.name.removeprefix(family.name), []).append(sample)
    buckets = [(float(bucket.labels["le"]), bucket.value) for bucket in samples["_bucket"]]
    return buckets, samples["_sum"][0].value, samples["_count"][0].value


def test_every_family_has_a_type_a_help_and_samples(server):
    for family in families(server).values():
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation and family.samples, family


def test_publish_to_last_write_is_a_histogram(serve, channel):
    server = serve()
    with subscribe("websocket", server, f"/channels/{channel}") as follower:
        for number in range(5):
            server.publish(channel, f"message {number}")
        follower.take(5)
        # The duration is recorded after the subscriber has the message.
        eventually(lambda: histogram(families(server)[LATENCY])[2] == 5, "five messages")
    buckets, sum_s, count = histogram(families(server)[LATENCY])
    bounds, counts = zip(*buckets)
    assert list(bounds) == sorted(set(bounds)) and bounds[-1] == float("inf")
    assert list(counts) == sorted(counts) and counts[-1] == count == 5
    assert 0 < sum_s < 5 * max(bounds[-2], sum_s)
    samples = server.metrics()
    assert samples['throng_http_request_duration_seconds_count{route="publish"}'] == 5
    assert samples['throng_http_request_duration_seconds_count{route="status"}'] >= 1


def test_the_guide_lists_exactly_the_metrics_there_are(serve, tmp_path):
    # Some there are only with certificates, with ACME, with a data directory, or with NATS, and of
    # nodes only with limits.
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    tls = ["--admin-tls", "--tls-cert", certificate, "--tls-key", key]
    acme = ["--tls-listen", "127.0.0.1:0", "--acme", "push.example.com", "--state", tmp_path]
    acme += ["--acme-directory", "https://127.0.0.1:9/", "--acme-ca", certificate]
    data = ["--data", tmp_path / "data"]
    server = serve("--admin-listen", "127.0.0.1:0", *tls, *acme, *data)
    eventually(lambda: "admin listener on https://" in server.log(), "the admin listener")
    url = next(line for line in server.output if "admin listener on" in line).split()[-1]
    context = trusting(certificate)
    with httpx.Client(verify=context, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        metrics = client.get(url + "/metrics").text
    section = GUIDE.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `throng_")]
    documented = [name for row in rows for name in re.findall(r"`(throng_\w+)", row)]
    limit = ["--bad-token-rate-per-address", "10"]
    node = serve("--engine", "nats", "--nats", "127.0.0.1:9", *limit)
    metrics += node.http.get("/metrics").text
    names = set()
    for line in metrics.splitlines():
        if line.startswith("# TYPE "):
            names.add(line.split()[2])
    assert sorted(documented) == sorted(names)
