"""Messages that clients may not be able to read, drawn from a seed, and a server that keeps them.

Each has an envelope whose channel and id can be read. Whether a client can read the rest depends on
its language: JavaScript reads numbers of any length, Go reads thousands of levels.
"""

import json
import random
import re
from dataclasses import dataclass

DEEPEST = 20_000
DIGITS_MAX = 100_000


@dataclass(frozen=True)
class Kept:
    """A message in the log of the server."""

    id: str
    line: str
    """Its envelope, as the server sends it."""
    data: object = None
    """The data that all clients deliver; None if they may differ."""
    is_unreadable: bool = False
    """No client can read it."""

    @property
    def offset(self):
        return int(self.id.rpartition("-")[2])

    @property
    def item(self):
        """The same as an item of a frame; None for an envelope without data."""
        pattern = (
            r'\{"type":"message","channel":"a","id":"[^"]*","time":([^,]*),?(.*?),?"data":(.*)\}'
        )
        found = re.fullmatch(pattern, self.line, re.DOTALL)
        if found is None:
            return None
        time, more, data = found.groups()
        return f"[7,{self.offset},{data},{time},{{{more}}}]"


def envelope(id, data, **fields):
    """The text of an envelope with this text in the place of the data."""
    named = {"type": "message", "channel": "a", "id": id, "time": 1}
    text = json.dumps({**named, **fields}, separators=(",", ":"))
    return text if data is None else f'{text[:-1]},"data":{data}}}'


def deep(dice):
    depth = dice.choice([129, 200, 1_000, 2_000, dice.randint(5_000, DEEPEST)])
    opened, closed = dice.choice([("[", "]"), ('{"a":', "}"), ('[{"b":', "}]")])
    return opened * depth + "1" + closed * depth


def digits(dice):
    size = dice.choice([19, 310, 4_301, 5_000, DIGITS_MAX])
    return dice.choice(["", "-"]) + "9" * size + dice.choice(["", ".5", "e9", "E-999999"])


def halves(dice):
    half = dice.choice([r"\ud83d", r"\udc00", r"\uDFFF", r"\ud83d\ud83d", r"\ud83dx"])
    return dice.choice(['"%s"', '"a %s b"', '{"%s":1}', '["%s"]']) % half


def nested(make):
    """The same somewhere inside a value."""
    return lambda dice: dice.choice(["%s", "[1,%s]", '{"n":%s}', '[{"a":[%s]},2]']) % make(dice)


# Data that some clients read and others do not: either is right, as long as it is told.
DATA = [nested(deep), nested(digits), nested(halves)]
# Frames that no client can read.
UNREADABLE = [
    lambda id: envelope(id, '"%"', encoding="base64"),
    lambda id: envelope(id, '"QUJ"', encoding="base64"),
    lambda id: envelope(id, "5", encoding="base64"),
    lambda id: envelope(id, None),
]
# Types that the protocol does not have: a client may pass them on.
MISTYPED = [{"time": "now"}, {"time": None}, {"content_type": 7}, {"encoding": "rot13"}]


def poison(dice, id):
    kind = dice.choice(["data", "data", "data", "unreadable", "mistyped", "unknown"])
    if kind == "unreadable":
        return Kept(id, dice.choice(UNREADABLE)(id), is_unreadable=True)
    if kind == "mistyped":
        return Kept(id, envelope(id, '"x"', **dice.choice(MISTYPED)))
    if kind == "unknown":
        # A field of a newer server, which may be as odd as data.
        return Kept(id, f'{envelope(id, None)[:-1]},"newer":{dice.choice(DATA)(dice)},"data":"x"}}')
    return Kept(id, envelope(id, dice.choice(DATA)(dice)))


def log_of(seed, count=12):
    """Messages of which about half are poison; first and last are not."""
    dice = random.Random(seed)
    kept = []
    for offset in range(1, count + 1):
        id = f"e-{offset}"
        if 1 < offset < count and dice.random() < 0.6:
            kept.append(poison(dice, id))
        else:
            text = f"data of {id}"
            kept.append(Kept(id, envelope(id, json.dumps(text)), data=text))
    return kept


