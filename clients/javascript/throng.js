/**
 * The client of Throng: follows channels and a user's inbox over one connection, publishes,
 * reconnects and resumes. One file without dependencies, for browsers and for Node.
 *
 * Layout, from the bottom up: `Cursor` (where one subscription stands), the links (`SocketLink`,
 * `StreamLink`, `PollLink`: one attempt at one transport, from opening to loss), `Throng` (which
 * link, when to try again, what waits to be published).
 *
 * Invariants:
 * - Per channel a listener gets each message once and in order. Where messages are missing, "gap"
 *   is told before the next message.
 * - A cursor's position is an id that the server gave out, and nothing after it has been delivered;
 *   so a connection may be dropped at any moment and resumed from the positions.
 * - A publish keeps one idempotency key over all its attempts, so that a retry cannot double it.
 * - A link reports its loss once and is never reused.
 */

/** Backoff: the first delay is below the base, each further bound doubles up to the cap. */
const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;
/** A connection that held this long was a good one: the backoff starts over. */
const STABLE_MS = 10_000;
/** Refused this often in a row, a transport is given up for the next one. */
const FAILURES_MAX = 2;
/** After the last unsubscribe the connection stays this long, for a change of rooms. */
const LINGER_MS = 1_000;
/** Changes of the channels within this time re-open a stream or poll only once. */
const REOPEN_DELAY_MS = 20;
/** A probed socket (page visible again, network back) must answer within this time. */
const PROBE_MS = 5_000;
/** Ids of own messages that are not to be heard again; the oldest is forgotten beyond this. */
const SILENT_IDS_MAX = 1_000;
/** Close codes after which the server would only refuse again. */
const FINAL_CLOSE_CODES = new Set([1002, 1003, 1007, 1008]);
const CLOSE_TOO_LARGE = 1009;
/** Statuses that say "this request will never do", as opposed to "not now" or "not this way". */
const FINAL_STATUSES = new Set([400, 401, 403]);
/** Those of them that concern one channel when only one was asked for. */
const CHANNEL_STATUSES = new Set([400, 403]);

const emit = Symbol("emit");

/** A request that failed; `code` is the server's, or `closed`, `timeout`, `queue_full`. */
export class ThrongError extends Error {
  constructor(code, message, status = undefined) {
    super(message);
    this.name = "ThrongError";
    this.code = code;
    this.status = status;
  }
}

/** Why a link ended, and what follows from it. Not an error of the user's. */
class Loss extends Error {
  constructor(message, { hintMs, isUnusable = false, error } = {}) {
    super(message);
    /** The server's wish when to come back. */
    this.hintMs = hintMs;
    /** The transport does not work here; waiting will not help. */
    this.isUnusable = isUnusable;
    /** Set when no transport will do: told to the user, and the client closes. */
    this.error = error;
  }
}

/** Exponential backoff with full jitter: anything from 0 to the bound, so that crowds spread. */
export function backoffMs(attempt, random = Math.random) {
  return random() * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** Math.min(attempt, 16));
}

class Emitter {
  #listeners = new Map();

  on(name, listener) {
    if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
    this.#listeners.get(name).add(listener);
    return () => this.off(name, listener);
  }

  off(name, listener) {
    this.#listeners.get(name)?.delete(listener);
  }

