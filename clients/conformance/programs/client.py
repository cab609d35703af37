"""The Python client, driven by JSON on its standard input: see clients/conformance/README.md."""

import asyncio
import json
import ssl
import sys
import threading

from throng_client import AsyncThrong, Throng, ThrongError

# One for all clients: to make one takes longer than to connect.
CONTEXT = ssl.create_default_context()
TIMES = ["heartbeat", "open_timeout", "request_timeout", "publish_timeout", "poll_wait"]


def print_event(client, event, **fields):
    # A number beyond the limit of `int` is a `Decimal`, which is no JSON.
    line = json.dumps({"client": client, "event": event, **fields}, default=str)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def made(kind, command):
    """A client with the options that are common to all clients."""
    given = command["options"]
    options = {name: given[f"{name}_ms"] / 1000 for name in TIMES if f"{name}_ms" in given}
    if "random" in given:
        options["random"] = lambda: given["random"]
    if "params" in given:
        options["params"] = given["params"]
    options["no_time"] = given.get("no_time", False)
    options |= {"transports": given["transports"], "user": given.get("user")}
    return kind(command["url"], given.get("token"), ssl_context=CONTEXT, **options)


def subscribed(client, command):
    name = command["client"]

    def on_gap(gap):
        print_event(name, "gap", channel=gap.target, id=gap.id, missed=gap.missed)

    def on_presence(event):
        left = [each.user for each in event.left]
        fields = {"users": event.users, "joined": event.joined, "left": left}
        fields["members"] = {key: member.info for key, member in event.members.items()}
        fields |= {"updated": event.updated, "partial": event.partial}
        print_event(name, "presence", channel=event.target, connections=event.connections, **fields)

    def on_unreadable(event):
        print_event(name, "unreadable", channel=event.target, id=event.id, reason=event.reason)

    def on_erased(event):
        ids = {"erased": event.erased, "erased_up_to": event.erased_up_to}
        print_event(name, "erased", channel=event.target, id=event.id, **ids)

    def on_state_end(event):
        print_event(name, "complete", channel=event.target, id=event.id)

    def on_ended(event):
        print_event(name, "ended", channel=event.target, id=event.id)

    def on_unread(event):
        of = {} if event.channel is None else {"channel": event.channel}
        print_event(name, "unread", read=event.read, unread=event.unread, **of)

    def on_conflated(event):
        print_event(name, "conflated", channel=event.target, count=event.count)

    def on_state(state):
        delay = None if state.delay is None else state.delay * 1000
        fields = {"transport": state.transport, "delay_ms": delay, "reason": state.reason}
        print_event(name, "state", state=state.name, **fields)

    return client.subscribe(
        *command["channels"],
        since=command.get("since"),
        history=command.get("history", 0),
        state=command.get("state", False),
        info=command.get("info"),
        pace=command["pace_ms"] / 1000 if "pace_ms" in command else None,
        on_gap=on_gap,
        on_presence=on_presence if command.get("presence") else None,
        on_state=on_state,
        on_unreadable=on_unreadable,
        on_conflated=on_conflated,
        on_erased=on_erased,
        on_state_end=on_state_end,
        on_ended=on_ended,
        on_unread=on_unread,
    )


def print_message(name, message):
    data = message.data
    fields = {
        "id": message.id,
        "time": message.time,
        "data": data.decode(errors="replace") if isinstance(data, bytes) else data,
        "replayed": message.replayed,
        "content_type": message.content_type,
        "name": message.event,
        "tags": message.tags,
        "from": message.sender,
        "replaces": message.replaces,
        "state_key": message.state_key,
        "tombstone": message.tombstone,
    }
    print_event(name, "message", channel=message.target, **fields)


def options(command):
    """The options of a publication."""
    volatile = command.get("volatile", False)
    return {"volatile": volatile, "event": command.get("name"), "tags": command.get("tags")}


def print_kept(name, state):
    values = dict(state.items())
    print_event(name, "kept", values=values, is_complete=state.is_complete)


def condition(command):
    """Of `set`: an id, or null for a key that must have no value."""
    if "if_match" not in command:
        return {}
    if command["if_match"] is None:
        return {"if_absent": True}
    return {"if_match": command["if_match"]}


def page(command):
    """The parameters of a page of history."""
    return {name: command[name] for name in ("limit", "since_time", "order") if name in command}


def ending(command):
    """What ends a channel: it, and its last message if there is one."""
    named = (command["channel"],)
    return named if command.get("data") is None else (*named, command["data"])


def print_changed(command, id):
    print_event(command["client"], "published", data=command.get("data"), id=id)


def print_unchanged(command, error):
    fields = {"data": command.get("data"), "code": error.code}
    print_event(command["client"], "unpublished", **fields, outcome=error.outcome, key=error.key)


def print_published(command, published):
    fields = {"data": command["data"], "id": published.id, "duplicate": published.duplicate}
    print_event(command["client"], "published", **fields)


def print_unpublished(command, error):
    fields = {"data": command["data"], "code": error.code, "outcome": error.outcome}
    print_event(command["client"], "unpublished", **fields, key=error.key)


