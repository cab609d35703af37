"""One WebSocket with the protocol `throng.v1`. Open once the server has sent `welcome`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from .cursor import Cursor, Event, Handled
from .decoding import read_frame
from .errors import Loss, NotThrong, ThrongError, is_stale_token, loss_of_close
from .link import Deadline, Host, Link, loss_of_refusal
from .messages import (
    MALFORMED,
    Target,
    User,
    envelope_of,
    id_of,
    is_up_to,
    json_of,
    place_of,
    target_of,
)
from .options import backoff, bounded, parameters_of
from .pulse import Pulse
from .requests import Answer, error_of, is_own

PROTOCOL = Subprotocol("throng.v1")
# The largest frame, for a server whose `max-message-bytes` is raised.
FRAME_BYTES_MAX = 64 << 20
# The size of messages that a server takes unless it names one.
MESSAGE_BYTES_MAX = 65_536
# The bytes of a list of channels, in sizes of a message. A frame of a client may have six.
LIST_SIZES_MAX = 4
# How long a close may wait for the server's answer.
CLOSE_TIMEOUT = 1.0
# Refusals of a command that pass.
_PASSING = {"busy", "too_many_requests"}
# Refusals of a newer token after which the next one would be refused, too.
_FINAL_FOR_TOKEN = {"forbidden", "token_revoked"}


class SocketLink(Link):
    """A WebSocket, which follows each channel with a command."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._socket: ClientConnection | None = None
        self._deadline = Deadline()
        self._pulse = Pulse(host.options)
        self._pings = 0
        """Those without an answer."""
        self._doubted_until: float | None = None
        """A ping is to be sent, which must be answered by then."""
        self._token: str | None = None
        self._commands: dict[int, dict[Target, tuple[Cursor, bool]]] = {}
        """Pending `subscribe` commands by `ref`: the channels, and whether each has a position."""
        self._updates: dict[int, tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]] = {}
        """Pending `update` commands by `ref`: what each shows, and what was shown before."""
        self._numbered: dict[int, tuple[Cursor | None, str]] = {}
        """Channels by their numbers in compact messages, each with the epoch of its ids."""
        self._live: dict[Cursor, str | None] = {}
        """Confirmed by `subscribed`, each with the end of its backlog, if any. Messages before it
        are of an earlier subscription."""
        self._auth: tuple[int, str] | None = None
        self._ref = 0
        self._handled = 0
        """Frames that the reader is done with, of which the server is not told yet."""
        self._telling: asyncio.Task[None] | None = None
        self._refresh: asyncio.Task[None] | None = None
        self._refreshes = 0

    async def open(self) -> list[Event]:
        self._token = self.host.exchange.tokens.current
        try:
            async with asyncio.timeout(self.host.open_timeout):
                self._socket = await self._connect()
                welcome = self._parsed(await self._read())
        except TimeoutError:
            raise Loss("the WebSocket did not open in time", is_unusable=True) from None
        try:
            events = self._welcome(welcome)
        except MALFORMED as error:
            raise NotThrong from error
        self._pulse.heard(self._now())
        await self._subscribe([each for each in self.host.cursors.all if not each.is_silent])
        # Nobody waits for frames yet.
        self._pulse.left(self._now())
        return events

    def _welcome(self, frame: dict[str, Any] | list[Any]) -> list[Event]:
        if isinstance(frame, list) or frame.get("type") != "welcome":
            raise NotThrong
        heartbeat, limit = frame.get("heartbeat"), frame.get("max_message_bytes")
        if heartbeat is not None:
            self._pulse.heartbeat = bounded(float(heartbeat)) or self._pulse.heartbeat
        if type(limit) is int:
            self.host.exchange.limits.message_bytes_max = limit
        self.connection = frame["connection"]
        self.is_open = True
        return self.host.cursors.unread(frame)

    async def _connect(self) -> ClientConnection:
        exchange = self.host.exchange
        inboxes = [
            each.target.name for each in self.host.cursors.all if isinstance(each.target, User)
        ]
        parameters = parameters_of(self.host.options)
        if self.host.is_compact:
            parameters["envelope"] = "compact"
            if not self.host.options.no_time:
                parameters["time"] = "true"
        if inboxes:
            parameters["user"] = inboxes[0]
        query = f"?{urlencode(parameters)}" if parameters else ""
        url = "ws" + self.host.url.removeprefix("http") + f"/subscribe{query}"
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            return await connect(
                url,
                subprotocols=[PROTOCOL],
                additional_headers=headers,
                ssl=exchange.network.ssl if url.startswith("wss:") else None,
                proxy=exchange.network.proxy,
                compression="deflate" if self.host.is_compressed else None,
                open_timeout=None,
                close_timeout=CLOSE_TIMEOUT,
                ping_interval=None,
                max_size=FRAME_BYTES_MAX,
            )
        except InvalidStatus as error:
            response = error.response
            named = {name.lower(): value for name, value in response.headers.raw_items()}
            answer = Answer(response.status_code, named, bytes(response.body or b""))
            if answer.status == 401:
                exchange.tokens.refuse(self._token)
            refusal = error_of(answer)
            if self.host.is_compact and is_own(refusal) and "`envelope`" in refusal.message:
                # An older server, which has no compact messages.
                self.host.is_compact = False
                raise Loss(refusal.message, hint=0.0) from error
            raise loss_of_refusal(answer, self.host) from error
        except (OSError, WebSocketException, EOFError) as error:
            raise Loss(f"the WebSocket did not open: {error!r}") from error

    async def _subscribe(self, cursors: list[Cursor]) -> None:
        """Sends one command for all, or some if they are many. A list is not for presence events,
        and not for an older server."""
        for cursor in cursors:
            if isinstance(cursor.target, User):
                # The URL's `user` follows the inbox from now on, but this cursor may begin earlier.
                await self._send({"type": "unsubscribe", **place_of(cursor.target)})
        message_bytes = self.host.exchange.limits.message_bytes_max or MESSAGE_BYTES_MAX
        info = self.host.info
        is_plain = not self.host.cursors.has_presence and info is None
        takes_list = self.host.is_compact and is_plain
        room = LIST_SIZES_MAX * message_bytes if takes_list else 0
        part: list[Cursor] = []
        entries: list[dict[str, Any]] = []
        size = 0
        for cursor in cursors:
            entry = self._entry_of(cursor)
            size += len(json_of(entry).encode()) + 1
            if part and size > room:
                await self._ask_for(part, entries)
                part, entries, size = [], [], 0
            part.append(cursor)
            entries.append(entry)
        if part:
            await self._ask_for(part, entries)
        if self.host.info is not info:
            # An update has come between two commands.
            await self.show(info)

    def _entry_of(self, cursor: Cursor) -> dict[str, Any]:
        """The fields of a `subscribe` command for one channel."""
        entry: dict[str, Any] = place_of(cursor.target)
        if cursor.wants_state:
            entry["state"] = True
        if cursor.position:
            entry["since"] = cursor.position
        elif self.host.cursors.history > 0:
            entry["history"] = self.host.cursors.history
        if self.host.cursors.has_presence and cursor.may_have_presence:
            entry["presence"] = True
        if self.host.info is not None and cursor.may_have_presence:
            entry["info"] = self.host.info
        return entry

    async def show(self, shown: Mapping[str, Any] | None) -> None:
        """Tells the server what the client shows from now on, in place of `shown`, in all channels
        that it has asked for."""
        commands = self._commands.values()
        asked = [cursor for command in commands for cursor, _ in command.values()]
        try:
            for cursor in dict.fromkeys([*self._live, *asked]):
                if not cursor.may_have_presence:
                    continue
                self._ref += 1
                info = self.host.info
                self._updates[self._ref] = (info, shown)
                named = {**place_of(cursor.target), "ref": self._ref}
                await self._send({"type": "update", **named, "info": info})
        except Loss:
            # The next read finds out, and the next connection begins with it.
            return

    async def _ask_for(self, cursors: list[Cursor], entries: list[dict[str, Any]]) -> None:
        named: dict[str, Any] = entries[0] if len(entries) == 1 else {"channels": entries}
        if self.host.pace_ms is not None:
            named["pace"] = self.host.pace_ms
        self._ref += 1
        asked = {each.target: (each, each.position is not None) for each in cursors}
        self._commands[self._ref] = asked
        self._asked()
        await self._send({"type": "subscribe", **named, "ref": self._ref})

    def acknowledge(self, frames: int) -> None:
        """Tells the server that the reader is done with so many more of the frames that asked.

        A reader that is cancelled meanwhile must not take back what is half told.
        """
        self._handled += frames
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._handled > 0:
            frames, self._handled = self._handled, 0
            try:
                await self._send({"type": "ack", "frames": frames})
            except Loss:
                # The next read finds out.
                return

    async def _send(self, frame: dict[str, Any]) -> None:
        assert self._socket is not None
        try:
            # A peer that takes nothing would hold up a frame for which no buffer has room.
            async with asyncio.timeout(self.host.options.request_timeout):
                await self._socket.send(json_of(frame))
        except TimeoutError:
            raise Loss("the server fell silent") from None
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed

    async def _read(self) -> str | bytes:
        assert self._socket is not None
        try:
            # Undecoded, because text that is not UTF-8 would end the connection.
            return await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed

    def _parsed(self, text: str | bytes) -> dict[str, Any] | list[Any]:
        try:
            return read_frame(text)
        except ValueError as error:
            raise NotThrong from error

    def _closed(self, closed: ConnectionClosed) -> Loss:
        code = closed.rcvd.code if closed.rcvd else 1006
        reason = closed.rcvd.reason if closed.rcvd else ""
        found = re.search(r"reconnect in (\d{1,9}) ms", reason)
        hint = bounded(int(found.group(1)) / 1_000) if found else None
        tokens = self.host.exchange.tokens
        is_ours = self.is_open or (
            self._socket is not None and self._socket.subprotocol == PROTOCOL
        )
        if self.host.is_compressed and (code == 1007 or reason.startswith("bad_compression")):
            # Something on the way damages compressed messages: one try without.
            self.host.is_compressed = False
            return Loss(f"the WebSocket closed with {code}: {reason}", hint=0.0)
        if is_stale_token(code) and is_ours:
            tokens.refuse(self._token)
        return loss_of_close(
            code,
            reason,
            is_ours=is_ours,
            hint=hint,
            can_renew=tokens.can_renew,
            has_token=self._token is not None,
        )

    # Signs of life.

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _asked(self) -> None:
        self._pulse.asked(self._now())
        if self._pulse.due is not None:
            self._deadline.hasten(self._pulse.due)

    def suspect(self, since: float, until: float) -> None:
        if self.is_open:
            self._doubted_until = until
            # Wakes `receive`, which sends the ping.
            self._deadline.set(self._now())

    async def _ping(self) -> None:
        """Asks for a sign of life."""
        until, self._doubted_until = self._doubted_until, None
        self._pings += 1
        if until is None:
            self._pulse.pinged(self._now())
        else:
            self._pulse.doubted(self._now(), until)
        await self._send({"type": "ping"})

    async def receive(self) -> list[Event]:
        self._pulse.came_back(self._now())
        try:
            if self._doubted_until is not None:
                await self._ping()
            self._deadline.set(self._pulse.due)
            async with self._deadline.over():
                text = await self._read()
        except TimeoutError:
            due = self._pulse.due
            if self._doubted_until is None and due is not None and self._pulse.is_waiting:
                if due <= self._now():
                    raise Loss("the server fell silent") from None
            else:
                await self._ping()
            return []
        finally:
            self._pulse.left(self._now())
        self._pulse.heard(self._now())
        frame = self._parsed(text)
        try:
            return self._take_many(frame) if isinstance(frame, list) else self._take(frame)
        except MALFORMED as error:
            raise NotThrong from error

    def _is_answer(self, frame: dict[str, Any], cursor: Cursor | None) -> bool:
        """Whether the server has heard this client. An answer may be behind a backlog, which counts
        for that."""
        type, ref = frame.get("type"), frame.get("ref")
        if type == "pong":
            self._pings = max(0, self._pings - 1)
            return True
        if type == "message":
            return self._is_of_backlog(frame, cursor)
        if not isinstance(ref, int):
            return False
        return ref in self._commands or (self._auth is not None and ref == self._auth[0])

    def _is_of_backlog(self, envelope: dict[str, Any], cursor: Cursor | None) -> bool:
        """Whether a message is of a backlog, behind which an answer may be that is waited for."""
        if not self._pulse.is_waiting or "id" not in envelope or cursor is None:
            return False
        end = self._live.get(cursor)
        return end is not None and is_up_to(id_of(envelope), end)

    # Frames.

    def _take_many(self, frame: list[Any]) -> list[Event]:
        """Takes the messages of a frame, whose first element is 1 if the server asks when the
        reader is done with them."""
        asks, *items = frame
        events = []
        is_answer = False
        for item in items:
            number = item[0]
            if type(number) is not int:
                raise TypeError("the number of a channel is none")
            cursor, epoch = self._numbered.get(number, (None, ""))
            if cursor is None or cursor not in self._live:
                # A channel that the server follows for the user.
                continue
            if len(item) == 2:
                events += cursor.skip(-item[1])
                continue
            envelope = envelope_of(cursor.target, epoch, item)
            is_answer = is_answer or self._is_of_backlog(envelope, cursor)
            events += cursor.take(envelope)
        if is_answer:
            self._heard()
        if asks == 1:
            events.append(Handled(self))
        return events

    def _heard(self) -> None:
        """The server has heard this client."""
        is_complete = not self._commands and self._auth is None and self._pings == 0
        self._pulse.answered(self._now(), is_complete=is_complete)

    def _take(self, frame: dict[str, Any]) -> list[Event]:
        cursor = self.host.cursors.of(frame)
        is_answer = self._is_answer(frame, cursor)
        events = self._taken(frame, cursor)
        if is_answer:
            self._heard()
        return events

    def _taken(self, frame: dict[str, Any], cursor: Cursor | None) -> list[Event]:
        type, ref = frame.get("type"), frame.get("ref")
        if not isinstance(ref, int):
            ref = None
        if type in ("message", "erased", "gap", "conflated", "presence", "state", "ended"):
            if cursor is None or cursor not in self._live:
                return []
            if type in ("message", "erased"):
                return cursor.take(frame)
            if type == "presence":
                return cursor.see(frame)
            if type == "state":
                return cursor.end_state(id_of(frame))
            if type == "ended":
                del self._live[cursor]
                return self.host.cursors.end(cursor, id_of(frame))
            return cursor.gap(frame) if type == "gap" else cursor.skip(frame.get("count"))
        if type == "subscribed" and ref in self._commands:
            return self._answered(frame, self._commands.pop(ref))
        if type == "unread":
            return self.host.cursors.unread(frame)
        if type == "updated" and ref is not None:
            self._updates.pop(ref, None)
        elif type == "numbers":
            self._learn_numbers(frame)
        elif type == "expiring":
            self._renew()
        elif type == "authenticated" and self._auth is not None:
            self._token, self._auth, self._refreshes = self._auth[1], None, 0
        elif type == "unsubscribed" and "code" in frame:
            raise ThrongError(str(frame["code"]), str(frame["message"]))
        elif type == "error":
            self._refused(frame)
        return []

    def _answered(
        self, frame: dict[str, Any], asked: dict[Target, tuple[Cursor, bool]]
    ) -> list[Event]:
        """Takes the answer to a command for one channel, or for a list."""
        if "channels" not in frame:
            ((cursor, is_resumed),) = asked.values()
            return self._subscribed(frame, cursor, is_resumed=is_resumed)
        events = []
        for answer in frame["channels"]:
            target = target_of(answer)
            cursor, is_resumed = asked.pop(target)
            if "error" in answer:
                error = answer["error"]
                # One of many ends the subscription: its user wants to know which.
                self._refuse({**error, "message": f"{target}: {error['message']}"})
            events += self._subscribed(answer, cursor, is_resumed=is_resumed)
        return events

    def _learn_numbers(self, frame: dict[str, Any]) -> None:
        """Takes the numbers of channels of which nothing else tells them, or that have others."""
        targets: list[tuple[Target, int, str]] = [
            *((name, number, epoch) for name, number, epoch in frame.get("channels", [])),
            *((User(name), number, epoch) for name, number, epoch in frame.get("users", [])),
        ]
        for target, number, epoch in targets:
            self._numbered[number] = (self.host.cursors.of(place_of(target)), epoch)

    def _subscribed(
        self, frame: dict[str, Any], cursor: Cursor, *, is_resumed: bool
    ) -> list[Event]:
        self._live[cursor] = frame.get("head")
        if "number" in frame:
            self._numbered[frame["number"]] = (cursor, id_of(frame).rpartition("-")[0])
        recovered = frame.get("recovered") is not False if is_resumed else None
        return cursor.follow(id_of(frame), head=frame.get("head"), recovered=recovered)

    def _refused(self, frame: dict[str, Any]) -> None:
        code, message, ref = str(frame["code"]), str(frame["message"]), frame.get("ref")
        if self._auth is not None and ref == self._auth[0]:
            self.host.exchange.tokens.refuse(self._auth[1])
            self._auth = None
            if code in _FINAL_FOR_TOKEN:
                raise ThrongError(code, message)
            self._renew()
        elif ref in self._commands:
            self._refuse(frame)
        elif ref in self._updates:
            info, shown = self._updates.pop(ref)
            if self.host.info is info:
                # The next `subscribe` would be refused for it, too.
                self.host.info = shown
        elif ref is None and code == "forbidden":
            # A newer token does not grant presence events any more.
            raise ThrongError(code, message)

    def _refuse(self, error: dict[str, Any]) -> NoReturn:
        """The server has refused a channel."""
        code, message = str(error["code"]), str(error["message"])
        raise Loss(message) if code in _PASSING else ThrongError(code, message)

    # Tokens. The connection is closed when the present one expires, and not before.

    def _renew(self) -> None:
        tokens = self.host.exchange.tokens
        if (
            tokens.can_renew
            and self._auth is None
            and (self._refresh is None or self._refresh.done())
        ):
            self._refresh = asyncio.create_task(self._send_newer())

    async def _send_newer(self) -> None:
        exchange = self.host.exchange
        while True:
            if self._refreshes > 0:
                await asyncio.sleep(backoff(self._refreshes, self.host.options.random))
            self._refreshes += 1
            try:
                token = await exchange.load_token(self._token)
            except ThrongError:
                continue
            self._ref += 1
            self._auth = (self._ref, token)
            self._asked()
            try:
                await self._send({"type": "auth", "token": token, "ref": self._ref})
            except Loss:
                pass
            return

    async def close(self) -> None:
        for task in (self._refresh, self._telling):
            if task is not None:
                task.cancel()
        if self._socket is None:
            return
        if self._pulse.is_waiting:
            # The server is silent: there is no point in waiting for its close frame.
            self._socket.transport.abort()
        await self._socket.close()
