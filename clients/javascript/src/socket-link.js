/** One WebSocket that speaks `throng.v1`. Open once the server has said welcome. */

import { Loss, ThrongError } from "./errors.js";
import { isBinary, keyOf, toBase64 } from "./message.js";

/** A probed socket (page visible again, network changed) must answer within this time. */
const PROBE_MS = 5_000;
/** Close codes after which the server would only refuse again. */
const FINAL_CLOSE_CODES = new Set([1002, 1003, 1007, 1008]);
const CLOSE_TOO_LARGE = 1009;

export class SocketLink {
  isOpen = false;
  #host;
  #socket = null;
  #openTimer;
  #pulseTimer;
  #pulseAt = Infinity;
  #heardAt = 0;
  /** When the server must have been heard of, because it was asked; unset while it was not. */
  #dueAt = undefined;
  #heartbeatMs;
  /** What the socket had not sent yet when it was last looked at. */
  #unsentBytes = 0;
  #ref = 0;
  /** What each `ref` under way asks for: a cursor or a publish. */
  #asked = new Map();
  /** Cursors that were asked for, and those whose `subscribed` came: before it, messages belong
   * to an earlier subscription. */
  #wanted = new Set();
  #live = new Set();

  constructor(host) {
    this.#host = host;
    this.#heartbeatMs = host.heartbeatMs || Infinity;
  }