  [emit](name, value) {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) {
      try {
        listener(value);
      } catch (error) {
        // The listener's fault must show, but must not stop the delivery of what follows.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}

/**
 * Reads an event stream (SSE) from chunks that may be split anywhere. `push` returns the events
 * that the chunk completed.
 */
export class EventStreamParser {
  #decoder = new TextDecoder();
  #line = "";
  #endedWithReturn = false;
  #event = "";
  #data = [];
  /** The last `retry:` of the stream, in milliseconds. */
  retryMs = undefined;

  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    // A line feed that follows a carriage return of the chunk before belongs to the same line end.
    if (this.#endedWithReturn && text[0] === "\n") text = text.slice(1);
    if (text !== "") this.#endedWithReturn = text.endsWith("\r");
    else this.#endedWithReturn = false;
    const lines = (this.#line + text).split(/\r\n|\r|\n/);
    this.#line = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line !== "") this.#field(line);
      else if (this.#data.length > 0 || this.#event !== "") this.#finish(events);
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
  }

  #finish(events) {
    if (this.#data.length > 0) {
      events.push({ event: this.#event || "message", data: this.#data.join("\n") });
    }
    this.#event = "";
    this.#data = [];
  }
}

/** A channel or a user, from what the user of the client wrote. */
function toTarget(target) {
  if (typeof target === "string") return { channel: target };
  if (typeof target?.channel === "string") return { channel: target.channel };
  if (typeof target?.user === "string") return { user: target.user };
  throw new TypeError("name a channel, or give { channel } or { user }");
}

function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

function pathOf({ channel, user }) {
  return user === undefined
    ? `/channels/${encodeURIComponent(channel)}`
    : `/users/${encodeURIComponent(user)}`;
}

/** True when `id` is `last` or before it. Ids of different epochs have no order. */
function isDelivered(id, last) {
  if (last === undefined) return false;
  const [epoch, offset] = splitId(id);
  const [lastEpoch, lastOffset] = splitId(last);
  return epoch === lastEpoch && offset <= lastOffset;
}

function splitId(id) {
  const dash = id.lastIndexOf("-");
  return [id.slice(0, dash), Number(id.slice(dash + 1))];
}

function toBase64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function isBinary(data) {
  return data instanceof ArrayBuffer || ArrayBuffer.isView(data);
}

function toBytes(data) {
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** The message that listeners get, from the envelope on the wire. */
function toMessage({ channel, user, id, time, data, encoding, content_type: contentType }) {
  let fallback = typeof data === "string" ? "text/plain; charset=utf-8" : "application/json";
  if (encoding === "base64") fallback = "application/octet-stream";
  return {
    ...(user === undefined ? { channel } : { user }),
    id,
    time,
    data: encoding === "base64" ? fromBase64(data) : data,
    contentType: contentType ?? fallback,
  };
}

/** Random in every context: `crypto.randomUUID` is missing on pages without TLS. */
function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The server's wish, spread over a second, because all are told the same. */
function retryAfterMs(response, random) {
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  return Number.isFinite(seconds) ? (seconds + random()) * 1_000 : undefined;
}

/** Whether the same request may do later. */
function isTemporary({ status }) {
  if (status === 501 || status === 505) return false;
  return status === 408 || status === 429 || status >= 500;
}

/** Ends early, and without an error, on abort. */
function delay(delayMs, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, delayMs);
    signal.addEventListener("abort", end);
  });
}

/** Waits for the abort, and throws its reason. */
function aborted(signal) {
  return new Promise((_, reject) => {
    const end = () => reject(signal.reason);
    if (signal.aborted) end();
    else signal.addEventListener("abort", end, { once: true });
  });
}

async function toError(response) {
  const body = await response.json().catch(() => ({}));
  const message = body.message ?? `the server answered ${response.status}`;
  return new ThrongError(body.error ?? `http_${response.status}`, message, response.status);
}

/** What `subscribe` returns: tells "message", "subscribed", "recovered", "gap" and "error". */
export class Subscription extends Emitter {
  #leave;

  constructor(target, leave) {
    super();
    Object.assign(this, target);
    this.#leave = leave;
  }

  unsubscribe() {
    this.#leave();
  }
}

/** Where one subscription stands. The links move it; the subscription hears of it. */
class Cursor {
  /** The id to resume after; unset until the server has named one. */
  position = undefined;
  /** The last id given to the listeners; unlike `position` never set from a mere announcement. */
  delivered = undefined;
  /** The connection was lost since: the next answer tells whether messages were. */
  isInterrupted = false;
  isClosed = false;

  constructor(target, history, subscription) {
    this.target = target;
    this.key = keyOf(target);
    this.history = history;
    this.subscription = subscription;
  }

  start(id) {
    this.position = id;
    this.subscription[emit]("subscribed", { ...this.target, id });
  }

  resume(recovered, id) {
    if (!recovered) this.gap({ id });
    else if (this.isInterrupted) this.subscription[emit]("recovered", { ...this.target });
    this.isInterrupted = false;
  }

  gap({ id, missed }) {
    if (id) this.position = id;
    this.subscription[emit]("gap", { ...this.target, id, missed });
  }

  take(envelope, isSilent) {
    if (this.isClosed || isDelivered(envelope.id, this.delivered)) return;
    this.position = this.delivered = envelope.id;
    if (!isSilent) this.subscription[emit]("message", toMessage(envelope));
  }
}

/** One WebSocket that speaks `throng.v1`. Open once the server has said welcome. */
class SocketLink {
  isOpen = false;
  #host;
  #socket = null;
  #openTimer;
  #pulseTimer;
  #heardAt = 0;
  /** When an answer to our ping is overdue; unset while none is awaited. */
  #pongDueAt = undefined;
  #heartbeatMs;
  #ref = 0;
  /** What each `ref` under way asks for: a cursor or a publish. */
  #asked = new Map();
  /** Cursors whose `subscribed` came: before it, messages belong to an earlier subscription. */
  #live = new Set();

  constructor(host) {
    this.#host = host;
    this.#heartbeatMs = host.heartbeatMs;
  }

  open() {
    const { url, user, WebSocket, openTimeoutMs } = this.#host;
    const query = user === undefined ? "" : `?user=${encodeURIComponent(user)}`;
    const slow = new Loss("the WebSocket did not open in time", { isUnusable: true });
    this.#openTimer = setTimeout(() => this.#host.lost(this, slow), openTimeoutMs);
    try {
      this.#socket = new WebSocket(`${url.replace(/^http/, "ws")}/subscribe${query}`, "throng.v1");
    } catch (error) {
      // A page under TLS may not open a plain socket, for one.
      queueMicrotask(() => {
        this.#host.lost(this, new Loss(String(error), { isUnusable: true }));
      });
      return;
    }
    this.#socket.onmessage = ({ data }) => this.#receive(data);
    this.#socket.onclose = ({ code, reason }) => this.#closed(code, reason);
    // What went wrong is in the close event, which always follows.
    this.#socket.onerror = () => {};
  }

  close() {
    clearTimeout(this.#openTimer);
    clearInterval(this.#pulseTimer);
    if (!this.#socket) return;
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
  }

  subscribe(cursor) {
    if (!this.isOpen) return;
    // The URL's `user` follows that inbox from now on; ours may have to start earlier.
    if (cursor.target.user !== undefined) this.#send({ type: "unsubscribe", ...cursor.target });
    const from = cursor.position ? { since: cursor.position } : { history: cursor.history };
    this.#send({ type: "subscribe", ...cursor.target, ...from }, { cursor, from });
  }

  unsubscribe(cursor) {
    this.#live.delete(cursor);
    if (this.isOpen) this.#send({ type: "unsubscribe", ...cursor.target });
  }

  publish(publish) {
    const { target, data, key, echo, contentType } = publish;
    publish.link = this;
    publish.attempts += 1;
    const body = isBinary(data) ? { data: toBase64(toBytes(data)), encoding: "base64" } : { data };
    if (contentType !== undefined) body.content_type = contentType;
    this.#send({ type: "publish", ...target, ...body, key, echo }, { publish });
  }

  /** Asks for a sign of life now, and does not wait long for it. */
  probe() {
    if (!this.isOpen) return;
    this.#ping(PROBE_MS);
    setTimeout(() => this.#pulse(), PROBE_MS + 1);
  }

  #send(frame, asks) {
    if (asks) {
      frame.ref = ++this.#ref;
      this.#asked.set(frame.ref, asks);
    }
    // A closing socket drops what it is given; the close event that follows retries it.
    this.#socket.send(JSON.stringify(frame));
  }

  #ping(patienceMs) {
    this.#pongDueAt = Math.min(this.#pongDueAt ?? Infinity, Date.now() + patienceMs);
    this.#send({ type: "ping" });
  }

  /**
   * The server's pings are invisible to a page. So a socket that was silent for a heartbeat is
   * asked, and given up 1.5 heartbeats later. Counted from the ping and not from the last frame,
   * because the timers of a hidden page may run late.
   */
  #pulse() {
    if (!this.isOpen) return;
    const now = Date.now();
    if (this.#pongDueAt !== undefined && now >= this.#pongDueAt) {
      this.#host.lost(this, new Loss("the server fell silent"));
    } else if (this.#pongDueAt === undefined && now - this.#heardAt >= this.#heartbeatMs) {
      this.#ping(1.5 * this.#heartbeatMs);
    }
  }

  #receive(text) {
    this.#heardAt = Date.now();
    this.#pongDueAt = undefined;
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      this.#host.lost(this, new Loss("what answered is not Throng", { isUnusable: true }));
      return;
    }
    const asks = this.#asked.get(frame.ref);
    if (frame.ref !== undefined) this.#asked.delete(frame.ref);
    if (frame.type === "message" || frame.type === "gap") this.#advance(frame);
    else if (frame.type === "welcome") this.#welcome(frame);
    else if (frame.type === "subscribed" && asks?.cursor) this.#subscribed(frame, asks);
    else if (frame.type === "published" && asks?.publish) this.#host.published(asks.publish, frame);
    else if (frame.type === "error") this.#refused(frame, asks);
  }

  #welcome({ heartbeat }) {
    clearTimeout(this.#openTimer);
    if (heartbeat > 0) this.#heartbeatMs = heartbeat * 1_000;
    this.#pulseTimer = setInterval(() => this.#pulse(), this.#heartbeatMs / 4);
    this.isOpen = true;
    // Retries go first: their answers then name the ids not to be heard again (`echo: false`)
    // before the backlog brings them.
    for (const publish of this.#host.retries()) this.publish(publish);
    for (const cursor of this.#host.cursors.values()) this.subscribe(cursor);
    this.#host.opened(this);
  }

  #subscribed({ id, recovered }, { cursor, from }) {
    if (cursor.isClosed) return;
    this.#live.add(cursor);
    if (from.since) cursor.resume(recovered !== false, id);
    else cursor.start(id);
  }

  #advance(frame) {
    const cursor = this.#host.cursors.get(keyOf(frame));
    if (!cursor || !this.#live.has(cursor)) return;
    if (frame.type === "gap") cursor.gap(frame);
    else this.#host.deliver(cursor, frame);
  }

  #refused({ code, message }, asks) {
    const error = new ThrongError(code, message);
    if (asks?.publish) this.#host.refused(asks.publish, error);
    else if (asks?.cursor && code === "busy") this.#host.lost(this, new Loss(message));
    else if (asks?.cursor) this.#host.dropped(asks.cursor, error);
  }

  #closed(code, reason) {
    const hint = /reconnect in (\d+) ms/.exec(reason);
    const message = `the WebSocket closed with ${code}${reason ? `: ${reason}` : ""}`;
    const isFinal = this.isOpen && FINAL_CLOSE_CODES.has(code);
    const error = isFinal ? new ThrongError(`close_${code}`, message) : undefined;
    if (code === CLOSE_TOO_LARGE) this.#refuseLargest(message);
    this.#host.lost(this, new Loss(message, { hintMs: hint ? Number(hint[1]) : undefined, error }));
  }

  /** The server does not say which message was too large; the others are sent again. */
  #refuseLargest(message) {
    const size = ({ body }) => body.byteLength ?? body.length;
    const sent = [...this.#asked.values()].flatMap(({ publish }) => publish ?? []);
    const [largest] = sent.sort((a, b) => size(b) - size(a));
    if (largest) this.#host.refused(largest, new ThrongError("too_large", message));
  }
}

/**
 * What SSE and long-poll share: rounds of one request for all channels, ended and begun anew when
 * the channels change.
 *
 * The ids of several channels go out together, one for each or none at all. So a channel without a
 * position first asks its history, which gives the messages wanted and the id to go on from: one
 * rule for any mix of old and new channels, and one connection, of which browsers allow only six
 * to a server.
 */
class HttpLink {
  isOpen = false;
  isClosed = false;
  host;
  /** Ends the request of this round; its reason says why. */
  round = null;
  #watchdog;
  #reopenTimer;
  /** Follows the inbox that naming a user brings with it, when nobody subscribed to it. */
  #inbox;

  constructor(host) {
    this.host = host;
    if (host.user === undefined) return;
    const inbox = { user: host.user };
    this.#inbox = new Cursor(inbox, 0, new Subscription(inbox, () => {}));
  }

  async open() {
    while (!this.isClosed) {
      const round = (this.round = new AbortController());
      try {
        const cursors = this.#cursors();
        await this.#settle(cursors, round.signal);
        const settled = cursors.filter(({ isClosed }) => !isClosed);
        // With every channel refused there is nothing to ask for until others are subscribed.
        if (settled.length > 0) await this.follow(settled, round.signal);
        else await aborted(round.signal);
      } catch (error) {
        const cause = round.signal.aborted ? round.signal.reason : error;
        if (this.isClosed || cause === this) continue;
        const loss = cause instanceof Loss ? cause : new Loss(String(cause));
        this.host.lost(this, loss);
        return;
      } finally {
        clearTimeout(this.#watchdog);
      }
    }
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.#reopenTimer);
    clearTimeout(this.#watchdog);
    this.round?.abort(this);
  }

  subscribe() {
    clearTimeout(this.#reopenTimer);
    // Without a channel there is nothing to ask for; the client will close the link soon.
    this.#reopenTimer = setTimeout(() => {
      if (this.host.cursors.size > 0) this.round?.abort(this);
    }, REOPEN_DELAY_MS);
  }

  unsubscribe() {
    this.subscribe();
  }

  /** Ends the round unless it is called again in time. */
  watch(patienceMs, loss) {
    clearTimeout(this.#watchdog);
    const round = this.round;
    if (patienceMs > 0) this.#watchdog = setTimeout(() => round.abort(loss), patienceMs);
  }

  url(cursors, query) {
    const parameters = new URLSearchParams(query);
    for (const { target } of cursors) {
      if (target.user === undefined) parameters.append("channel", target.channel);
      else parameters.append("user", target.user);
    }
    parameters.set("envelope", "true");
    parameters.set("since", cursors.map(({ position }) => position).join(","));
    return `/subscribe?${parameters}`;
  }

  /** Takes the response's word on what is missing, before any of its messages is delivered. */
  async resumed(cursors, recovered, response, signal) {
    const starts = (response.headers.get("Throng-Id") ?? "").split(",");
    const isWhole = recovered
      ? cursors.map(() => true)
      : await Promise.all(cursors.map((cursor) => this.#isWhole(cursor, cursors, signal)));
    cursors.forEach((cursor, index) => cursor.resume(isWhole[index], starts[index]));
  }

  /** The answer covers all channels at once; which of them has the gap its history knows. */
  async #isWhole(cursor, cursors, signal) {
    if (cursors.length === 1) return false;
    const query = new URLSearchParams({ after: cursor.position, limit: "1" });
    const path = `${pathOf(cursor.target)}/history?${query}`;
    const response = await this.host.request(path, { signal });
    if (!response.ok) return false;
    return (await response.json()).recovered !== false;
  }

  /** Throws what a response other than the hoped-for means for the link. */
  async check(response) {
    if (response.ok) return response;
    const error = await toError(response);
    if (FINAL_STATUSES.has(response.status)) throw new Loss(error.message, { error });
    const hintMs = retryAfterMs(response, this.host.random);
    throw new Loss(error.message, { hintMs, isUnusable: !isTemporary(response) });
  }

  deliver(cursors, envelope) {
    const cursor = cursors.find(({ key }) => key === keyOf(envelope));
    if (cursor) this.host.deliver(cursor, envelope);
  }

  /** Channels in the order of the URL, the user last: the order of the ids. */
  #cursors() {
    const cursors = [...this.host.cursors.values()];
    const channels = cursors.filter(({ target }) => target.user === undefined);
    const inbox = cursors.find(({ target }) => target.user !== undefined) ?? this.#inbox;
    return inbox ? [...channels, inbox] : channels;
  }

  async #settle(cursors, signal) {
    const settle = async (cursor) => {
      const path = `${pathOf(cursor.target)}/history?limit=${Math.max(1, cursor.history)}`;
      const answer = await this.host.request(path, { signal });
      if (CHANNEL_STATUSES.has(answer.status) && cursor !== this.#inbox) {
        const error = await toError(answer.clone());
        if (error.code !== "origin_refused") return this.host.dropped(cursor, error);
      }
      const response = await this.check(answer);
      const { id, messages } = await response.json();
      // Another round may have begun, and with it another request for the same position.
      if (signal.aborted || cursor.isClosed) return;
      cursor.start(id);
      if (cursor.history > 0) {
        for (const envelope of messages) this.host.deliver(cursor, envelope);
      }
    };
    this.watch(this.host.requestTimeoutMs, new Loss("the server did not answer in time"));
    await Promise.all(cursors.filter(({ position }) => !position).map(settle));
  }
}

/** Server-sent events, read from a streaming response (Node has no EventSource). */
class StreamLink extends HttpLink {
  /** The server's name of this connection, to keep own messages from it (`echo: false`). */
  connection = undefined;

  async follow(cursors, signal) {
    const { heartbeatMs, openTimeoutMs } = this.host;
    // A stream that resumes begins with an event at once; a proxy that collects keeps it back.
    const held = new Loss("the stream is held back on the way", { isUnusable: true });
    this.watch(openTimeoutMs, held);
    const path = this.url(cursors, { transport: "sse" });
    const headers = { Accept: "text/event-stream" };
    const response = await this.check(await this.host.request(path, { signal, headers }));
    const type = response.headers.get("Content-Type") ?? "";
    if (!type.startsWith("text/event-stream") || !response.body) {
      throw new Loss("the answer is not an event stream", { isUnusable: true });
    }
    this.connection = response.headers.get("Throng-Connection") ?? undefined;
    const parser = new EventStreamParser();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw signal.aborted ? error : new Loss(String(error), { hintMs: parser.retryMs });
      });
      if (done) throw new Loss("the stream ended", { hintMs: parser.retryMs });
      this.watch(2.5 * heartbeatMs, new Loss("the server fell silent"));
      if (!this.isOpen) this.host.opened(this);
      for (const { event, data } of parser.push(value)) {
        await this.#take(event, JSON.parse(data), cursors, response, signal);
        if (signal.aborted) return;
      }
    }
  }

