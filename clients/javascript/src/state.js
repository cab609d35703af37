/** The state of a channel: the newest message of each of its keys. */

import { emit, Emitter } from "./emitter.js";
import { isUpTo } from "./message.js";

export class ChannelState extends Emitter {
  /** Whether it is that of the channel: until its end has come, keys are missing. */
  isComplete = false;
  #subscription;
  #messages = new Map();
  /** The messages of a state that has begun, and is not complete. */
  #next = new Map();

  /** `subscribe` is called with the options and a listener for messages. */
  constructor(subscribe) {
    super(["change", "complete", "ended", "error"]);
    this.#subscription = subscribe({ state: true }, (message) => this.#take(message));
    // Keys may be gone of which nothing will tell. What is known is shown until all is known again.
    this.#subscription.on("gap", () => (this.#next = new Map()));
    this.#subscription.on("erased", (notice) => this.#forget(notice));
    for (const name of ["ended", "error"]) this.#subscription.on(name, (value) => this[emit](name, value));
    this.#subscription.on("state", () => this.#end());
  }

  get size() {
    return this.#messages.size;
  }

  /** The value of a key; undefined if it has none. */
  get(key) {
    return this.#messages.get(key)?.data;
  }

  /** The message that has set a key, with its id. */
  message(key) {
    return this.#messages.get(key);
  }

  /** All keys with their values, those that were set last at the end. */
  entries() {
    return [...this.#messages].map(([key, { data }]) => [key, data]);
  }

  /** Ends the subscription. */
  close() {
    this.#subscription.unsubscribe();
  }

  #take(message) {
    const { stateKey: key, tombstone, data } = message;
    if (key === undefined) return;
    for (const messages of [this.#messages, this.#next]) {
      messages?.delete(key);
      if (!tombstone) messages?.set(key, message);
    }
    this[emit]("change", tombstone ? { key, message } : { key, value: data, message });
  }

  #end() {
    const before = this.#messages;
    this.#messages = this.#next ?? before;
    this.#next = undefined;
    this.isComplete = true;
    for (const key of before.keys()) {
      if (!this.#messages.has(key)) this[emit]("change", { key });
    }
    this[emit]("complete");
  }

  #forget({ erased, erasedUpTo }) {
    for (const messages of [this.#next ?? [], this.#messages]) {
      for (const [key, { id }] of messages) {
        if (id !== erased && !isUpTo(id, erasedUpTo)) continue;
        messages.delete(key);
        if (messages === this.#messages) this[emit]("change", { key });
      }
    }
  }
}
