/**
 * One connection of the client: its transport, its channels and its retries. A client has one
 * connection, or several if its channels exceed the server's limit for one.
 *
 * Invariants:
 * - A link reports its loss once and is never reused.
 * - The client falls back to the next transport only if an attempt fails that began after the server
 *   has answered `/health`, or that never can succeed. A refusal with a time to retry is no failure.
 * - While a lesser transport holds, a trial of the first one runs beside it from time to time. It
 *   follows nothing until it takes over, so no message comes twice.
 */

import { backoffMs, boundedMs, TIMER_MAX_MS } from "./http.js";
import { loadHttp } from "./load-http.js";
import { SocketLink } from "./socket-link.js";

/** A connection open for this long was stable. One that ends earlier has failed. */
const STABLE_MS = 10_000;
/** Failures in a row after which the client asks whether the server answers. */
const FAILURES_MAX = 2;
/** How often the time to open doubles while attempts are too slow. */
const DOUBLINGS_MAX = 3;
/** How many times longer than an answer of the server an attempt may take to open. */
const PATIENCE = 5;
/** Time between trials of the first transport; doubles each time that it has failed again. */
const TRIAL_MS = 180_000;
const TRIAL_DOUBLINGS_MAX = 4;
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
  /** Attempts in a row that did not open. */
  #failures = 0;
  /** Links in a row that opened and ended soon. */
  #briefs = 0;
  /** Attempts in a row that did not open in time. */
  #timeouts = 0;
  /** How long the next attempt may take, by the server's last answer. */
  #patienceMs = 0;
  /**
   * The server answers, so if the present attempt fails, the transport does: by not opening
   * ("open"), or also by ending soon ("hold").
   */
  #judged;
  /** Attempts in a row that did not have to wait, because their cause was mended. */
  #mended = 0;
  #attempt = 0;
  /** Counts links and waits: an asynchronous step that finds another value is outdated. */
  #generation = 0;
  #openedAt = 0;
  #timer;
  #stableTimer;
  #lingerTimer;
  /** A link of the first transport, beside a lesser one. */
  #trial;
  #trialTimer;
  /** The link was opened by a fallback: the first transport has just failed. */
  #hasFallenBack = false;
  /** How long a trial must hold: links of the first transport opened, and ended soon. */
  #proofMs = 0;
  /** Fallbacks since the client began. */
  #fallbacks = 0;

  constructor(client, transport) {
    this.#client = client;
    this.transportIndex = transport;
  }

  get transport() {
    return this.#client.options.transports[this.transportIndex];
  }

  get #hasNext() {
    return this.transportIndex + 1 < this.#client.options.transports.length;
  }

  /** How long an attempt may take to open before there are doubts. Grows with slow attempts. */
  get openTimeoutMs() {
    const grownMs = this.#client.options.openTimeoutMs * 2 ** Math.min(this.#timeouts, DOUBLINGS_MAX);
    return Math.min(Math.max(this.#patienceMs, grownMs), TIMER_MAX_MS);
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

  /** The network is back (`isOnline`), or the page visible again: retries now, or probes the link. */
  wake(isOnline) {
    const isStuck = isOnline && this.state === "connecting";
    if (this.state === "waiting" || isStuck) {
      this.#release();
      this.#begin(this.transportIndex);
      this.#attempt = this.#timeouts = 0;
      this.#open();
      return;
    }
    this.probe();
    if (isOnline) this.#try();
  }

  /** Asks the server for a sign of life, by a ping or a new request. */
  probe() {
    this.link?.probe();
  }

  /** Half of the time of a separate request is over: a WebSocket can be asked. */
  doubt() {
    this.link?.doubt?.();
  }

  /**
   * A separate request, sent at `sinceMs`, got no answer. A stream or poll counts as lost if nothing
   * has arrived on it since then.
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
    clearTimeout(this.#timer);
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
      if (error.code) this.#retry(error);
      else this.#client.fail(error);
    }
  }

  #release() {
    this.#generation += 1;
    clearTimeout(this.#timer);
    clearTimeout(this.#stableTimer);
    clearTimeout(this.#lingerTimer);
    this.#endTrial();
    clearTimeout(this.#trialTimer);
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
      this.#openedAt = Date.now();
      this.#failures = 0;
      if (this.#judged === "open") this.#judged = undefined;
      this.#stableTimer = setTimeout(() => this.#hold(), STABLE_MS);
      this.#setState("open");
      if (this.#hasFallenBack) this.#tryLater();
      else this.#try();
    }
    this.#client.outbox.flush();
  }

  /** The link was stable: what has failed before does not count any more. */
  #hold() {
    this.#begin(this.transportIndex);
    this.#timeouts = this.#patienceMs = this.#mended = this.#attempt = 0;
    this.#hasFallenBack = false;
  }

  /** The link has ended. */
  lost(link, loss) {
    if (link === this.#trial) return this.#endTrial();
    if (link !== this.link) return undefined;
    const isBrief = link.isOpen && Date.now() - this.#openedAt < STABLE_MS;
    this.#release();
    if (link.isOpen) this.#hasFallenBack = false;
    if (loss.error) return this.#client.fail(loss.error);
    if (loss.isMended && this.#mended++ === 0) {
      this.#attempt = 0;
      return this.#open();
    }
    // A refusal with a time to retry shows neither that the transport fails nor that it works.
    const isFailure = (!link.isOpen || isBrief) && loss.hintMs === undefined && !loss.isAnswer;
    if (!isFailure) return this.#retry(loss);
    if (this.#judged && this.#hasNext) return this.#fallBack(isBrief);
    const failures = isBrief ? ++this.#briefs : ++this.#failures;
    const isDoubted = loss.isUnusable || loss.isSlow || failures >= FAILURES_MAX;
    return isDoubted ? this.#judge(loss, isBrief) : this.#retry(loss);
  }

  /** The link did not open in time. It still may, while the client asks whether the server answers. */
  slow(link, loss) {
    if (link === this.#trial) return this.#endTrial();
    if (link !== this.link) return undefined;
    return this.#judged ? this.lost(link, loss) : this.#judge(loss, false);
  }

  /** A transport has failed. If the server answers, the next attempt decides whether it is unusable. */
  async #judge(loss, isBrief) {
    const generation = this.#generation;
    if (loss.isSlow) this.#timeouts += 1;
    const { options } = this.#client;
    const part = await loadHttp(options).catch(() => {});
    const isMute = this.transport === "websocket" && !isBrief;
    const found = await part?.diagnose(this.#client, this.openTimeoutMs, isMute);
    if (generation !== this.#generation || this.link?.isOpen) return;
    this.#release();
    const { error, isMended, isReachable, tookMs = 0, reason = loss.message, isForeign } = found ?? {};
    if (error) return this.#client.fail(error);
    if (isMended) return this.#open();
    const explained = { ...loss, message: reason, isForeign: isForeign || loss.isForeign };
    if (!isReachable) return this.#restart(explained);
    this.#patienceMs = PATIENCE * tookMs;
    this.#timeouts = 0;
    if (!this.#hasNext) return this.#restart(explained);
    if (loss.isUnusable) return this.#fallBack(isBrief);
    this.#judged = isBrief ? "hold" : "open";
    this.#open();
  }

  /** The last transport has failed: perhaps the first one works again. */
  #restart(loss) {
    if (!this.#hasNext) this.#begin(0);
    this.#retry(loss);
  }

  #begin(index) {
    this.transportIndex = index;
    this.#failures = this.#briefs = 0;
    this.#judged = undefined;
  }

  #fallBack(isBrief) {
    this.#proofMs = isBrief ? STABLE_MS : 0;
    this.#fallbacks += 1;
    this.#hasFallenBack = true;
    this.#begin(this.transportIndex + 1);
    this.#timeouts = this.#patienceMs = 0;
    this.#open();
    this.#client.outbox.flush();
  }

  #retry({ hintMs, message, isForeign }) {
    const { random } = this.#client.options;
    const delayMs = hintMs === undefined ? backoffMs(this.#attempt, random) : boundedMs(hintMs);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#open(), delayMs);
    if (isForeign) this.#client.warn(message);
    this.#setState("waiting", { delayMs, reason: message });
    this.#client.outbox.flush();
  }

  /* The way back to the first transport. */

  #tryLater() {
    const { options: { random } } = this.#client;
    const doublings = Math.min(Math.max(0, this.#fallbacks - 1), TRIAL_DOUBLINGS_MAX);
    const delayMs = TRIAL_MS * 2 ** doublings * (0.5 + random());
    clearTimeout(this.#trialTimer);
    this.#trialTimer = setTimeout(() => this.#try(), delayMs);
  }

  /** Opens a link of the first transport beside a lesser one. Only a WebSocket can wait unused. */
  #try() {
    const [first] = this.#client.options.transports;
    const isLesser = this.transportIndex > 0 && this.state === "open";
    if (!isLesser || first !== "websocket" || this.#trial) return;
    this.#tryLater();
    this.#trial = new SocketLink(this, this.#client);
    this.#trial.open(PATIENCE * this.openTimeoutMs);
  }

  /** A WebSocket has its welcome. It begins at once, or if it is a trial, once it has held. */
  welcomed(link, begin) {
    if (link !== this.#trial) return begin();
    clearTimeout(this.#trialTimer);
    this.#trialTimer = setTimeout(() => {
      this.#trial = undefined;
      this.#release();
      this.#begin(0);
      this.#hasFallenBack = false;
      this.state = "connecting";
      this.link = link;
      begin();
    }, this.#proofMs);
    return undefined;
  }

  #endTrial() {
    if (!this.#trial) return;
    const trial = this.#trial;
    this.#trial = undefined;
    trial.close();
    if (this.state === "open") this.#tryLater();
  }
}
