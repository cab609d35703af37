"""The room of all states and creations: a client that fills it leaves half of the rest to others."""

import json

import pytest
from support.access import SECRET, bearer, server_key, token
from websockets.sync.client import connect

RIGHTS = {name: ["*"] for name in ["publish", "subscribe", "state", "create", "history"]}
# Far more than the room is.
MANY = 400
VALUE = "x" * 10_000
OVER_SHARE = "as much room as is left for all others"


@pytest.fixture
def limited(upgradable, tmp_path):
    (tmp_path / "keys.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n")
    flags = ["--admin-listen", "127.0.0.1:0", "--history-total-bytes", "4MiB"]
    return upgradable("--config", tmp_path / "keys.toml", *flags)


def set_keys(server, user, count, channel="ann"):
    """The answers to a batch of values."""
    lines = [{"channel": channel, "state_key": f"{user} {n}", "data": VALUE} for n in range(count)]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    headers = bearer(token(sub=user, throng=RIGHTS))
    answer = server.http.post("/publish", content=body, headers=headers)
    return [json.loads(line) for line in answer.text.splitlines()]


def create(server, user, name):
    headers = bearer(token(sub=user, throng=RIGHTS))
    return server.http.put(f"/channels/{name}/creation", headers=headers)


def test_a_client_that_fills_states_is_refused_before_others(limited):
    answers = set_keys(limited, "ann", MANY)
    taken = sum("id" in answer for answer in answers)
    # Half of 2 MiB.
    assert 90 < taken < 110
    assert {(it["error"], OVER_SHARE in it["message"]) for it in answers[taken:]} == {("not_stored", True)}
    # In whatever channel, over whatever transport, and also for creations.
    assert OVER_SHARE in set_keys(limited, "ann", 1, "another")[0]["message"]
    assert (create(limited, "ann", "made").status_code, create(limited, "bob", "made").status_code) == (507, 201)
    headers = bearer(token(sub="ann", throng=RIGHTS))
    with connect(
        f"{limited.ws}/subscribe", subprotocols=["throng.v1"], additional_headers=headers, proxy=None
    ) as ann:
        frame = {"type": "publish", "channel": "a", "state_key": "k", "data": VALUE, "ref": 1}
        ann.send(json.dumps(frame))
        while (heard := json.loads(ann.recv())).get("ref") != 1:
            pass
        assert heard["code"] == "not_stored" and OVER_SHARE in heard["message"], heard
    assert all("id" in answer for answer in set_keys(limited, "bob", 20))
    with limited.admin() as admin:
        metrics = admin.get("/metrics").text
    refused = len(answers) - taken + 3
    assert f'throng_states_refused_total{{reason="share"}} {refused}\n' in metrics, metrics
    # Also after an upgrade; and what she gives back is hers again.
    limited.upgrade()
    assert OVER_SHARE in set_keys(limited, "ann", 1, "another")[0]["message"]
    assert all("id" in answer for answer in set_keys(limited, "bob", 25))
    erased = limited.http.delete(
        "/channels/ann", headers=bearer(token(sub="eve", throng={"erase": ["*"]}))
    )
    assert erased.status_code == 200, erased.text
    assert sum("id" in answer for answer in set_keys(limited, "ann", MANY)) >= taken - 1


def test_creations_of_a_client_leave_room_to_others(limited):
    name = "n" * 200
    count = 0
    while (answer := create(limited, "ann", f"{name}-{count}")).status_code == 201:
        count += 1
        assert count < 3_000, "it never ends"
    assert (answer.status_code, answer.json()["error"]) == (507, "not_stored")
    assert OVER_SHARE in answer.json()["message"]
    assert create(limited, "bob", f"{name}-{count}").status_code == 201
    assert create(limited, "ann", f"{name}-0").status_code == 200


def test_a_client_that_fills_the_disk_leaves_room_to_others(serve, tmp_path):
    table = "[[channels]]\nmatch = '*'\ndurable = true\nkey-bytes = '1GiB'\n"
    key, keys = server_key(tmp_path, "app", "publish", "state")
    (tmp_path / "disk.toml").write_text(f"{table}{keys}[[token-keys]]\nsecret = '{SECRET}'\n")
    flags = ["--config", tmp_path / "disk.toml", "--data", tmp_path / "data", "--data-max-bytes", "512MiB"]
    flags += ["--max-message-bytes", "20MiB", "--max-batch-bytes", "20MiB", "--max-lag-bytes", "20MiB"]

    def put(by, name):
        answer = server.http.put(f"/channels/big/state/{name}", content=b"x" * (15 << 20), headers=by)
        return answer.status_code, OVER_SHARE in answer.text

    ann, bob = (bearer(token(sub=user, throng=RIGHTS)) for user in ("ann", "bob"))
    server = serve(*flags)
    # Half of 256 MiB, and the value with which it is more.
    assert [put(ann, f"ann {n}") for n in range(10)] == [(201, False)] * 9 + [(507, True)]
    server.stop()
    server = serve(*flags)
    assert [put(ann, "another"), create(server, "ann", "made").status_code] == [(507, True), 507]
    assert put(bob, "bob") == (201, False)
    # The application has no share.
    assert [put(bearer(key), f"app {n}") for n in range(6)] == [(201, False)] * 6
    assert put(bob, "bob") == (201, False)
    assert put(bob, "bob 2") == (507, True)
