/**
 * A followed channel and its subscriptions.
 *
 * `subscribe` returns a `Subscription`. All subscriptions of a channel share a `Cursor`, which the
 * links advance. A subscription that joins later and wants older messages reads them from the
 * history; live messages are queued until then.
 *
 * Invariants:
 * - A cursor's position is an id from the server, and no message after it has been delivered. So a
 *   connection may be lost at any time and resumed from the positions.
 * - Each subscription gets each message once and in order, and "gap" before the messages after it.
 * - A cursor has no position while a state begins: if the connection is lost, all of it comes again,
 *   after a "gap".
 */

import { emit, Emitter } from "./emitter.js";
import { persist } from "./http.js";
import { isUpTo, keyOf, toNotice } from "./message.js";
import { check } from "./options.js";

/** An epoch and an offset of 64 bits have less. A longer one would be after all others. */
const ID_LENGTH_MAX = 64;
const EVENTS = [
  ...["message", "subscribed", "recovered", "gap", "conflated", "erased", "unreadable", "presence"],
  ...["state", "ended", "error"],
];

export class Subscription extends Emitter {
  constructor(target, end, update) {
    super(EVENTS);
    Object.assign(this, target, { unsubscribe: end, update });
  }

  /** Listens to the messages with this event. Returns a function that removes the listener. */
  onEvent(event, listener) {
    return this.on("message", (message) => {
      if (message.event === event) return listener(message);
    });
  }
}

/** A subscription with the state that its cursor keeps for it. */
class Follower {
  /** Events queued while older messages are read (`read.js`); undefined at all other times. */
  queued;
  /** The id of the last message. */
  #last;
  #end = new AbortController();
  signal = this.#end.signal;

  constructor(subscription, takesReplay) {
    this.subscription = subscription;
    /** Whether it gets older messages from the cursor: it has requested them. */
    this.takesReplay = takesReplay;
  }

  close() {
    this.#end.abort();
  }

  receive(name, value) {
    // After an error there is nothing to wait for.
    if (this.queued && name !== "error") this.queued.push([name, value]);
    else this.pass(name, value);
  }

  /** Emits an event, unless it is a message or a notice in place of one that was emitted before. */
  pass(name, value) {
    if (this.signal.aborted) return;
    // A state may begin again after it, with messages that were emitted before.
    if (name === "gap") this.#last = undefined;
    if ((name === "message" || name === "erased") && value.id !== undefined) {
      if (isUpTo(value.id, this.#last)) return;
      this.#last = value.id;
    }
    this.subscription[emit](name, value);
    if (/^(ended|error)$/.test(name)) this.close();
  }
}

/** The client's position in one channel. Links advance it; it passes events to subscriptions. */
export class Cursor {
  /** The connection that follows it. */
  connection;
  /** The id to resume after; undefined until the server has named one. */
  position;
  /** The number of its channel in compact messages of its connection. */
  number;
  /** The newest id at the time of subscribing: messages up to it are replayed. */
  head;
  /** The connection was lost; the next response says whether messages were. */
  isInterrupted = false;
  /** The subscription is active on the server, so that the client gets its own messages. */
  isLive = false;
  isClosed = false;
  /** Who follows the channel, as last seen. */
  #here;
  /** The members of a channel that has a list of them, and those of a list that is coming. */
  #members;
  #listed = new Map();
  #hasStarted = false;
  /** The values of a state are coming. */
  #isBeginning = false;
  /** The id of the last delivered message. Unlike `position`, never an announced id. */
  #delivered;
  #followers = new Map();
  #start;
  #started = new Promise((resolve) => {
    this.#start = resolve;
  });

  constructor(target, { history = 0, since, presence, info, pace, state } = {}) {
    this.target = target;
    /** Whether a subscription wants the newest message of each key. */
    this.wantsState = state;
    /** Whether a subscription wants presence events. */
    this.presence = presence;
    /** What the client shows to the other members. */
    this.info = info;
    /** The fastest pace of all its subscriptions in ms; undefined if one takes what comes. */
    this.pace = pace;
    this.key = keyOf(target);
    this.history = history;
    this.position = since;
  }

