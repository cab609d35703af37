/**
 * The leading tab's side: one client, on which the sockets of all tabs follow channels and publish. It
 * answers their frames as a server does.
 *
 * Invariants:
 * - A socket gets "subscribed" and what it lacks in one message, and everything after that live. So
 *   no message can come between them.
 * - Sockets are open only while the client is connected, or has nothing to be connected for.
 */

import { commandsOf, dataOf, keyOf, targetOf } from "./envelope.js";
import { Room } from "./room.js";

/** A tab notices within this time and some 5 s that this one does not answer. */
const HEARTBEAT_SECONDS = 10;
/** How long channels are followed whose tabs have to come back after a loss. */
const RETURN_MS = 10_000;
/** Close codes that tell the clients of other tabs why the server has refused this one. */
const CLOSE_CODES = { token_expired: 4002, unauthorized: 4003, token_revoked: 4004, forbidden: 4005 };
const DISCONNECTED_FOR_GOOD = 4500;
const LOST = 1006;
/** Errors of a publish after which the other client tries again. */
const RETRIED = { timeout: "outcome_unknown", queue_full: "busy" };
/** Errors of a read after which a tab subscribes again. */
const TEMPORARY = new Set(["unreachable", "timeout", "token_failed", "closed", "busy", "unavailable"]);

export class Hub {
  #client;
  #post;
  #watchTab;
  /** By the id of the socket: its tab, whether it has its welcome, and what it follows. */
  #sockets = new Map();
  #rooms = new Map();
  /** In state `waiting`: when the client tries again, and why. */
  #due = { at: 0, reason: "" };
  #failure;
  #returnTimer;