  async #take(event, body, cursors, response, signal) {
    if (event === "message" || event === "binary") this.deliver(cursors, body);
    else if (event === "gap") cursors.find(({ key }) => key === keyOf(body))?.gap(body);
    else if (event === "resumed") await this.resumed(cursors, body.recovered, response, signal);
  }
}

/** Long-poll: one request after the other, each answered as soon as there is something. */
class PollLink extends HttpLink {
  async follow(cursors, signal) {
    const { pollWaitSeconds, requestTimeoutMs } = this.host;
    // The first is answered at once, which shows that the way is open.
    const waitSeconds = this.isOpen ? pollWaitSeconds : 0;
    const late = new Loss("the poll was not answered in time");
    this.watch(waitSeconds * 1_000 + requestTimeoutMs, late);
    const path = this.url(cursors, { transport: "poll", wait: String(waitSeconds) });
    const response = await this.check(await this.host.request(path, { signal }));
    const text = await response.text();
    // A poll has no name that a publish could exclude; own messages are known by their ids.
    await this.host.silentPublishes();
    if (signal.aborted) return;
    if (!this.isOpen) this.host.opened(this);
    const recovered = response.headers.get("Throng-Recovered") !== "false";
    await this.resumed(cursors, recovered, response, signal);
    if (signal.aborted) return;
    for (const line of text.split("\n")) {
      if (line !== "") this.deliver(cursors, JSON.parse(line));
    }
    const ids = (response.headers.get("Throng-Id") ?? "").split(",");
    if (ids.length !== cursors.length) return;
    cursors.forEach((cursor, index) => {
      cursor.position = ids[index];
    });
    // A server that goes away says so in an answer that is otherwise good.
    const hintMs = retryAfterMs(response, this.host.random);
    if (hintMs !== undefined) throw new Loss("the server is going away", { hintMs });
  }
}

