"""The applications of docs/guides/python-web.md against the real server."""

import json
import re
import subprocess
import sys
import types

import jwt
import pytest
from conftest import ROOT
from support.server import BINARY, Server, clean_environment, eventually
from throng_client import Throng, User

GUIDE = (ROOT / "docs" / "guides" / "python-web.md").read_text()
SECRET = "0123456789abcdef0123456789abcdef"
WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# Limits failures only.
WAIT_SECONDS = 20
FLASK, FASTAPI, DJANGO, CALLOUT = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The environment of the guide's applications, and a client with their key."""
    scopes = ["--scopes", "publish,subscribe,history"]
    made = subprocess.run(
        [BINARY, "key", "--name", "app", *scopes],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "secret").write_text(SECRET)
    config = made.stderr + '\n[[token-keys]]\nsecret-file = "secret"\n'
    (tmp_path / "throng.toml").write_text(config)
    for name in ("secret", "throng.toml"):
        (tmp_path / name).chmod(0o600)
    flags = ["--config", tmp_path / "throng.toml", "--drain-window", "200ms"]
    server = Server(tmp_path, *flags)
    key = made.stdout.strip()
    monkeypatch.setenv("THRONG_URL", server.url)
    monkeypatch.setenv("THRONG_KEY", key)
    monkeypatch.setenv("THRONG_TOKEN_SECRET", SECRET)
    monkeypatch.setenv("THRONG_SECRET", WEBHOOK)
    monkeypatch.setenv("SESSION_SECRET", "s")
    with Throng(server.url, key) as client:
        yield client
    server.stop()


def module_of(code, name):
    """Runs an example as a module of its own."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(code, name, "exec"), module.__dict__)
    return module


def inbox(client, user):
    return [message.data for message in client.history(User(user)).messages]


def test_flask(environment):
    module = module_of(FLASK + CALLOUT, "flask_example")
    browser = module.app.test_client()
    assert browser.get("/push-token").status_code == 401
    with browser.session_transaction() as session:
        session["user"] = "ann"
    token = browser.get("/push-token").get_json()["token"]
    assert jwt.decode(token, SECRET, ["HS256"])["sub"] == "ann"
    for _ in range(2):
        assert browser.post("/orders/7/ship", data={"customer": "ann"}).status_code == 200
    assert module.publisher.flush(WAIT_SECONDS)
    assert inbox(environment, "ann") == [{"shipped": "7"}]
    assert browser.post("/throng", data="{}").status_code == 401
    module.throng.close()


def test_fastapi(environment):
    from fastapi.testclient import TestClient

    module = module_of(FASTAPI, "fastapi_example")
    with TestClient(module.app) as browser:
        environment.publish("prices", 3)
        eventually(lambda: browser.get("/price").json() == {"price": 3}, "the price")
        assert browser.post("/orders/8/ship?customer=bob").status_code == 200
    # The end of the application has published what was in the queue.
    assert inbox(environment, "bob") == [{"shipped": "8"}]


def test_django(environment):
    import django
    from django.conf import settings

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(
        ROOT_URLCONF="urls_example",
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": database},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
        MIDDLEWARE=[],
    )
    django.setup()
    from django.test import RequestFactory
    from django.urls import path

    views = module_of(DJANGO, "views")
    module_of("", "urls_example").urlpatterns = [path("ship/<order>", views.ship)]
    request = RequestFactory().get("/push-token")
    request.user = types.SimpleNamespace(is_authenticated=True, username="cleo")
    token = json.loads(views.push_token(request).content)["token"]
    assert jwt.decode(token, SECRET, ["HS256"])["sub"] == "cleo"
    from django.test import Client

    assert Client().post("/ship/9", {"customer": "cleo"}).status_code == 200
    assert views.publisher().flush(WAIT_SECONDS)
    assert inbox(environment, "cleo") == [{"shipped": "9"}]
    views.publisher().close()
