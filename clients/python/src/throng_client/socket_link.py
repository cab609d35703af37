"""One WebSocket with the protocol `throng.v1`. Open once the server has sent `welcome`."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from .cursor import Cursor, Event
from .errors import Loss, ThrongError, is_stale_token, loss_of_close
from .link import Deadline, Host, Link
from .messages import User, id_of, is_up_to, json_of, place_of
from .options import backoff, bounded
from .pulse import Pulse
from .requests import Answer, error_of, is_temporary, retry_after

# The largest frame, for a server whose `max-message-bytes` is raised.
FRAME_BYTES_MAX = 64 << 20
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
        self._commands: dict[int, tuple[Cursor, bool]] = {}
        """Pending `subscribe` commands by `ref`, and whether each names a position."""
        self._live: dict[Cursor, str | None] = {}
        """Confirmed by `subscribed`, each with the end of its backlog, if any. Messages before it
        are of an earlier subscription."""
        self._auth: tuple[int, str] | None = None
        self._ref = 0
        self._refresh: asyncio.Task[None] | None = None
        self._refreshes = 0

    async def open(self) -> list[Event]:
        options = self.host.options
        self._token = self.host.exchange.tokens.current
        try:
            async with asyncio.timeout(options.open_timeout):
                self._socket = await self._connect()
                welcome = self._parsed(await self._read())
        except TimeoutError:
            raise Loss("the WebSocket did not open in time", is_unusable=True) from None
        if welcome.get("type") != "welcome":
            raise Loss("the peer is not a Throng server", is_unusable=True)
        self.is_open = True
        self.connection = welcome["connection"]
        self._pulse.heartbeat = welcome.get("heartbeat") or self._pulse.heartbeat
        self._pulse.heard(self._now())
        for cursor in self.host.cursors.all:
            if not cursor.is_silent:
                await self._subscribe(cursor)
        return []

    async def _connect(self) -> ClientConnection:
        options, tokens = self.host.options, self.host.exchange.tokens
        inboxes = [
            each.target.name for each in self.host.cursors.all if isinstance(each.target, User)
        ]
        query = f"?{urlencode({'user': inboxes[0]})}" if inboxes else ""
        url = "ws" + self.host.url.removeprefix("http") + f"/subscribe{query}"
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            return await connect(
                url,
                subprotocols=[Subprotocol("throng.v1")],
                additional_headers=headers,
                ssl=options.ssl_context if url.startswith("wss:") else None,
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
                tokens.refuse(self._token)
            self._refuse(answer)
            raise AssertionError from error
        except (OSError, WebSocketException, EOFError) as error:
            raise Loss(f"the WebSocket did not open: {error!r}") from error

    def _refuse(self, answer: Answer) -> None:
        error = error_of(answer)
        is_answer = answer.status == 401 and self.host.exchange.tokens.can_renew
        if answer.status == 401 and not is_answer:
            raise error
        hint = retry_after(answer, self.host.options)
        is_unusable = not is_answer and not is_temporary(answer.status)
        raise Loss(error.message, hint=hint, is_unusable=is_unusable, is_answer=is_answer)

    async def _subscribe(self, cursor: Cursor) -> None:
        place = place_of(cursor.target)
        if isinstance(cursor.target, User):
            # The URL's `user` follows the inbox from now on, but this cursor may begin earlier.
            await self._send({"type": "unsubscribe", **place})
        frame: dict[str, Any] = {"type": "subscribe", **place}
        if cursor.position:
            frame["since"] = cursor.position
        elif self.host.cursors.history > 0:
            frame["history"] = self.host.cursors.history
        if self.host.cursors.has_presence and cursor.may_have_presence:
            frame["presence"] = True
        self._ref += 1
        self._commands[self._ref] = (cursor, cursor.position is not None)
        self._asked()
        await self._send({**frame, "ref": self._ref})

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
            return await self._socket.recv()
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed

    def _parsed(self, text: str | bytes) -> dict[str, Any]:
        try:
            frame = json.loads(text)
        except ValueError:
            frame = None
        if not isinstance(frame, dict):
            raise Loss("the peer is not a Throng server", is_unusable=True)
        return frame

    def _closed(self, closed: ConnectionClosed) -> Loss:
        code = closed.rcvd.code if closed.rcvd else 1006
        reason = closed.rcvd.reason if closed.rcvd else ""
        message = f"the WebSocket closed with {code}" + (f": {reason}" if reason else "")
        found = re.search(r"reconnect in (\d+) ms", reason)
        hint = bounded(int(found.group(1)) / 1_000) if found else None
        tokens = self.host.exchange.tokens
        if is_stale_token(code):
            tokens.refuse(self._token)
        has_token = self._token is not None
        return loss_of_close(
            code,
            message,
            hint=hint,
            is_open=self.is_open,
            can_renew=tokens.can_renew,
            has_token=has_token,
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
        return self._take(self._parsed(text))

    def _is_answer(self, frame: dict[str, Any], cursor: Cursor | None) -> bool:
        """Whether the server has heard this client. An answer may be behind a backlog, which counts
        for that."""
        type, ref = frame.get("type"), frame.get("ref")
        if type == "pong":
            self._pings = max(0, self._pings - 1)
            return True
        if type == "message" and self._pulse.is_waiting:
            end = None if cursor is None else self._live.get(cursor)
            return end is not None and is_up_to(id_of(frame), end)
        return ref in self._commands or (self._auth is not None and ref == self._auth[0])

    # Frames.

    def _take(self, frame: dict[str, Any]) -> list[Event]:
        cursor = self.host.cursors.of(frame)
        is_answer = self._is_answer(frame, cursor)
        events = self._taken(frame, cursor)
        if is_answer:
            is_complete = not self._commands and self._auth is None and self._pings == 0
            self._pulse.answered(self._now(), is_complete=is_complete)
        return events

    def _taken(self, frame: dict[str, Any], cursor: Cursor | None) -> list[Event]:
        type, ref = frame.get("type"), frame.get("ref")
        if type in ("message", "gap"):
            if cursor is None or cursor not in self._live:
                return []
            return cursor.gap(frame) if type == "gap" else cursor.take(frame)
        if type == "presence":
            return cursor.see(frame) if cursor in self._live and cursor is not None else []
        if type == "subscribed" and ref in self._commands:
            return self._subscribed(frame, *self._commands.pop(ref))
        if type == "expiring":
            self._renew()
        elif type == "authenticated" and self._auth is not None:
            self._token, self._auth, self._refreshes = self._auth[1], None, 0
        elif type == "unsubscribed" and "code" in frame:
            raise ThrongError(frame["code"], frame["message"])
        elif type == "error":
            self._refused(frame)
        return []

    def _subscribed(self, frame: dict[str, Any], cursor: Cursor, is_resumed: bool) -> list[Event]:
        self._live[cursor] = frame.get("head")
        recovered = frame.get("recovered") is not False if is_resumed else None
        return cursor.follow(id_of(frame), head=frame.get("head"), recovered=recovered)

    def _refused(self, frame: dict[str, Any]) -> None:
        code, message, ref = frame["code"], frame["message"], frame.get("ref")
        if self._auth is not None and ref == self._auth[0]:
            self.host.exchange.tokens.refuse(self._auth[1])
            self._auth = None
            if code in _FINAL_FOR_TOKEN:
                raise ThrongError(code, message)
            self._renew()
        elif ref in self._commands:
            raise Loss(message) if code in _PASSING else ThrongError(code, message)
        elif ref is None and code == "forbidden":
            # A newer token does not grant presence events any more.
            raise ThrongError(code, message)

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
        if self._refresh is not None:
            self._refresh.cancel()
        if self._socket is None:
            return
        if self._pulse.is_waiting:
            # The server is silent: there is no point in waiting for its close frame.
            self._socket.transport.abort()
        await self._socket.close()
