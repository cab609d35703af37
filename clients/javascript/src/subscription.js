/**
 * A channel that the client follows, and those who listen to it.
 *
 * `Subscription` is what one call of `subscribe` returns. All subscriptions of one channel share a
 * `Cursor`, which the links move. A subscription that joins a cursor under way and wants older
 * messages reads them from the history; what comes live meanwhile is held back until then.
 *
 * Invariants:
 * - A cursor's position is an id that the server gave out, and nothing after it has been delivered;
 *   so a connection may be dropped at any moment and resumed from the positions.
 * - Each subscription gets a message once and in order, "gap" before what follows it.
 */

import { emit, Emitter } from "./emitter.js";
import { ThrongError } from "./errors.js";
import { backoffMs, delay, isTemporary } from "./http.js";
import { isUpTo, keyOf, toMessage } from "./message.js";

/** The largest page of history that the server gives. */
const PAGE_MAX = 1_000;

const leave = Symbol("leave");

/** Tells "message", "subscribed", "recovered", "gap" and "error". */
export class Subscription extends Emitter {
  constructor(target, end) {
    super();
    Object.assign(this, target);
    this[leave] = end;
  }

  unsubscribe() {
    this[leave]();
  }
}

/** One subscription, as its cursor sees it. */
class Follower {
  /** What came while older messages are being read; unset when nothing is held back. */
  #held = undefined;
  /** The last id that it heard. */
  #last = undefined;
  #end = new AbortController();

  constructor(subscription, { takesReplay }) {
    this.subscription = subscription;
    /** Older messages that the cursor brings were asked for by this one. */
    this.takesReplay = takesReplay;
  }

  get signal() {
    return this.#end.signal;
  }

  close() {
    this.#end.abort();
  }

  hear(name, value) {
    if (this.signal.aborted) return;
    if (this.#held) this.#held.push([name, value]);
    else this.#tell(name, value);
  }

  hold() {
    this.#held = [];
  }

  /** An older message, read for this one alone. */
  replay(envelope) {
    const isLive = this.#held.some(([, value]) => value.id === envelope.id);
    if (!isLive) this.#tell("message", toMessage(envelope, true));
  }

  /** Hands out what was held back. */
  release() {
    const held = this.#held;
    this.#held = undefined;
    for (const [name, value] of held) this.#tell(name, value);
  }

  #tell(name, value) {
    if (this.signal.aborted) return;
    if (name === "message") {
      if (isUpTo(value.id, this.#last)) return;
      this.#last = value.id;
    }
    this.subscription[emit](name, value);
  }
}

/** Where the client stands in one channel. The links move it; its subscriptions hear of it. */
export class Cursor {
  /** The connection that follows it. */
  connection = undefined;
  /** The id to resume after; unset until the server has named one. */
  position = undefined;
  /** The newest id when the server began to follow: up to it, messages are replayed. */
  head = undefined;
  /** The connection was lost since: the next answer tells whether messages were. */
  isInterrupted = false;
  /** The server follows it now, so that what is published to it comes back. */
  isLive = false;
  isClosed = false;
  #hasStarted = false;
  /** The last id given to the subscriptions; unlike `position` never set from an announcement. */
  #delivered = undefined;
  #followers = new Map();
  #start;
  #started = new Promise((resolve) => {
    this.#start = resolve;
  });

  constructor(target, { history = 0, since } = {}) {
    this.target = target;
    this.key = keyOf(target);
    this.history = history;
    this.position = since;
  }

  /** Without a connection that keeps count, the server must say first where the channel stands. */
  get needsStart() {
    return !this.position || (!this.#hasStarted && !this.head);
  }

  get isUnheard() {
    return this.#followers.size === 0;
  }

  /** The first subscription gets what the cursor brings; a later one reads for itself. */
  join(subscription, options, read) {
    const isFirst = this.isUnheard && !this.#hasStarted;
    const follower = new Follower(subscription, { takesReplay: isFirst });
    this.#followers.set(subscription, follower);
    if (isFirst) return;
    const wantsOlder = options.since !== undefined || options.history > 0;
    if (wantsOlder) follower.hold();
    this.#joinLate(follower, wantsOlder ? options : undefined, read);
  }

  part(subscription) {
    this.#followers.get(subscription)?.close();
    this.#followers.delete(subscription);
  }

  /** The server has answered for this channel; `recovered` is unset where no id was given. */
  follow({ id, head, recovered }) {
    if (!this.#hasStarted) {
      this.#hasStarted = true;
      this.position ??= id;
      this.head ??= head;
      this.#start();
      for (const follower of this.#followers.values()) {
        if (follower.takesReplay) follower.hear("subscribed", { ...this.target, id });
      }
    }
    if (recovered === false) this.gap({ id });
    else if (this.isInterrupted && recovered) this.#tell("recovered", { ...this.target });
    this.isInterrupted = false;
  }

  gap({ id, missed }) {
    if (id) this.position = id;
    this.#tell("gap", { ...this.target, id, missed });
  }

  take(envelope, isSilent = false) {
    if (this.isClosed || isUpTo(envelope.id, this.#delivered)) return;
    this.position = this.#delivered = envelope.id;
    const isReplayed = isUpTo(envelope.id, this.head);
    if (!isReplayed) this.head = undefined;
    if (isSilent) return;
    const message = toMessage(envelope, isReplayed);
    for (const follower of [...this.#followers.values()]) {
      if (!isReplayed || follower.takesReplay) follower.hear("message", message);
    }
  }

  /** The server refuses this channel. */
  fail(error) {
    this.isClosed = true;
    this.#tell("error", error);
    for (const subscription of [...this.#followers.keys()]) this.part(subscription);
  }

  #tell(name, value) {
    for (const follower of [...this.#followers.values()]) follower.hear(name, value);
  }

  async #joinLate(follower, options, read) {
    // Reading before the server follows could leave a hole between the two.
    await this.#started;
    if (follower.signal.aborted) return;
    const { subscription, signal } = follower;
    subscription[emit]("subscribed", { ...this.target, id: this.position });
    if (!options) return;
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      try {
        await this.#replay(follower, options, read);
        return;
      } catch (error) {
        if (signal.aborted) return;
        const isFinal = error instanceof ThrongError && error.status && !isTemporary(error);
        if (isFinal) {
          subscription[emit]("error", error);
          subscription.unsubscribe();
          return;
        }
        await delay(backoffMs(attempt), signal);
      }
    }
  }

  async #replay(follower, { history, since }, read) {
    let messages = [];
    let isWhole = true;
    if (since !== undefined) {
      let page = { more: true };
      for (let after = since; page.more; after = messages.at(-1)?.id ?? after) {
        page = await read({ after, limit: PAGE_MAX });
        if (after === since) isWhole = page.recovered !== false;
        messages.push(...page.messages);
        if (page.messages.length === 0) break;
      }
    } else {
      let page = { more: true };
      for (let before; page.more && messages.length < history; before = messages[0]?.id) {
        page = await read({ before, limit: Math.min(PAGE_MAX, history - messages.length) });
        messages = [...page.messages, ...messages];
        if (page.messages.length === 0) break;
      }
    }
    if (follower.signal.aborted) return;
    if (!isWhole) follower.subscription[emit]("gap", { ...this.target, id: since });
    for (const envelope of messages) follower.replay(envelope);
    follower.release();
  }
}
