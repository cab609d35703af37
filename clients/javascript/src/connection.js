/**
 * One connection of the client: its transport, its channels and its retries. A client has one
 * connection, or several if its channels exceed the server's limit for one.
 *
 * Invariants:
 * - A link reports its loss once and is never reused.
 * - The client falls back to the next transport only if the server answers `/health` while the
 *   transport fails. A refusal with a time to retry is not a failure of the transport.
 */

import { backoffMs, boundedMs } from "./http.js";
import { loadHttp } from "./load-http.js";
import { SocketLink } from "./socket-link.js";

/** A connection open for this long was stable: after its loss, the backoff starts over. */
const STABLE_MS = 10_000;
/** Failures in a row after which the client falls back to the next transport. */
const FAILURES_MAX = 2;
/** How long a connection without channels stays open, for a page that changes channels. */
const LINGER_MS = 1_000;

export class Connection {
  /** `idle`, `connecting`, `open` or `waiting` (for the next attempt). */
  state = "idle";
  /** In state `waiting`: the delay and the reason. */
  detail = {};
  cursors = new Map();
  link = null;
  #client;
  /** Index into the client's transports; grows with each fallback. */
  transportIndex;
  #failures = 0;
  #attempt = 0;
  /** Counts links and waits: an asynchronous step that finds another value is outdated. */
  #generation = 0;
  #timer;
  #stableTimer;
  #lingerTimer;

  constructor(client, transport) {
    this.#client = client;
    this.transportIndex = transport;
  }

  get transport() {
    return this.#client.options.transports[this.transportIndex];
  }

  /** Whether one more channel fits if a connection takes `channelsMax`. */
  hasCapacity(channelsMax) {
    return this.cursors.size < this.#capacity(channelsMax);
  }

  add(cursor) {
    cursor.connection = this;
    cursor.isLive = false;
    this.cursors.set(cursor.key, cursor);
    clearTimeout(this.#lingerTimer);
    if (this.state === "idle") this.#open();
    else this.link?.subscribe(cursor);
  }

  remove(cursor) {
    cursor.connection = undefined;
    cursor.isLive = false;
    this.cursors.delete(cursor.key);
    this.link?.unsubscribe(cursor);
    if (this.cursors.size > 0 || this.state === "idle") return;
    this.#lingerTimer = setTimeout(() => this.#client.emptied(this), LINGER_MS);
  }

  /** Removes the channels beyond the limit, the newest ones, and returns them. */
  takeSurplus(channelsMax) {
    const surplus = [...this.cursors.values()].slice(this.#capacity(channelsMax));
    for (const cursor of surplus) this.remove(cursor);
    return surplus;
  }

  close() {
    this.#release();
    this.state = "idle";
  }

  /** Retries now, or probes an open connection: the network is back, or the page visible again. */
  wake() {
    if (this.state === "waiting") {
      clearTimeout(this.#timer);
      this.#open();
    } else this.probe();
  }

  /** Asks the server for a sign of life, on transports where a client can send. */
  probe() {
    this.link?.probe?.();
  }

  /** Half of the time of a separate request is over: a WebSocket can be asked. */
  doubt() {
    this.link?.doubt?.();
  }

  /**
   * A separate request, sent at `sinceMs`, got no answer. A stream or poll cannot be asked: it counts
   * as lost if nothing has arrived on it since then.
   */
  suspect(sinceMs) {
    this.link?.suspect?.(sinceMs);
  }

  #capacity(channelsMax) {
    return Math.max(1, channelsMax - this.reservedChannels());
  }

  /** A connection with `?user=` follows that user's inbox, even without a subscription to it. */
  reservedChannels() {
    const { user } = this.#client.options;
    return user !== undefined && !this.cursors.has(`user ${user}`) ? 1 : 0;
  }

  #setState(state, detail = {}) {
    this.state = state;
    this.detail = detail;
    this.#client.changed(this);
  }

  /** Opens a link in a microtask, so that subscriptions made together are sent together. */
  async #open() {
    const generation = ++this.#generation;
    const isCurrent = () => generation === this.#generation;
    this.#setState("connecting");
    await undefined;
    if (!isCurrent()) return;
    const { tokens } = this.#client;
    try {
      if (!tokens.isReady) await tokens.get();
      const isSocket = this.transport === "websocket";
      const { options } = this.#client;
      const Link = isSocket ? SocketLink : (await loadHttp(options)).LINKS[this.transport];
      if (!isCurrent()) return;
      this.link = new Link(this, this.#client);
      this.link.open();
    } catch (error) {
      if (!isCurrent()) return;
      // Without a part of the client, the first transport may still work.
      if (error.code === "unreachable") this.transportIndex = 0;
      this.#retry(error);
    }
  }

  #release() {
    this.#generation += 1;
    clearTimeout(this.#timer);
    clearTimeout(this.#stableTimer);
    clearTimeout(this.#lingerTimer);
    this.link?.close();
    this.link = null;
    for (const cursor of this.cursors.values()) {
      cursor.isInterrupted = true;
      cursor.isLive = false;
    }
  }

  /** The link works: the server has confirmed it. */
  opened(link) {
    link.isOpen = true;
    if (this.state !== "open") {
      this.#failures = 0;
      this.#stableTimer = setTimeout(() => {
        this.#attempt = 0;
      }, STABLE_MS);
      this.#setState("open");
    }
    this.#client.outbox.flush();
  }

  /** The link has ended. */
  async lost(link, loss) {
    if (link !== this.link) return;
    this.#release();
    if (loss.error) return this.#client.fail(loss.error);
    // A refusal with a time to retry shows neither that the transport fails nor that it works.
    const isFailure = !link.isOpen && loss.hintMs === undefined && !loss.isAnswer;
    if (isFailure) this.#failures += 1;
    const hasNext = this.transportIndex + 1 < this.#client.options.transports.length;
    if (hasNext && isFailure && (loss.isUnusable || this.#failures >= FAILURES_MAX)) {
      const generation = this.#generation;
      const part = await loadHttp(this.#client.options).catch(() => {});
      // Whether the server answers over HTTP, so that a failure is the transport's.
      const isReachable = await part?.isReachable(this.#client);
      if (generation !== this.#generation) return;
      if (isReachable) {
        this.transportIndex += 1;
        this.#failures = 0;
        this.#open();
        this.#client.outbox.flush();
        return;
      }
    }
    this.#retry(loss);
  }

  #retry({ hintMs, message }) {
    const { random } = this.#client.options;
    const delayMs = hintMs === undefined ? backoffMs(this.#attempt, random) : boundedMs(hintMs);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#open(), delayMs);
    this.#setState("waiting", { delayMs, reason: message });
    this.#client.outbox.flush();
  }
}