  open() {
    const { url, user, WebSocket, openTimeoutMs } = this.#host;
    const query = user === undefined ? "" : `?user=${encodeURIComponent(user)}`;
    const slow = new Loss("the WebSocket did not open in time", { isUnusable: true });
    this.#openTimer = setTimeout(() => this.#host.lost(this, slow), openTimeoutMs);
    try {
      this.#socket = new WebSocket(`${url.replace(/^http/i, "ws")}/subscribe${query}`, "throng.v1");
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
    clearTimeout(this.#pulseTimer);
    if (!this.#socket) return;
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
  }

  subscribe(cursor) {
    if (!this.isOpen) return;
    // The URL's `user` follows that inbox from now on; ours may have to start earlier.
    if (cursor.target.user !== undefined) this.#send({ type: "unsubscribe", ...cursor.target });
    const from = cursor.position ? { since: cursor.position } : {};
    if (!cursor.position && cursor.history > 0) from.history = cursor.history;
    this.#wanted.add(cursor);
    this.#send({ type: "subscribe", ...cursor.target, ...from }, { cursor, from });
  }

  unsubscribe(cursor) {
    this.#live.delete(cursor);
    if (this.#wanted.delete(cursor)) this.#send({ type: "unsubscribe", ...cursor.target });
  }

  publish(publish) {
    const { target, data, key, echo, contentType } = publish;
    publish.link = this;
    publish.sent();
    const body = isBinary(data) ? { data: toBase64(data), encoding: "base64" } : { data };
    if (contentType !== undefined) body.content_type = contentType;
    if (!echo) body.echo = false;
    this.#send({ type: "publish", ...target, ...body, key }, { publish });
  }

  /** Asks for a sign of life now, and does not wait long for it. */
  probe() {
    if (this.isOpen) this.#ping(PROBE_MS);
  }

  #send(frame, asks) {
    if (asks) {
      frame.ref = ++this.#ref;
      this.#asked.set(frame.ref, asks);
      this.#expect(this.#host.requestTimeoutMs);
    }
    // A closing socket drops what it is given; the close event that follows retries it.
    this.#socket.send(JSON.stringify(frame));
    this.#unsentBytes = this.#socket.bufferedAmount ?? 0;
  }

  #ping(patienceMs) {
    this.#send({ type: "ping" });
    this.#expect(patienceMs);
  }

  /** Something must be heard within that time. */
  #expect(patienceMs) {
    this.#dueAt = Math.min(this.#dueAt ?? Infinity, Date.now() + patienceMs);
    this.#schedule(this.#dueAt);
  }

  #schedule(at) {
    if (at >= this.#pulseAt) return;
    clearTimeout(this.#pulseTimer);
    this.#pulseAt = at;
    // A timer's longest time is 2^31 - 1 ms.
    const delayMs = Math.min(Math.max(0, at - Date.now()), 2 ** 31 - 1);
    this.#pulseTimer = setTimeout(() => this.#pulse(), delayMs);
  }

  /**
   * Silence while an answer is due ends the link. Silence otherwise is broken by the server's
   * heartbeats; where they do not come, it is asked. Counted from the question and not from the
   * last frame, because the timers of a hidden page may run late.
   */
  #pulse() {
    this.#pulseAt = Infinity;
    const now = Date.now();
    const { requestTimeoutMs } = this.#host;
    const unsentBytes = this.#socket.bufferedAmount ?? 0;
    // A large message that is still leaving is no silence of the server's.
    const isLeaving = unsentBytes > 0 && unsentBytes < this.#unsentBytes;
    if (isLeaving && this.#dueAt) this.#dueAt = now + requestTimeoutMs;
    this.#unsentBytes = unsentBytes;
    const quietAt = this.#heardAt + this.#heartbeatMs + requestTimeoutMs / 2;
    if (this.#dueAt !== undefined) {
      if (now >= this.#dueAt) return this.#host.lost(this, new Loss("the server fell silent"));
    } else if (now >= quietAt) {
      return this.#ping(requestTimeoutMs / 2);
    }
    this.#schedule(this.#dueAt ?? quietAt);
  }

  #receive(text) {
    this.#heardAt = Date.now();
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      this.#host.lost(this, new Loss("what answered is not Throng", { isUnusable: true }));
      return;
    }
    const asks = this.#asked.get(frame.ref);
    if (frame.ref !== undefined) this.#asked.delete(frame.ref);
    this.#dueAt = this.#asked.size > 0 ? this.#heardAt + this.#host.requestTimeoutMs : undefined;
    if (frame.type === "message" || frame.type === "gap") this.#advance(frame);
    else if (frame.type === "welcome") this.#welcome(frame);
    else if (frame.type === "subscribed" && asks?.cursor) this.#subscribed(frame, asks);
    else if (frame.type === "published" && asks?.publish) this.#host.published(asks.publish, frame);
    else if (frame.type === "error") this.#refused(frame, asks);
  }

  #welcome({ heartbeat, channels_max: channelsMax }) {
    clearTimeout(this.#openTimer);
    if (heartbeat > 0) this.#heartbeatMs = heartbeat * 1_000;
    this.isOpen = true;
    this.#schedule(this.#heardAt + this.#heartbeatMs + this.#host.requestTimeoutMs / 2);
    // Channels that are too many for this connection leave it before they are asked for.
    if (channelsMax > 0) this.#host.learn(channelsMax);
    const cursors = [...this.#host.cursors.values()];
    for (const cursor of cursors) if (!cursor.position) this.subscribe(cursor);
    // Retries come before what resumes: their answers then name the ids not to be heard again
    // (`echo: false`) before the backlog brings them.
    for (const publish of this.#host.retries()) this.publish(publish);
    for (const cursor of cursors) if (cursor.position) this.subscribe(cursor);
    this.#host.opened(this);
  }

  #subscribed({ id, head, recovered }, { cursor, from }) {
    if (this.#host.cursors.get(cursor.key) !== cursor) return;
    this.#live.add(cursor);
    cursor.isLive = true;
    if (from.since) cursor.follow({ id, head, recovered: recovered !== false });
    else cursor.follow({ id, head });
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
    const { cursor } = asks ?? {};
    if (cursor) this.#wanted.delete(cursor);
    // It may have moved to another connection meanwhile.
    if (!cursor || this.#host.cursors.get(cursor.key) !== cursor) return;
    if (code === "busy") this.#host.lost(this, new Loss(message));
    else if (code === "too_many_channels" && this.#live.size > 0) {
      this.#host.learn(this.#live.size + this.#host.takenPlaces());
    } else this.#host.dropped(cursor, error);
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
