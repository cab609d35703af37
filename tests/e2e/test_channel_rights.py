"""Rights of their own: to set keys, to end, to create, to edit and to erase. Nobody has them by others."""

import pytest

from support.access import SECRET, bearer, server_key, token

OLD = ["subscribe", "publish", "history", "presence"]
SCOPES = [*OLD, "listing", "subscriptions", "administration"]
# For each right: a request, with the status of its success, and the rights that it needs besides.
REQUESTS = {
    "state": ("PUT", "/channels/room/state/k", "x", 201, ["publish"]),
    "end": ("POST", "/channels/room/end", "", 201, []),
    "create": ("PUT", "/channels/room/creation", "", 201, []),
    "edit": ("PUT", "/channels/room/messages/{id}", "x", 200, ["publish"]),
    "erase": ("DELETE", "/channels/room/messages/{id}", None, 200, []),
}
RULE = """
[[channels]]
match = "*"
publish = "anyone"
subscribe = "anyone"
history = "anyone"
"""


@pytest.fixture
def site(serve, tmp_path):
    """A server with keys and an open rule, and what asks it for a right with a credential."""
    keys, tables = {}, ""
    for name, scopes in {"old": SCOPES, **{right: [right, *it[4]] for right, it in REQUESTS.items()}}.items():
        keys[name], table = server_key(tmp_path, name, *scopes)
        tables += table
    (tmp_path / "throng.toml").write_text(f"{tables}[[token-keys]]\nsecret = '{SECRET}'\n{RULE}")
    server = serve("--config", tmp_path / "throng.toml")
    id = server.publish("room", "first")["id"]

    def ask(right, credential=None):
        method, path, body, _, _ = REQUESTS[right]
        headers = bearer(credential) if credential else {}
        return server.http.request(method, path.format(id=id), content=body, headers=headers)

    return ask, keys


def refused(answer):
    return answer.status_code, answer.json().get("error")


@pytest.mark.parametrize("right", REQUESTS)
def test_no_other_right_and_no_open_rule_includes_it(site, right):
    ask, keys = site
    assert refused(ask(right)) == (401, "unauthorized")
    others = [other for other in REQUESTS if other != right]
    granted = {name: ["*"] for name in [*OLD, "update", *others]}
    for credential in (token(sub="ann", throng=granted), keys["old"], *(keys[other] for other in others)):
        assert refused(ask(right, credential)) == (403, "forbidden")


@pytest.mark.parametrize("right", REQUESTS)
@pytest.mark.parametrize("by", ["token", "key"])
def test_a_grant_or_a_scope_gives_it(site, right, by):
    ask, keys = site
    _, _, _, status, besides = REQUESTS[right]
    credential = keys[right]
    if by == "token":
        credential = token(sub="ann", throng={name: ["room"] for name in [right, *besides]})
    answer = ask(right, credential)
    assert answer.status_code == status, answer.text
    elsewhere = token(sub="ann", throng={name: ["other"] for name in [right, *besides]})
    assert refused(ask(right, elsewhere)) == (403, "forbidden")