class Async:
    """Runs commands with `AsyncThrong`."""

    def __init__(self):
        self.clients = {}
        self.last = {}

    async def run(self):
        tasks = set()
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            if command["command"] == "open":
                self.clients[command["client"]] = made(AsyncThrong, command)
            else:
                tasks.add(asyncio.create_task(getattr(self, command["command"])(command)))
        for client in self.clients.values():
            await client.aclose()

    async def subscribe(self, command):
        name = command["client"]
        try:
            self.last[name] = subscribed(self.clients[name], command)
            async for message in self.last[name]:
                print_message(name, message)
        except ThrongError as error:
            print_event(name, "error", code=error.code, message=str(error))

    async def update(self, command):
        await self.last[command["client"]].update(command["info"])

    async def publish(self, command):
        client = self.clients[command["client"]]
        try:
            published = await client.publish(
                command["channel"], command["data"], **options(command)
            )
            print_published(command, published)
        except ThrongError as error:
            print_unpublished(command, error)

    async def keep(self, command):
        state = self.clients[command["client"]].state(command["channel"])
        await state.ready()
        print_kept(command["client"], state)
        async for _ in state:
            print_kept(command["client"], state)

    async def set(self, command):
        client = self.clients[command["client"]]
        named = (command["channel"], command["key"], command["data"])
        try:
            print_changed(command, await client.set(*named, **condition(command)))
        except ThrongError as error:
            print_unchanged(command, error)

    async def remove(self, command):
        client = self.clients[command["client"]]
        named = (command["channel"], command["key"])
        try:
            print_changed(command, await client.remove(*named, **condition(command)))
        except ThrongError as error:
            print_unchanged(command, error)

    async def end(self, command):
        client = self.clients[command["client"]]
        try:
            print_changed(command, (await client.end(*ending(command))).id)
        except ThrongError as error:
            print_unchanged(command, error)

    async def reopen(self, command):
        client = self.clients[command["client"]]
        try:
            print_changed(command, await client.open(command["channel"]))
        except ThrongError as error:
            print_unchanged(command, error)

    async def read(self, command):
        found = await self.clients[command["client"]].read(
            command.get("id"), channel=command.get("channel")
        )
        print_event(command["client"], "read", read=found.read, unread=found.unread)

    async def history(self, command):
        client = self.clients[command["client"]]
        found = await client.history(command["channel"], **page(command))
        print_event(command["client"], "history", data=[it.data for it in found.messages])

    async def close(self, command):
        if client := self.clients.pop(command["client"], None):
            await client.aclose()


class Blocking:
    """Runs commands with `Throng`."""

    def __init__(self):
        self.clients = {}
        self.last = {}

    def run(self):
        for line in sys.stdin:
            command = json.loads(line)
            if command["command"] == "open":
                self.clients[command["client"]] = made(Throng, command)
            else:
                work = getattr(self, command["command"])
                threading.Thread(target=work, args=(command,), daemon=True).start()

    def subscribe(self, command):
        name = command["client"]
        try:
            self.last[name] = subscribed(self.clients[name], command)
            for message in self.last[name]:
                print_message(name, message)
        except ThrongError as error:
            print_event(name, "error", code=error.code, message=str(error))

    def update(self, command):
        self.last[command["client"]].update(command["info"])

    def publish(self, command):
        client = self.clients[command["client"]]
        try:
            published = client.publish(command["channel"], command["data"], **options(command))
            print_published(command, published)
        except ThrongError as error:
            print_unpublished(command, error)

    def keep(self, command):
        state = self.clients[command["client"]].state(command["channel"])
        state.ready()
        print_kept(command["client"], state)
        for _ in state:
            print_kept(command["client"], state)

    def set(self, command):
        client = self.clients[command["client"]]
        named = (command["channel"], command["key"], command["data"])
        try:
            print_changed(command, client.set(*named, **condition(command)))
        except ThrongError as error:
            print_unchanged(command, error)

    def remove(self, command):
        client = self.clients[command["client"]]
        named = (command["channel"], command["key"])
        try:
            print_changed(command, client.remove(*named, **condition(command)))
        except ThrongError as error:
            print_unchanged(command, error)

    def end(self, command):
        client = self.clients[command["client"]]
        try:
            print_changed(command, client.end(*ending(command)).id)
        except ThrongError as error:
            print_unchanged(command, error)

    def reopen(self, command):
        client = self.clients[command["client"]]
        try:
            print_changed(command, client.open(command["channel"]))
        except ThrongError as error:
            print_unchanged(command, error)

    def read(self, command):
        found = self.clients[command["client"]].read(
            command.get("id"), channel=command.get("channel")
        )
        print_event(command["client"], "read", read=found.read, unread=found.unread)

    def history(self, command):
        found = self.clients[command["client"]].history(command["channel"], **page(command))
        print_event(command["client"], "history", data=[it.data for it in found.messages])

    def close(self, command):
        if client := self.clients.pop(command["client"], None):
            client.close()


if sys.argv[1] == "async":
    asyncio.run(Async().run())
else:
    Blocking().run()