const LINKS = { websocket: SocketLink, sse: StreamLink, poll: PollLink };

/** One message on its way to the server, over as many attempts as its deadline allows. */
class Publish {
  /** Over how many links or requests it was sent. */
  attempts = 0;
  /** The socket that it was last sent over. */
  link = undefined;
  /** A request of its own carries it; sockets keep their hands off. */
  isPosting = false;
  isSettled = false;
  /** Ends its requests and waits. */
  abort = new AbortController();

  constructor(target, data, { key, echo, contentType, keepalive }) {
    this.target = target;
    this.data = data;
    this.key = key ?? randomKey();
    this.echo = echo ?? true;
    this.contentType = contentType;
    this.keepalive = keepalive ?? false;
    this.body = typeof data === "string" || isBinary(data) ? data : JSON.stringify(data);
    if (this.body === undefined) throw new TypeError("this data has no JSON");
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  request() {
    const { data, body, keepalive } = this;
    let contentType = "application/json";
    if (typeof data === "string") contentType = "text/plain; charset=utf-8";
    else if (isBinary(data)) contentType = "application/octet-stream";
    const headers = {
      "Content-Type": this.contentType ?? contentType,
      "Idempotency-Key": this.key,
    };
    return { method: "POST", headers, body, keepalive, signal: this.abort.signal };
  }
}

function toOptions(options) {
  const {
    user,
    transports = ["websocket", "sse", "poll"],
    WebSocket = globalThis.WebSocket,
    fetch = globalThis.fetch.bind(globalThis),
    random = Math.random,
    heartbeatMs = 25_000,
    openTimeoutMs = 3_000,
    requestTimeoutMs = 10_000,
    publishTimeoutMs = 30_000,
    pollWaitSeconds = 25,
    queueMax = 100,
  } = options;
  for (const transport of transports) {
    if (!(transport in LINKS)) throw new TypeError(`there is no transport "${transport}"`);
  }
  const possible = transports.filter((transport) => transport !== "websocket" || WebSocket);
  if (possible.length === 0) throw new TypeError("no transport is left to try");
  return {
    ...{ user, transports: possible, WebSocket, fetch, random, heartbeatMs, openTimeoutMs },
    ...{ requestTimeoutMs, publishTimeoutMs, pollWaitSeconds, queueMax },
  };
}

/** The client. Tells "state" on every change of `state` or `transport`, and "error". */
export class Throng extends Emitter {
  /** `idle`, `connecting`, `open`, `waiting` (to try again) or `closed`. */
  state = "idle";
  #url;
  #options;
  #cursors = new Map();
  #host;
  #link = null;
  /** Which of the transports; falls to a lesser one, and starts over only with `connect`. */
  #transport = 0;
  #failures = 0;
  #attempt = 0;
  /** Counts links and waits, so that what was awaited meanwhile can tell that it is late. */
  #turn = 0;
  #timer;
  #stableTimer;
  #lingerTimer;
  #pending = new Set();
  /** The last POST per channel: the next one waits for it, which keeps the order. */
  #lanes = new Map();
  #silentIds = new Set();

