/**
 * One connection of the client: which transport, when to try again, which channels. A client has
 * one, or as many as its channels need.
 *
 * Invariants:
 * - A link reports its loss once and is never reused.
 * - A transport is given up only when the server answers and the transport does not get through;
 *   a server that asks to be left alone for a while is one that answers.
 */

import { Loss } from "./errors.js";
import { backoffMs } from "./http.js";
import { PollLink, StreamLink } from "./http-link.js";
import { SocketLink } from "./socket-link.js";

/** A connection that held this long was a good one: the backoff starts over. */
const STABLE_MS = 10_000;
/** Refused this often in a row, a transport is given up for the next one. */
const FAILURES_MAX = 2;
/** After the last channel has left the connection stays this long, for a change of rooms. */
const LINGER_MS = 1_000;

const LINKS = { websocket: SocketLink, sse: StreamLink, poll: PollLink };

export class Connection {
  /** `idle`, `connecting`, `open` or `waiting` (to try again). */
  state = "idle";
  /** With `waiting`: how long, and why. */
  detail = {};
  cursors = new Map();
  link = null;
  #client;
  #host;
  /** Which of the transports; falls to a lesser one. */
  #transport;
  #failures = 0;
  #attempt = 0;
  /** Counts links and waits, so that what was awaited meanwhile can tell that it is late. */
  #turn = 0;
  #timer;
  #stableTimer;
  #lingerTimer;

  constructor(client, transport) {
    this.#client = client;
    this.#transport = transport;
    this.#host = this.#toHost();
  }

  /** The index of the transport in the client's options. */
  get transportIndex() {
    return this.#transport;
  }

  get transport() {
    return this.#client.options.transports[this.#transport];
  }

  /** Whether another channel fits where one connection takes `channelsMax`. */
  hasRoom(channelsMax) {
    return this.cursors.size < Math.max(1, channelsMax - this.#takenPlaces());
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
    this.#lingerTimer = setTimeout(() => {
      this.close();
      this.#client.emptied(this);
    }, LINGER_MS);
  }

  /** Takes away the channels that are too many, the last ones first, and returns them. */
  takeSurplus(channelsMax) {
    const places = Math.max(1, channelsMax - this.#takenPlaces());
    const surplus = [...this.cursors.values()].slice(places);
    for (const cursor of surplus) this.remove(cursor);
    return surplus;
  }

  close() {
    this.#release();
    this.state = "idle";
  }

  /** The network is back, or the page is looked at again: no time to wait. */
  wake() {
    if (this.state === "waiting") {
      clearTimeout(this.#timer);
      this.#open();
    } else if (this.state === "open") {
      this.link?.probe?.();
    }
  }

  /** Asks a connection that can be asked whether it still stands. */
  probe() {
    if (this.state === "open") this.link?.probe?.();
  }

  /**
   * A request of its own was not answered since. A socket is asked now; a stream or poll that has
   * not been heard of since either is taken for lost.
   */
  suspect(sinceMs) {
    const { link } = this;
    if (!link?.isOpen) return;
    if (link.probe) link.probe();
    else if (link.heardAt < sinceMs) this.#lost(link, new Loss("the server does not answer"));
  }

  /** What the links may know of the client and do to it. */
  #toHost() {
    const client = this.#client;
    return {
      ...client.options,
      url: client.url,
      cursors: this.cursors,
      request: (path, init) => client.request(path, init),
      opened: (link) => this.#opened(link),
      lost: (link, loss) => this.#lost(link, loss),
      deliver: (cursor, envelope) => client.deliver(cursor, envelope),
      dropped: (cursor, error) => client.drop(cursor, error),
      learn: (channelsMax) => client.learn(channelsMax),
      takenPlaces: () => this.#takenPlaces(),
      published: (publish, answer) => client.outbox.settle(publish, answer),
      refused: (publish, error) => client.outbox.retryOrRefuse(publish, error),
      retries: () => client.outbox.retriesFor(this),
      silentPublishes: () => client.outbox.silentPublishes(),
    };
  }

  /** Naming a user follows that inbox, whether anything here subscribed to it or not. */
  #takenPlaces() {
    const { user } = this.#client.options;
    return user !== undefined && !this.cursors.has(`user ${user}`) ? 1 : 0;
  }

  #setState(state, detail = {}) {
    this.state = state;
    this.detail = detail;
    this.#client.changed(this);
  }

  /** Opens a link after the caller's turn, so that subscriptions made together go out together. */
  #open() {
    const turn = ++this.#turn;
    this.#setState("connecting");
    queueMicrotask(() => {
      if (turn !== this.#turn) return;
      this.link = new LINKS[this.transport](this.#host);
      this.link.open();
    });
  }

  #release() {
    this.#turn += 1;
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

  #opened(link) {
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

  async #lost(link, loss) {
    if (link !== this.link) return;
    this.#release();
    if (loss.error) return this.#client.fail(loss.error);
    // Told to come back later is neither a transport that fails nor one that works.
    const isFailure = !link.isOpen && loss.hintMs === undefined;
    if (isFailure) this.#failures += 1;
    const hasNext = this.#transport + 1 < this.#client.options.transports.length;
    if (hasNext && isFailure && (loss.isUnusable || this.#failures >= FAILURES_MAX)) {
      const turn = this.#turn;
      const isReachable = await this.#client.isReachable();
      if (turn !== this.#turn) return;
      if (isReachable) {
        this.#transport += 1;
        this.#failures = 0;
        this.#open();
        this.#client.outbox.flush();
        return;
      }
    }
    const delayMs = loss.hintMs ?? backoffMs(this.#attempt, this.#client.options.random);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#open(), delayMs);
    this.#setState("waiting", { delayMs, reason: loss.message });
    this.#client.outbox.flush();
  }
}
