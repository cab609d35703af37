"""The OpenAPI document, as programs of others read it: linters, generators of clients and of
requests."""

import copy
import json
import os
import shutil
import subprocess

import pytest
from support import TIMEOUT_SECONDS
from support.access import MINUTE, SECRET, now, server_key, token
from support.server import ROOT

CONTRACTS = ROOT / "tests" / "contracts"
TOOLS = ROOT / ".cache" / "contracts" / "bin"
NODE_TOOLS = ROOT / "tests" / "node_modules" / ".bin"
# What schemathesis expects of each answer: that it is no accident, and that the document has it.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
]
SCOPES = [
    *("publish", "history", "presence", "subscribe"),
    *("listing", "subscriptions", "administration"),
]


@pytest.fixture(scope="module")
def openapi(server):
    response = server.http.get("/openapi.json")
    assert response.headers["Content-Type"] == "application/json"
    return response.json()


def run(*command, **options):
    """Runs a tool; shows what it says if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=14 * TIMEOUT_SECONDS,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def written(document, folder, name="openapi.json"):
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def strict(document):
    """The same document, in which answers have no fields that it does not name."""
    document = copy.deepcopy(document)
    for schema in document["components"]["schemas"].values():
        for part in nested(schema):
            if "properties" in part:
                part["additionalProperties"] = False
    return document


def nested(schema):
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nested(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nested(value)


def test_the_document_is_valid(openapi, tmp_path):
    path = written(openapi, tmp_path)
    run(TOOLS / "openapi-spec-validator", path)
    config = CONTRACTS / "redocly.yaml"
    quiet = {**os.environ, "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    run(NODE_TOOLS / "redocly", "lint", path, "--config", config, env=quiet)


def test_a_generated_python_client_publishes_and_reads(server, openapi, channel, tmp_path):
    path = written(openapi, tmp_path)
    target = ["--output-path", tmp_path / "generated", "--meta", "none"]
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"post_hooks": []}))
    run(TOOLS / "openapi-python-client", "generate", "--path", path, *target, "--config", config)
    run(TOOLS / "python", CONTRACTS / "use_client.py", tmp_path, server.url, channel)


def test_generated_typescript_types_fit_what_is_served(openapi, tmp_path):
    path = written(openapi, tmp_path)
    run(NODE_TOOLS / "openapi-typescript", path, "-o", tmp_path / "generated.ts")
    shutil.copy(CONTRACTS / "use-types.ts", tmp_path)
    run(NODE_TOOLS / "tsc", "--strict", "--noEmit", "--target", "es2022", tmp_path / "use-types.ts")


def try_requests(server, document, folder, *options):
    """Sends requests of all kinds, the same each time; fails for an answer that the document lacks."""
    path = written(strict(document), folder)
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(CONTRACTS)}
    command = [TOOLS / "st", "run", path, "--url", server.url, "--no-color"]
    # One worker: until 3.11.8, `ast` fails in Python if two threads parse at once (CPython's issue 106905).
    command += ["--generation-deterministic", "--workers", "1", *options]
    command += ["--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)]
    # The stream of the status has no end.
    command += ["--max-redirects", "0", "--exclude-path", "/status/stream"]
    command += ["--request-timeout", "20"]
    said = run(*command, cwd=folder, env=environment)
    assert "Errors:" not in said and "Failures:" not in said, said[-8000:]


def test_requests_of_all_kinds_get_documented_answers(serve, openapi, tmp_path):
    server = serve("--data", str(tmp_path / "data"))
    try_requests(server, openapi, tmp_path, "--max-examples", "10")


@pytest.mark.parametrize("credential", ["key", "token"])
def test_so_do_requests_with_credentials(serve, openapi, tmp_path, credential):
    key, table = server_key(tmp_path, "app", *SCOPES)
    (tmp_path / "secret").write_text(SECRET)
    config = tmp_path / "throng.toml"
    config.write_text(table + '\n[[token-keys]]\nsecret-file = "secret"\n')
    for path in (config, tmp_path / "secret"):
        path.chmod(0o600)
    server = serve("--config", config, "--data", tmp_path / "data")
    grants = {"subscribe": ["*"], "publish": ["*"], "history": ["*"], "presence": ["*"]}
    shown = key if credential == "key" else token(exp=now() + 60 * MINUTE, throng=grants)
    header = f"Authorization: Bearer {shown}"
    options = ["--max-examples", "3", "--header", header]
    if credential == "token":
        # What takes server keys only is refused to any token.
        options += ["--include-path-regex", "^/(channels|users|subscribe|publish)"]
    try_requests(server, openapi, tmp_path, *options)
