"""Applications of the Pusher protocol: servers with one, its signatures, and sockets that speak the protocol."""

import hashlib
import hmac
import json
import time
from urllib.parse import urlencode

from .access import bearer, server_key
from .raw import PING, PONG, TEXT, RawWebSocket, frame

APP = {"id": "1", "key": "app-key", "secret": "0123456789abcdef0123"}
PREFIX = "shop/"
OTHER = {"id": "2", "key": "mall-key", "secret": "another-secret-of-16"}
OTHER_PREFIX = "mall/"


def table(app, prefix, *more):
    """The settings of an application."""
    lines = [f'{name} = "{value}"' for name, value in {**app, "prefix": prefix}.items()]
    return "\n".join(["", "[[apps]]", *lines, *more, ""])


def path_of(app):
    return f"/app/{app['key']}?protocol=7&client=test&version=1"


TABLE = table(APP, PREFIX)
PATH = path_of(APP)


def settings(directory, *more):
    """Writes the settings of a server with the application, and a server key for the native interface.

    Returns the headers that show the key.
    """
    key, table = server_key(directory, "native", "publish", "subscribe", "history", "presence")
    (directory / "throng.toml").write_text("\n".join([*more, table, TABLE]))
    return bearer(key)


def sign(text, secret=APP["secret"]):
    """The signature of a text."""
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def signed_query(method, path, body=b"", key=None, at=None, app=APP, **parameters):
    """The query of a request that the application has signed."""
    all = {
        "auth_key": key or app["key"],
        "auth_timestamp": str(at or int(time.time())),
        "auth_version": "1.0",
        **parameters,
    }
    if body:
        all["body_md5"] = hashlib.md5(body).hexdigest()
    text = "&".join(f"{name}={value}" for name, value in sorted(all.items()))
    return urlencode({**all, "auth_signature": sign(f"{method}\n{path}\n{text}", app["secret"])})


def call(server, method, path, body=None, query=None, app=APP, headers=None, **parameters):
    """Asks the HTTP API of the application: the status and the answer."""
    content = b"" if body is None else json.dumps(body).encode()
    if query is None:
        query = signed_query(method, path, content, app=app, **parameters)
    response = server.http.request(method, f"{path}?{query}", content=content, headers=headers)
    return response.status_code, response.json()


class Peer(RawWebSocket):
    """A client that says what a test tells it."""

    def __init__(self, server, path=None, app=APP):
        self.app = app
        super().__init__(server, path or path_of(app))
        self.greeting = self.next()
        data = self.greeting.get("data")
        self.socket_id = json.loads(data)["socket_id"] if isinstance(data, str) else None

    def next(self):
        """The next frame, as JSON."""
        opcode, payload = self.read_frame()
        # On a busy machine a test may take longer than the server waits for a sign of life.
        while opcode == PING:
            self.send(frame(PONG, payload))
            opcode, payload = self.read_frame()
        assert opcode == TEXT, (opcode, payload)
        return json.loads(payload)

    def say(self, event, data=None, channel=None):
        said = {"event": event, "data": data, "channel": channel}
        self.send(
            frame(
                TEXT,
                json.dumps({name: value for name, value in said.items() if value is not None}),
            )
        )

    def subscribe(self, channel, member=None, socket_id=None, **more):
        """Subscribes with a signature where the channel needs one."""
        data = {"channel": channel, **more}
        text = f"{socket_id or self.socket_id}:{channel}"
        if member is not None:
            data["channel_data"] = member if isinstance(member, str) else json.dumps(member)
            text += f":{data['channel_data']}"
        if "auth" not in more and channel.startswith(("private-", "presence-")):
            data["auth"] = self.auth(text)
        self.say("pusher:subscribe", data)

    def auth(self, text):
        """The application's signature of a text."""
        return f"{self.app['key']}:{sign(text, self.app['secret'])}"

    def sign_in(self, user, watchlist=None):
        """Signs in as a user, who watches others."""
        data = json.dumps({"id": user, **({"watchlist": watchlist} if watchlist is not None else {})})
        auth = self.auth(f"{self.socket_id}::user::{data}")
        self.say("pusher:signin", {"user_data": data, "auth": auth})

    def is_well(self):
        """True if the connection still answers, and has nothing else to say."""
        self.say("pusher:ping", {})
        return self.next()["event"] == "pusher:pong"
