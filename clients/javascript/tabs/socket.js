/**
 * What a tab's client takes for its WebSocket: it talks to the leading tab, which may be this one.
 *
 * Invariant: a message that is to be suppressed (`echo: false`) comes after the answer to its publish,
 * which names its id. The connection is not this tab's own, so the server sends it the message.
 */

import { commandsOf, keyOf } from "./envelope.js";

const LOST = 1006;
/** Frames whose order counts. What answers a request may overtake them. */
const ORDERED = new Set([
  ...["subscribed", "message", "erased", "gap", "conflated", "presence", "state", "ended"],
  "unsubscribed",
]);

export class TabSocket {
  onmessage = null;
  onclose = null;
  onerror = null;
  bufferedAmount = 0;
  /** Whoever closes it speaks for Throng. */
  protocol = "throng.v1";
  /** The leader that has answered; undefined while it is being opened. */
  term;
  id = crypto.getRandomValues(new Uint32Array(4)).join("-");
  #tab;
  /** Targets of which it has asked for messages. */
  #keys = new Set();
  /** The unanswered publishes whose messages are to be suppressed: their numbers by `ref`, ascending. */
  #silent = new Map();
  #count = 0;
  /** Frames that are held back in their order, each with the number of the last publish before it. */
  #held = [];

  constructor(tab) {
    this.#tab = tab;
  }

  send(text) {
    const frame = JSON.parse(text);
    if (frame.type === "subscribe") for (const each of commandsOf(frame)) this.#keys.add(keyOf(each));
    if (frame.type === "unsubscribe") for (const each of commandsOf(frame)) this.#keys.delete(keyOf(each));
    if (frame.type === "publish" && frame.echo === false) {
      this.#silent.delete(frame.ref);
      this.#silent.set(frame.ref, ++this.#count);
    }
    this.#tab.post({ type: "frame", term: this.term, socket: this.id, text });
  }

  close() {
    this.#tab.leave(this);
  }

  /** Frames from the leader: for this socket, or for all that follow `key`. */
  receive(key, texts) {
    if (key !== undefined && !this.#keys.has(key)) return;
    for (const text of texts) this.#take(text);
  }

  /** Ends it as a server would, or a network. */
  end(reason, code = LOST) {
    const { onclose } = this;
    this.onmessage = this.onclose = null;
    onclose?.({ code, reason });
  }

  #take(text) {
    if (this.#silent.size === 0) return this.onmessage?.({ data: text });
    const { type, ref } = JSON.parse(text);
    if (ORDERED.has(type)) return void this.#held.push({ text, after: this.#count });
    this.onmessage?.({ data: text });
    if (!this.#silent.delete(ref)) return;
    const [unanswered = Infinity] = this.#silent.values();
    while (this.#held[0]?.after < unanswered) this.onmessage?.({ data: this.#held.shift().text });
  }
}
