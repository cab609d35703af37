"""Files of keys that are replaced while clients use them: nobody is refused, and no restart."""

import json
import os
import signal
import threading

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from support.access import bearer, token
from support.raw import Raw
from support.server import eventually

GRANTS = {"subscribe": ["*"], "publish": ["*"]}
CLIENTS = 4


def key_set(**keys):
    """The public halves of keys, as a key set."""
    of = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    public = {name: of.to_jwk(key.public_key(), as_dict=True) for name, key in keys.items()}
    return json.dumps({"keys": [{**jwk, "kid": name} for name, jwk in public.items()]})


class Load:
    """Clients that publish and poll with the present token, each request on a connection of its own
    or on a kept one, until the end. Knows every status that was not expected."""

    def __init__(self, server, shown):
        self.server, self.shown, self.unexpected = server, shown, []
        self.done, self.requests = threading.Event(), [0] * CLIENTS
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(CLIENTS)]

    def run(self, number):
        while not self.done.is_set():
            headers = bearer(self.shown)
            if number % 2:
                status = self.server.http.post("/channels/news", content="x", headers=headers)
                status = status.status_code
            else:
                with Raw(self.server) as client:
                    client.request("GET", "/channels/news?wait=0", headers)
                    status = client.read_head().status
            if status not in (200, 201, 204):
                self.unexpected.append(status)
            self.requests[number] += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join()

    def go_on(self):
        """Waits until each client has asked again, also with what it is to show from now on: its
        present request may still show the former."""
        before = list(self.requests)

        def have_asked():
            return all(now >= then + 2 for now, then in zip(self.requests, before, strict=True))

        eventually(lambda: have_asked() or self.unexpected, "further requests")
        assert self.unexpected == []


def replace(path, text):
    """As a tool does: the file is never half written."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.chmod(new, 0o600)
    new.rename(path)


def key_sets():
    """A set with a key, one with a newer key besides, and one with the newer alone; and a token of
    each key."""
    first, second = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    files = [key_set(a=first), key_set(a=first, b=second), key_set(b=second)]
    tokens = [
        token(key, "ES256", {"kid": name}, throng=GRANTS)
        for name, key in [("a", first), ("b", second)]
    ]
    return files, tokens


def test_keys_are_replaced_under_load(tmp_path, serve):
    (old, both, new), (first, second) = key_sets()
    path = tmp_path / "keys"
    replace(path, old)
    (tmp_path / "throng.toml").write_text("[[token-keys]]\njwks-file = 'keys'\n")
    server = serve()

    def reload(text):
        changes = server.log().count("replaced: token keys")
        replace(path, text)
        server.signal(signal.SIGHUP)
        eventually(lambda: server.log().count("replaced: token keys") > changes, "the new keys")

    def status(credential):
        return server.http.get("/channels/news?wait=0", headers=bearer(credential)).status_code

    assert (status(first), status(second)) == (204, 401)
    with Raw(server) as follower, Load(server, first) as load:
        follower.request("GET", "/channels/kept", {**bearer(first), "Accept": "text/event-stream"})
        assert follower.read_head().status == 200
        load.go_on()
        reload(both)
        load.go_on()
        load.shown = second
        load.go_on()
        reload(new)
        load.go_on()
        assert status(first) == 401, "a token that was verified before is refused, too"
        # The connections of the old key stay until their tokens end.
        server.http.post("/channels/kept", content="still here", headers=bearer(second))
        assert b"data: still here" in follower.read_until(b"still here")
    assert load.unexpected == []