class LogServer:
    """The script of a server that keeps a log and answers as Throng does, over each transport."""

    def __init__(self, log, between=None, is_compact=False):
        self.log = log
        self.is_compact = is_compact
        """WebSockets have frames with many messages."""
        self.end = log[-1].id
        self.between = between or (lambda number, peer: None)
        """Called with the number of the subscription, after the first message of each."""
        self.subscriptions = 0

    def after(self, since):
        offset = 0 if since is None else int(since.rpartition("-")[2])
        return [each for each in self.log if each.offset > offset]

    async def __call__(self, request, peer):
        since = None
        if "since=" in request.path:
            since = request.path.partition("since=")[2].partition("&")[0]
        if "upgrade" in request.headers:
            await self._socket(request, peer)
        elif request.method == "HEAD":
            head = f"HTTP/1.1 200 -\r\nThrong-Id: {self.end}\r\nContent-Length: 0\r\n\r\n"
            peer.writer.write(head.encode())
        elif "/history" in request.path:
            peer.answer(200, self._page(request.path).encode())
        elif "transport=poll" in request.path:
            await self._poll(peer, since)
        else:
            await self._stream(peer, since)

    def _page(self, path):
        """A page of history, with which the JavaScript client begins over HTTP."""
        query = dict(each.split("=") for each in path.partition("?")[2].split("&"))
        kept = self.after(query.get("after"))
        limit = int(query["limit"])
        lines = [each.line for each in (kept[:limit] if "after" in query else kept[-limit:])]
        more = "true" if len(lines) < len(kept) else "false"
        return f'{{"id":"{self.end}","messages":[{",".join(lines)}],"more":{more}}}'

    async def _socket(self, request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        since = frame.get("since")
        self.subscriptions += 1
        answer = {"type": "subscribed", "channel": "a", "ref": frame["ref"], "number": 7}
        peer.say({**answer, "id": since or "e-0", "head": self.end, "recovered": True})
        items = []

        def flush():
            if items:
                peer.text(f"[0,{','.join(items)}]")
            items.clear()

        for number, each in enumerate(self.after(since)):
            if self.is_compact and each.item is not None:
                items.append(each.item)
            else:
                flush()
                peer.text(each.line)
            if number == 0:
                flush()
                self.between(self.subscriptions, peer.bytes_frame)
        flush()
        while True:
            await peer.hear()

    async def _stream(self, peer, since):
        self.subscriptions += 1
        start = since or "e-0"
        head = f"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nThrong-Id: {start}\r\n\r\n"
        peer.writer.write(head.encode())
        say = peer.writer.write
        if since:
            say(b'event: resumed\ndata: {"recovered":true}\n\n')
        say(f'event: welcome\ndata: {{"id":"{start}"}}\n\n'.encode())
        for number, each in enumerate(self.after(since)):
            say(f"id: {each.id}\ndata: {each.line}\n\n".encode())
            if number == 0:
                self.between(self.subscriptions, lambda data: say(b"data: " + data + b"\n\n"))
        await peer.reader.read(1)

    async def _poll(self, peer, since):
        lines = [each.line.encode() for each in self.after(since)]
        if since and not lines:
            # Nothing more comes.
            await peer.reader.read(1)
            return
        self.subscriptions += 1
        self.between(self.subscriptions, lambda data: lines.insert(1, data))
        head = {"Throng_Id": self.end}
        if since:
            head["Throng_Recovered"] = "true"
        peer.answer(200, b"\n".join(lines) or b"", **head)


def check_told(client, log):
    """Each message is told once and in order: as it is, or as one that cannot be read."""
    told = [it for it in client.heard if it["event"] in ("message", "unreadable", "gap")]
    assert [it["id"] for it in told] == [each.id for each in log]
    for event, kept in zip(told, log, strict=True):
        if event["event"] == "unreadable":
            assert kept.data is None, f"all clients can read {kept.id}"
            assert event["reason"] and event["channel"] == "a"
        else:
            assert not kept.is_unreadable, f"nobody can read {kept.line[:200]}"
            assert kept.data is None or event["data"] == kept.data
    assert not client.all("error")
