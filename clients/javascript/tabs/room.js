/**
 * A channel that the leading tab follows for all tabs. It keeps the latest messages, so that a tab
 * that was following another leader a moment ago gets what it lacks without a request.
 */

import { isUpTo, keyOf, toErased, toFrame, toUnreadable } from "./envelope.js";

/** The messages that are kept. A tab that lacks more reads them from the server's history. */
const RECENT_MAX = 200;
/** The server's limit of messages on a page of history. */
const PAGE_MAX = 1_000;

export class Room {
  /** The sockets that follow it. */
  members = new Set();
  /** The last presence event. */
  here;
  #client;
  #target;
  #subscription;
  #watcher;
  #tell;
  /** The latest messages as frames, and the id before the first of them. */
  #recent = [];
  #floor;
  /** The frame that tells of the end of the channel, if it has ended. */
  ended = [];
  /** Resolves when the subscription is active; rejects with the server's refusal. */
  started;

  /** `tell` is called with the text of each frame for the members, `end` with what ends the room. */
  constructor(client, target, begin, { tell, end }) {
    this.#client = client;
    this.#target = target;
    this.#tell = tell;
    this.key = keyOf(target);
    const listen = (message) => this.#take(toFrame(message));
    this.#subscription = client.subscribe(target, begin, listen);
    this.#subscription.on("unreadable", (message) => this.#take(toUnreadable(message)));
    this.#subscription.on("erased", (notice) => this.#erase(notice));
    this.started = new Promise((resolve, reject) => {
      this.#subscription.on("subscribed", ({ id }) => {
        this.#floor ??= id;
        resolve();
      });
      this.#subscription.on("error", (error) => {
        reject(error);
        const { code, message } = error;
        end({ type: "unsubscribed", code, message });
      });
    });
    this.#subscription.on("ended", ({ id }) => {
      this.ended = [end({ type: "ended", id })];
      this.#watcher?.unsubscribe();
    });
    this.started.catch(() => {});
    this.#subscription.on("gap", ({ id, missed }) => {
      this.#floor = id ?? this.position;
      this.#recent = [];
      tell(JSON.stringify({ type: "gap", ...target, id, missed }));
    });
    this.#subscription.on("conflated", ({ count }) => {
      tell(JSON.stringify({ type: "conflated", ...target, count }));
    });
  }

  get position() {
    return this.#recent.at(-1)?.id ?? this.#floor;
  }

  /** Follows the channel at this pace, if it is faster: the client keeps the fastest that was asked for. */
  hasten(pace) {
    this.#client.subscribe(this.#target, { pace }).unsubscribe();
  }

  /** Follows the channel's presence, too. */
  watch() {
    if (this.#watcher) return;
    this.#watcher = this.#client.subscribe(this.#target, { presence: true });
    // The other subscription of the channel reports it.
    this.#watcher.on("error", () => {});
    this.#watcher.on("presence", ({ error, joined, left, ...here }) => {
      const { code, message } = error ?? {};
      this.here = { type: "presence", ...here, ...(error && { error: { code, message } }) };
      this.#tell(JSON.stringify({ ...this.here, joined, left }));
    });
  }

  close() {
    this.#subscription.unsubscribe();
    this.#watcher?.unsubscribe();
  }

  /**
   * Calls `begin` with what a tab lacks that follows the channel from now on: the frames after
   * `since`, or the latest `history`, and whether all after `since` are there. Called at once when
   * they are known, so that no message comes between.
   */
  async join({ since, history = 0, state }, begin) {
    await this.started;
    if (since === undefined && state) return this.#joinWithState(undefined, begin);
    const frames = since === undefined && history > 0 ? await this.#latest(history) : [];
    let from = since ?? frames.at(-1)?.id ?? this.position;
    let recovered = since === undefined ? undefined : true;
    for (;;) {
      const rest = this.#after(from);
      if (rest) return begin([...frames, ...rest], recovered);
      if (state) return this.#joinWithState(false, begin);
      const page = await this.#read({ after: from, limit: PAGE_MAX });
      const last = page.messages.at(-1)?.id ?? page.id;
      // Without progress, what comes next is not kept any more.
      const isWhole = page.recovered !== false && last !== from;
      if (!isWhole && since !== undefined) recovered = false;
      frames.push(...page.messages.map(toFrame));
      if (last === from) return begin(frames, recovered);
      from = last;
    }
  }

  /** Begins with the state of the channel, in place of what a tab has missed. */
  async #joinWithState(recovered, begin) {
    const frames = [];
    const end = await new Promise((resolve, reject) => {
      const reading = this.#client.subscribe(this.#target, { state: true }, (message) => {
        frames.push(toFrame(message));
      });
      reading.on("error", reject);
      reading.on("state", ({ id }) => {
        reading.unsubscribe();
        resolve(id);
      });
    });
    const text = JSON.stringify({ type: "state", ...this.#target, id: end });
    const rest = this.#after(end) ?? this.#recent;
    return begin([...frames, { id: end, text }, ...rest], recovered);
  }

  async #latest(count) {
    let frames = [];
    let page = { more: true };
    for (let before; page.more && frames.length < count; before = frames[0].id) {
      page = await this.#read({ before, limit: Math.min(PAGE_MAX, count - frames.length) });
      frames = [...page.messages.map(toFrame), ...frames];
      if (page.messages.length === 0) break;
    }
    return frames;
  }

  /** A page of history; for a client that may not read it, an empty one with a gap. */
  async #read(page) {
    try {
      return await this.#client.history(this.#target, page);
    } catch (error) {
      if (error.status !== 403) throw error;
      return { id: this.position, messages: [], more: false, recovered: false };
    }
  }

  /** The kept frames after `id`; undefined if there may be others between. */
  #after(id) {
    if (isUpTo(this.position, id)) return [];
    if (!isUpTo(this.#floor, id)) return undefined;
    return this.#recent.filter((frame) => !isUpTo(frame.id, id));
  }

  /** Passes a notice on, and keeps no message of which it tells. */
  #erase(notice) {
    const { erased, erasedUpTo } = notice;
    const isGone = ({ id }) => id === erased || (erasedUpTo && isUpTo(id, erasedUpTo));
    // The frames that are left are still all that there are after the floor.
    this.#recent = this.#recent.filter((frame) => !isGone(frame));
    this.#take(toErased(notice));
  }

  #take(frame) {
    if (frame.id !== undefined) this.#recent.push(frame);
    if (this.#recent.length > RECENT_MAX) this.#floor = this.#recent.shift().id;
    this.#tell(frame.text);
  }
}