  /**
   * `post` sends to the tabs. `watchTab(tab)` returns a promise of the tab's end.
   */
  constructor(client, post, watchTab) {
    this.#client = client;
    this.#post = post;
    this.#watchTab = watchTab;
    client.on("state", (change) => this.#changed(change));
    client.on("error", (error) => this.#fail(error));
    client.on("unread", (marker) => this.#send(undefined, { type: "unread", ...marker }));
    post({ type: "hello" });
  }

  close() {
    clearTimeout(this.#returnTimer);
    this.#client.close();
    this.#post({ type: "bye" });
    this.#post = () => {};
  }

  receive({ type, tab, socket, text }) {
    if (type === "open") this.#open(tab, socket);
    else if (type === "close") this.#leave(socket);
    else if (type === "frame" && this.#sockets.get(socket)?.isOpen) {
      for (const command of commandsOf(JSON.parse(text))) this.#answer(socket, command);
    } else if (type === "wake" && this.#client.state === "waiting") this.#client.connect();
    else if (type === "connect" && /^(waiting|closed)$/.test(this.#client.state)) {
      this.#failure = undefined;
      this.#client.connect();
    }
  }

  /* Sockets. */

  #open(tab, socket) {
    this.#post({ type: "seen", to: socket });
    if (this.#sockets.has(socket)) return;
    const { state } = this.#client;
    if (this.#failure || state === "waiting" || state === "closed") return this.#refuse(socket);
    this.#sockets.set(socket, { tab, isOpen: false, rooms: new Set() });
    // What a tab that is gone has followed must end.
    this.#watchTab(tab).then(() => this.#leave(socket));
    if (state !== "connecting") this.#welcome(socket);
  }

  #welcome(socket) {
    this.#sockets.get(socket).isOpen = true;
    const { unread } = this.#client;
    const told = unread ? [{ type: "unread", ...unread }] : [];
    this.#send(socket, { type: "welcome", heartbeat: HEARTBEAT_SECONDS }, ...told);
  }

  /** Closes a socket, or all, for the reason that this client is not connected. */
  #refuse(to) {
    const { code, message } = this.#failure ?? {};
    const delayMs = Math.max(0, Math.ceil(this.#due.at - Date.now()));
    const reason = message ?? `${this.#due.reason}; reconnect in ${delayMs} ms`;
    const closeCode = this.#failure ? (CLOSE_CODES[code] ?? DISCONNECTED_FOR_GOOD) : LOST;
    this.#post({ type: "closed", to, code: closeCode, reason });
  }

  #leave(socket) {
    const rooms = this.#sockets.get(socket)?.rooms ?? [];
    this.#sockets.delete(socket);
    for (const room of rooms) this.#part(room, socket);
  }

  #send(socket, ...frames) {
    this.#post({ type: "frames", to: socket, texts: frames.map((frame) => JSON.stringify(frame)) });
  }

  /** Sends the answer to a subscription, and the texts of what follows. */
  #begin(socket, subscribed, texts) {
    this.#post({ type: "frames", to: socket, texts: [JSON.stringify(subscribed), ...texts] });
  }

  /* The client. */

  #changed({ state, delayMs = 0, reason = "" }) {
    if (state === "open") {
      for (const [socket, { isOpen }] of this.#sockets) if (!isOpen) this.#welcome(socket);
      this.#post({ type: "up" });
      clearTimeout(this.#returnTimer);
      this.#returnTimer = setTimeout(() => this.#sweep(), RETURN_MS);
    } else if (state === "waiting") {
      this.#due = { at: Date.now() + delayMs, reason };
      this.#dropSockets();
    }
  }

  #fail(error) {
    this.#failure = error;
    this.#dropSockets();
  }

  /** Closes all sockets. Their channels stay, because their tabs come back. */
  #dropSockets() {
    this.#sockets.clear();
    for (const room of this.#rooms.values()) room.members.clear();
    this.#refuse();
  }

  #sweep() {
    for (const room of this.#rooms.values()) this.#part(room);
  }

  /* Frames. */

  #answer(socket, frame) {
    const { type, ref } = frame;
    if (type === "ping") this.#send(socket, { type: "pong", ref });
    else if (type === "publish") this.#publish(socket, frame);
    else if (type === "subscribe") this.#subscribe(socket, frame);
    else if (type === "unsubscribe") {
      const room = this.#rooms.get(keyOf(frame));
      if (room?.members.has(socket)) this.#part(room, socket);
    }
  }

  async #publish(socket, frame) {
    const { ref, key, content_type: contentType, expires_in: expiresInSeconds } = frame;
    const { volatile, event, tags, state_key: stateKey } = frame;
    try {
      const options = { key, contentType, expiresInSeconds, volatile, event, tags, stateKey };
      const published = await this.#client.publish(targetOf(frame), dataOf(frame), options);
      this.#send(socket, { type: "published", ...targetOf(frame), ...published, ref });
    } catch (error) {
      const code = RETRIED[error.code] ?? error.code ?? "bad_request";
      // The tab publishes again, by the next leader.
      if (this.#client.state !== "closed") this.#send(socket, { type: "error", code, message: error.message, ref });
    }
  }

  async #subscribe(socket, frame) {
    const { ref, since, presence, pace, isListed } = frame;
    const target = targetOf(frame);
    // The answer to a list comes in parts: one for each channel, with what that begins with.
    const part = (fields) => ({ type: "subscribed", channels: [{ ...target, ...fields }], ref });
    try {
      const room = this.#roomOf(target, since, pace);
      room.members.add(socket);
      this.#sockets.get(socket).rooms.add(room);
      if (presence) room.watch();
      await room.join(frame, (frames, recovered) => {
        if (!room.members.has(socket)) return;
        const id = recovered ? since : room.position;
        const head = frames.at(-1)?.id;
        const own = { id, head, recovered };
        const subscribed = isListed ? part(own) : { type: "subscribed", ...target, ...own, ref };
        const here = presence && room.here ? [JSON.stringify(room.here)] : [];
        this.#begin(socket, subscribed, [...frames.map(({ text }) => text), ...here, ...room.ended]);
      });
    } catch (error) {
      const isTemporary = error.status >= 429 || TEMPORARY.has(error.code);
      const code = isTemporary ? "busy" : (error.code ?? "bad_request");
      const failed = { code, message: error.message };
      this.#send(socket, isListed ? part({ error: failed }) : { type: "error", ...failed, ref });
    }
  }

  #roomOf(target, since, pace) {
    const key = keyOf(target);
    const known = this.#rooms.get(key);
    if (known) {
      known.hasten(pace);
      return known;
    }
    const room = new Room(this.#client, target, { since, pace }, {
      tell: (text) => this.#post({ type: "frames", key, texts: [text] }),
      end: (frame) => {
        this.#rooms.delete(key);
        const text = JSON.stringify({ ...target, ...frame });
        this.#post({ type: "frames", key, texts: [text] });
        return text;
      },
    });
    this.#rooms.set(key, room);
    return room;
  }

  /** A socket leaves a room; the last one closes it. */
  #part(room, socket) {
    room.members.delete(socket);
    this.#sockets.get(socket)?.rooms.delete(room);
    if (room.members.size > 0 || this.#rooms.get(room.key) !== room) return;
    this.#rooms.delete(room.key);
    room.close();
  }
}