  constructor(url, options = {}) {
    super();
    const isUrl = typeof url === "string" || url instanceof URL;
    const base = isUrl ? String(url) : globalThis.location?.origin;
    if (base === undefined) throw new TypeError("there is no page: name the server's URL");
    this.#url = base.replace(/\/+$/, "");
    this.#options = toOptions(isUrl || url === undefined ? options : url);
    this.#host = this.#toHost();
    this.#listen(true);
  }

  get transport() {
    return this.#options.transports[this.#transport];
  }

  /** Follows a channel or the own inbox. `listener` hears "message". */
  subscribe(target, options = {}, listener = undefined) {
    if (typeof options === "function") return this.subscribe(target, {}, options);
    if (this.state === "closed") throw new ThrongError("closed", "the client is closed");
    const named = toTarget(target);
    if (named.user !== undefined && named.user !== this.#options.user) {
      throw new ThrongError("forbidden", "a client follows only the inbox of its own `user`");
    }
    const key = keyOf(named);
    if (this.#cursors.has(key)) {
      throw new ThrongError("already_subscribed", `${key} is subscribed to already`);
    }
    const subscription = new Subscription(named, () => this.#leave(cursor));
    const cursor = new Cursor(named, options.history ?? 0, subscription);
    if (options.since !== undefined) cursor.position = options.since;
    if (listener) subscription.on("message", listener);
    this.#cursors.set(key, cursor);
    clearTimeout(this.#lingerTimer);
    if (this.state === "idle") this.#open();
    else this.#link?.subscribe(cursor);
    return subscription;
  }

  /** Publishes; resolves with the id once the server has it, however often that takes. */
  async publish(target, data, options = {}) {
    if (this.state === "closed") throw new ThrongError("closed", "the client is closed");
    const publish = new Publish(toTarget(target), data, options);
    const waiting = [...this.#pending].filter(({ link }) => !link || link !== this.#link);
    if (waiting.length >= this.#options.queueMax) {
      throw new ThrongError("queue_full", `${waiting.length} messages are waiting to be sent`);
    }
    const late = new ThrongError("timeout", "the server did not confirm the message in time");
    publish.timer = setTimeout(() => this.#refuse(publish, late), this.#options.publishTimeoutMs);
    this.#pending.add(publish);
    this.#dispatch(publish);
    return publish.answer;
  }

  async history(target, { limit, before, after } = {}) {
    const body = await this.#read(target, "history", { limit, before, after });
    return { ...body, messages: body.messages.map(toMessage) };
  }

  presence(target, { limit } = {}) {
    return this.#read(target, "presence", { limit });
  }

  /** A fresh start: at once, and with the best transport. Also after `close`. */
  connect() {
    this.#release();
    this.#listen(true);
    this.#transport = this.#failures = this.#attempt = 0;
    if (this.#cursors.size > 0) this.#open();
    else this.#setState("idle");
  }

  /** Ends the connection; what was not confirmed is rejected. Subscriptions are kept. */
  close() {
    this.#release();
    this.#listen(false);
    this.#setState("closed");
    const error = new ThrongError("closed", "the client was closed before the server confirmed");
    for (const publish of this.#pending) this.#refuse(publish, error);
  }

  /** What the links may know of the client and do to it. */
  #toHost() {
    return {
      ...this.#options,
      url: this.#url,
      cursors: this.#cursors,
      request: (path, init) => this.#request(path, init),
      opened: (link) => this.#opened(link),
      lost: (link, loss) => this.#lost(link, loss),
      deliver: (cursor, envelope) => this.#deliver(cursor, envelope),
      dropped: (cursor, error) => this.#drop(cursor, error),
      published: (publish, answer) => this.#settle(publish, answer),
      refused: (publish, error) => this.#retryOrRefuse(publish, error),
      retries: () => [...this.#pending].filter((publish) => publish.link && !publish.isPosting),
      silentPublishes: () => this.#silentPublishes(),
    };
  }

  #request(path, init) {
    return this.#options.fetch(this.#url + path, { cache: "no-store", ...init });
  }

  async #read(target, what, parameters) {
    const named = Object.entries(parameters).filter(([, value]) => value !== undefined);
    const path = `${pathOf(toTarget(target))}/${what}?${new URLSearchParams(named)}`;
    const response = await this.#request(path);
    if (!response.ok) throw await toError(response);
    return response.json();
  }

  #setState(state, detail = {}) {
    this.state = state;
    this[emit]("state", { state, transport: this.transport, ...detail });
  }

  /** Opens a link after the caller's turn, so that subscriptions made together go out together. */
  #open() {
    const turn = ++this.#turn;
    this.#setState("connecting");
    queueMicrotask(() => {
      if (turn !== this.#turn) return;
      this.#link = new LINKS[this.transport](this.#host);
      this.#link.open();
    });
  }

  #release() {
    this.#turn += 1;
    clearTimeout(this.#timer);
    clearTimeout(this.#stableTimer);
    clearTimeout(this.#lingerTimer);
    this.#link?.close();
    this.#link = null;
    for (const cursor of this.#cursors.values()) cursor.isInterrupted = true;
  }

  #opened(link) {
    link.isOpen = true;
    this.#failures = 0;
    this.#stableTimer = setTimeout(() => {
      this.#attempt = 0;
    }, STABLE_MS);
    this.#setState("open");
    this.#flush();
  }

  async #lost(link, loss) {
    if (link !== this.#link) return;
    this.#release();
    if (loss.error) {
      this.#setState("closed");
      this[emit]("error", loss.error);
      for (const publish of this.#pending) this.#refuse(publish, loss.error);
      return;
    }
    if (!link.isOpen) this.#failures += 1;
    const hasNext = this.#transport + 1 < this.#options.transports.length;
    const isInDoubt = !link.isOpen && (loss.isUnusable || this.#failures >= FAILURES_MAX);
    if (hasNext && isInDoubt) {
      const turn = this.#turn;
      this.#setState("connecting", { reason: loss.message });
      const isReachable = await this.#isReachable();
      if (turn !== this.#turn) return;
      if (isReachable) {
        this.#transport += 1;
        this.#failures = 0;
        this.#open();
        this.#flush();
        return;
      }
    }
    const delayMs = loss.hintMs ?? backoffMs(this.#attempt, this.#options.random);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#open(), delayMs);
    this.#setState("waiting", { delayMs, reason: loss.message });
  }

  /** Tells a transport that does not get through from a server that is down: then all wait. */
  async #isReachable() {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), this.#options.openTimeoutMs);
    try {
      return (await this.#request("/health", { signal: abort.signal })).ok;
    } catch {
      return false;
    } finally {
      clearTimeout(timer);
    }
  }

  /** The network is back, or somebody looks at the page again: no time to wait. */
  #wake = ({ type }) => {
    if (type === "visibilitychange" && globalThis.document.hidden) return;
    if (this.state === "waiting") {
      clearTimeout(this.#timer);
      this.#open();
    } else if (this.state === "open") {
      this.#link?.probe?.();
    }
  };

  #listen(isOn) {
    const change = isOn ? "addEventListener" : "removeEventListener";
    globalThis[change]?.("online", this.#wake);
    globalThis.document?.[change]("visibilitychange", this.#wake);
  }

  #leave(cursor) {
    if (cursor.isClosed) return;
    cursor.isClosed = true;
    this.#cursors.delete(cursor.key);
    this.#link?.unsubscribe(cursor);
    if (this.#cursors.size > 0 || this.state === "closed") return;
    this.#lingerTimer = setTimeout(() => {
      this.#release();
      this.#setState("idle");
      this.#flush();
    }, LINGER_MS);
  }

  #drop(cursor, error) {
    this.#leave(cursor);
    cursor.subscription[emit]("error", error);
  }

  #deliver(cursor, envelope) {
    const isSilent = this.#silentIds.delete(`${cursor.key} ${envelope.id}`);
    cursor.take(envelope, isSilent);
  }

  #flush() {
    for (const publish of this.#pending) this.#dispatch(publish);
  }

  /** A socket carries it when there is one or will be; else a request of its own does. */
  #dispatch(publish) {
    if (publish.isPosting || publish.isSettled) return;
    const hasSocket = this.transport === "websocket" && this.state !== "idle";
    if (publish.keepalive || !hasSocket) this.#post(publish);
    else if (this.#link?.isOpen && publish.link !== this.#link) this.#link.publish(publish);
  }

  #post(publish) {
    publish.isPosting = true;
    const lane = keyOf(publish.target);
    // What a dying page sends must leave at once.
    const turn = publish.keepalive ? undefined : this.#lanes.get(lane);
    const done = Promise.resolve(turn).then(() => this.#postUntilSettled(publish));
    this.#lanes.set(lane, done);
    done.finally(() => {
      if (this.#lanes.get(lane) === done) this.#lanes.delete(lane);
    });
  }

  async #postUntilSettled(publish) {
    const { random } = this.#options;
    for (let attempt = 0; !publish.isSettled; attempt += 1) {
      let delayMs = backoffMs(attempt, random);
      const init = publish.request();
      const connection = this.#link?.connection;
      if (!publish.echo && connection) init.headers["Throng-Exclude"] = connection;
      try {
        const response = await this.#request(pathOf(publish.target), init);
        if (response.ok) return this.#settle(publish, await response.json());
        const error = await toError(response);
        if (!isTemporary(response)) return this.#refuse(publish, error);
        delayMs = retryAfterMs(response, random) ?? delayMs;
      } catch {
        // It may have arrived or not: the key makes the next attempt safe.
      }
      await delay(delayMs, publish.abort.signal);
    }
  }

  /** A socket's refusal. */
  #retryOrRefuse(publish, error) {
    if (error.code !== "busy") return this.#refuse(publish, error);
    const { link } = publish;
    setTimeout(() => {
      if (publish.link !== link) return;
      publish.link = undefined;
      this.#dispatch(publish);
    }, backoffMs(publish.attempts, this.#options.random));
  }

  #settle(publish, { id, subscribers, duplicate }) {
    if (!this.#finish(publish)) return;
    if (!publish.echo) {
      this.#silentIds.add(`${keyOf(publish.target)} ${id}`);
      if (this.#silentIds.size > SILENT_IDS_MAX) {
        this.#silentIds.delete(this.#silentIds.values().next().value);
      }
    }
    publish.resolve({ id, subscribers, ...(duplicate ? { duplicate } : {}) });
  }

  #refuse(publish, error) {
    if (this.#finish(publish)) publish.reject(error);
  }

  #finish(publish) {
    if (publish.isSettled) return false;
    publish.isSettled = true;
    clearTimeout(publish.timer);
    this.#pending.delete(publish);
    publish.abort.abort();
    return true;
  }

  /** Until it is known which messages are own ones that are not to be heard. */
  #silentPublishes() {
    const silent = [...this.#pending].filter(({ echo }) => !echo);
    return Promise.allSettled(silent.map(({ answer }) => answer));
  }
}
