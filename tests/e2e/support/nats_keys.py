"""Keys and JWTs of NATS, made as its tools make them."""

import base64
import json
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SEED, OPERATOR, ACCOUNT, USER = 18 << 3, 14 << 3, 0, 20 << 3


def _text(data):
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
    return base64.b32encode(data + crc.to_bytes(2, "little")).decode().rstrip("=")


def _base64(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Key:
    """A key pair of an operator, an account or a user."""

    def __init__(self, kind):
        self.private = Ed25519PrivateKey.generate()
        raw = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = _text(bytes([kind]) + raw)
        prefix = bytes([SEED | kind >> 5, (kind & 31) << 3])
        self.seed = _text(prefix + self.private.private_bytes_raw())

    def sign(self, subject, kind, claims, expires=None):
        """A JWT about the key `subject`."""
        now = int(time.time())
        nats = {**claims, "type": kind, "version": 2}
        body = {"jti": "test", "iat": now, "iss": self.public, "sub": subject.public, "nats": nats}
        body["name"] = kind
        if expires is not None:
            body["exp"] = now + expires
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(_base64(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_base64(self.private.sign(text.encode()))}"


class Operator:
    """An operator with an account that has JetStream, and the configuration of its servers."""

    def __init__(self):
        operator, system = Key(OPERATOR), Key(ACCOUNT)
        self.account = Key(ACCOUNT)
        some = dict.fromkeys(["subs", "data", "payload", "imports", "exports", "conn", "leaf"], -1)
        some["wildcards"] = True
        all_of_it = dict.fromkeys(["mem_storage", "disk_storage", "streams", "consumer"], -1)
        claims = {"limits": {**some, **all_of_it}}
        tokens = {
            self.account.public: operator.sign(self.account, "account", claims),
            system.public: operator.sign(system, "account", {"limits": some}),
        }
        own = operator.sign(operator, "operator", {"system_account": system.public})
        preload = "\n".join(f"{key}: {token}" for key, token in tokens.items())
        self.configuration = (
            f"operator: {own}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        )

    def credentials(self, expires=None):
        """The text of a .creds file of a new user."""
        user = Key(USER)
        claims = {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
        token = self.account.sign(user, "user", claims, expires)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