  /** Whether the history must be requested first: over HTTP, for a position to subscribe after. */
  get needsStart() {
    return !this.position || (!this.#hasStarted && !this.head);
  }

  get isUnused() {
    return this.#followers.size === 0;
  }

  /**
   * Adds a subscription. The first gets older messages from the cursor; to others `replayOlder`
   * delivers them, or fails if it may work later.
   */
  join(subscription, options, replayOlder) {
    const isFirst = this.isUnused && !this.#hasStarted;
    const follower = new Follower(subscription, isFirst);
    this.#followers.set(subscription, follower);
    if (isFirst) return;
    const wantsOlder = options.since !== undefined || options.history > 0 || options.state;
    if (wantsOlder) follower.queued = [];
    this.#joinLate(follower, wantsOlder && replayOlder);
  }

  /** Takes on what one more subscription wants. True if the server does not know that yet. */
  widen({ presence, info, pace = 0, state }) {
    // Later, if all must come again: the subscription reads the state itself.
    if (state) this.#started.then(() => (this.wantsState = true));
    const isMore = presence && !this.presence;
    const isFaster = pace < (this.pace ?? 0);
    if (isMore) this.presence = true;
    if (info) this.update(info);
    if (isFaster) this.pace = pace || undefined;
    return isMore || isFaster;
  }

  /** Shows something else to the other members, from now on, if the connection can. */
  update(info) {
    this.connection?.link?.show?.(this, info);
    this.info = info;
  }

  part(subscription) {
    this.#followers.get(subscription)?.close();
    this.#followers.delete(subscription);
  }

  /** Handles the server's confirmation; `recovered` is undefined if no id was sent. */
  follow({ id, head, recovered }) {
    this.#listed = new Map();
    if (!this.#hasStarted) {
      this.#hasStarted = true;
      this.#isBeginning = this.wantsState && !this.position;
      if (!this.#isBeginning) this.position ??= id;
      this.head ??= head;
      this.#start();
      for (const follower of this.#followers.values()) {
        if (follower.takesReplay) follower.receive("subscribed", { ...this.target, id });
      }
    } else if (this.wantsState && !this.position) recovered = false;
    if (recovered === false) this.#miss(id);
    else if (this.isInterrupted && recovered) this.#emit("recovered", { ...this.target });
    this.isInterrupted = false;
  }

  /** Messages are missing: a cursor that wants the state gets all of it again. */
  #miss(id) {
    this.gap({ id });
    if (!this.wantsState) return;
    this.#isBeginning = true;
    this.position = this.#delivered = this.head = undefined;
  }

  /** All values have come, as they were at the message with this id. */
  endState({ id }) {
    check(typeof id === "string", "it has a bad id");
    this.#isBeginning = false;
    this.position = id;
    this.#emit("state", { ...this.target, id });
  }

  gap({ id, missed }) {
    check(id === undefined || typeof id === "string", "it has a bad id");
    if (id && !this.#isBeginning) this.position = id;
    this.#emit("gap", { ...this.target, id, missed });
  }

  /** Messages of this number were skipped for newer ones, which is no gap. */
  skip(count) {
    this.#emit("conflated", { ...this.target, count });
  }

  /** Delivers a message. `read` makes it from its envelope, or reports one that is unreadable. */
  take(envelope, read, isSilent = false) {
    const { id, data } = envelope;
    // A volatile message has no id: it is not kept, and moves no position.
    if (id === undefined && data !== undefined) return this.#pass(envelope, read, false);
    check(typeof id === "string" && id.length <= ID_LENGTH_MAX, "it has no id");
    if (this.isClosed || isUpTo(id, this.#delivered)) return;
    const isReplayed = isUpTo(id, this.head);
    // Also past one that is unreadable: it would be so again.
    this.#delivered = id;
    if (!this.#isBeginning) this.position = id;
    if (!isReplayed) this.head = undefined;
    if (!isSilent) this.#pass(envelope, read, isReplayed);
  }

  #pass(envelope, read, isReplayed) {
    const followers = [...this.#followers.values()];
    const takers = isReplayed ? followers.filter(({ takesReplay }) => takesReplay) : followers;
    const notice = toNotice(envelope);
    const message = notice ?? read(envelope, isReplayed, takers);
    const name = notice ? "erased" : "message";
    if (message) for (const follower of takers) follower.receive(name, message);
  }

  /** Handles a presence event. */
  see({ type, joined, left, ...here }) {
    if (here.event) return this.#seeMember(here);
    this.#here = here;
    this.#emit("presence", { ...here, joined, left });
  }

  /**
   * Handles the event of a member, or of the list. Until the first list is complete, nobody hears of
   * it.
   */
  #seeMember({ event, time = Date.now(), member = {}, partial }) {
    const [members, listed] = [this.#members ?? new Map(), this.#listed];
    const isFirst = !this.#members;
    const changes = { joined: [], updated: [], left: [] };
    const set = (key, member) => {
      const before = members.get(key);
      if (before && JSON.stringify(before.info) === JSON.stringify(member.info)) return;
      members.set(key, member);
      changes[before ? "updated" : "joined"].push(key);
    };
    const remove = (key) => members.delete(key) && changes.left.push({ user: key, last_seen: time });
    // Quoted: it is the server's, and not the one of cursors, which gets a short name.
    const key = member["connection"] ?? member.user;
    const wasPartial = this.#here?.partial;
    if (event === "state") {
      this.#members = members;
      for (const key of members.keys()) if (!listed.has(key)) remove(key);
      for (const [key, member] of listed) set(key, member);
    } else if (key) {
      partial = wasPartial;
      if (event === "leave") listed.delete(key);
      else listed.set(key, member);
      if (!isFirst) (event === "leave" ? remove : set)(key, member);
    }
    const hasNews = Object.values(changes).flat().length || partial !== wasPartial;
    if (isFirst ? !this.#members : !hasNews) return;
    const see = (changes) => ({
      ...this.target,
      time,
      members,
      get users() {
        return [...new Set([...members.values()].flatMap(({ user }) => user ?? []))];
      },
      connections: members.size,
      more: false,
      partial,
      ...changes,
    });
    this.#here = see();
    this.#emit("presence", see(isFirst ? {} : changes));
  }

  /**
   * Ends all subscriptions: with "error", because the server has refused the channel, or with "ended",
   * which those that still read older messages get behind them.
   */
  end(name, value) {
    this.isClosed = true;
    this.#emit(name, value);
  }

  #emit(name, value) {
    for (const follower of [...this.#followers.values()]) follower.receive(name, value);
  }

  async #joinLate(follower, replayOlder) {
    // Messages between a read and a later start of the subscription would be missing.
    await this.#started;
    const { subscription, signal } = follower;
    if (signal.aborted) return;
    subscription[emit]("subscribed", { ...this.target, id: this.position });
    if (this.#here) subscription[emit]("presence", this.#here);
    if (replayOlder) await persist(() => replayOlder(follower), signal);
  }
}
