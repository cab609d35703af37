/**
 * One tab: it takes part in the election, has the hub if it leads, and knows its own sockets.
 *
 * Invariants:
 * - A tab that is frozen or hidden in the browser's cache does not lead, and has no sockets.
 * - A tab holds a lock of its own while it lives, so that the leader notices its end.
 */

import { Election } from "./election.js";
import { Hub } from "./hub.js";
import { TabSocket } from "./socket.js";

/**
 * How long a leader may take to answer, before another tab takes over. Doubles each time, so that tabs
 * on a slow machine do not take the lead from each other for ever.
 */
const PATIENCE_MS = 2_500;
const PATIENCE_MAX_MS = 40_000;
const AT_ONCE = "reconnect in 0 ms";

/** Whether this browser has what sharing needs. Pages without TLS have no locks. */
export const canShare = () =>
  Boolean(globalThis.navigator?.locks && globalThis.BroadcastChannel && globalThis.document);

export class Tab {
  id = crypto.getRandomValues(new Uint32Array(4)).join("-");
  #name;
  #makeClient;
  #retry;
  #loggedOut;
  #election;
  #channel;
  #hub;
  #sockets = new Set();
  /** Resolves once this tab holds its own lock; undefined while it takes no part. */
  #alive;
  #end;
  #isAsleep = false;
  #patience = PATIENCE_MS;
  #timer;

  /**
   * `makeClient` makes the leader's client; `retry` is called when a leader is connected again, and
   * `loggedOut` when another tab has ended all clients.
   */
  constructor(name, makeClient, { retry, loggedOut }) {
    this.#name = name;
    this.#makeClient = makeClient;
    this.#retry = retry;
    this.#loggedOut = loggedOut;
    this.#election = new Election(name, () => this.#lead(), () => this.#resign());
    document.addEventListener("freeze", this.#suspend);
    document.addEventListener("resume", this.#resume);
    addEventListener("pagehide", this.#suspend);
    addEventListener("pageshow", this.#resume);
    addEventListener("online", this.#wake);
    document.addEventListener("visibilitychange", this.#wake);
  }

  /** Whether this tab has the connection. */
  get isLeader() {
    return this.#hub !== undefined;
  }

  /** A socket to the leader, for a client. */
  open() {
    const socket = new TabSocket(this);
    this.#sockets.add(socket);
    this.#join();
    return socket;
  }

  leave(socket) {
    if (!this.#sockets.delete(socket)) return;
    this.post({ type: "close", socket: socket.id });
  }

  /** Sends to the leader. */
  post(message) {
    this.#channel?.postMessage({ ...message, tab: this.id });
  }

  /** Takes no part any more, until a socket is opened. Another tab leads then. */
  stop() {
    this.#stop("the client is closed");
  }

  /** Ends the clients of all tabs. */
  logout() {
    this.#start();
    this.post({ type: "logout" });
    this.#stop("logged out");
  }

  #join() {
    if (this.#isAsleep || this.#sockets.size === 0) return;
    this.#start();
    this.#ask();
  }

  #start() {
    if (this.#channel) return;
    this.#channel = new BroadcastChannel(this.#name);
    this.#channel.onmessage = ({ data }) => this.#receive(data);
    this.#alive = new Promise((resolve) => {
      const ended = new Promise((end) => {
        this.#end = end;
      });
      navigator.locks.request(`${this.#name} ${this.id}`, () => {
        resolve();
        return ended;
      });
    });
    this.#election.start();
  }

  #stop(reason) {
    clearTimeout(this.#timer);
    for (const { id } of this.#sockets) this.post({ type: "close", socket: id });
    this.#election.stop();
    this.#end?.();
    this.#channel?.close();
    this.#channel = this.#alive = undefined;
    // A lock of this name may still be waited for.
    this.id = crypto.getRandomValues(new Uint32Array(4)).join("-");
    const sockets = [...this.#sockets];
    this.#sockets.clear();
    for (const socket of sockets) socket.end(reason);
  }

  /* Leading. */

  #lead() {
    const term = crypto.getRandomValues(new Uint32Array(4)).join("-");
    // A channel does not deliver to itself, and this tab's own sockets want to hear the hub.
    const channel = new BroadcastChannel(this.#name);
    const over = new AbortController();
    const watched = new Map();
    const watch = (tab) => {
      const { signal } = over;
      const toEnd = (resolve) => {
        navigator.locks.request(`${this.#name} ${tab}`, { signal }, () => resolve()).catch(() => {});
      };
      if (!watched.has(tab)) watched.set(tab, new Promise(toEnd));
      return watched.get(tab);
    };
    const post = (message) => channel.postMessage({ ...message, term });
    const hub = new Hub(this.#makeClient(), post, watch);
    channel.onmessage = ({ data }) => {
      if (data.tab && (data.term === undefined || data.term === term)) hub.receive(data);
    };
    this.#hub = {
      close() {
        over.abort();
        hub.close();
        channel.close();
      },
    };
  }

  #resign() {
    this.#hub?.close();
    this.#hub = undefined;
  }

  /* Following. */

  /** Asks the leader to open the sockets that are not open yet. */
  async #ask() {
    const alive = this.#alive;
    await alive;
    if (alive !== this.#alive) return;
    for (const { id } of this.#unopened()) this.post({ type: "open", socket: id });
    this.#schedule();
  }

  #unopened() {
    return [...this.#sockets].filter(({ term }) => !term);
  }

  /** A leader that does not answer in time loses the lead. */
  #schedule() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (this.#unopened().length === 0) return;
      this.#patience = Math.min(PATIENCE_MAX_MS, this.#patience * 2);
      this.#election.seize();
      this.#schedule();
    }, this.#patience);
  }

  #receive({ type, term, to, key, texts, code, reason, tab }) {
    if (type === "logout") {
      this.#loggedOut();
      this.#stop("logged out in another tab");
    }
    // Of a tab, for the leader.
    if (tab) return;
    const mine = [...this.#sockets].filter(({ id }) => to === undefined || id === to);
    if (type === "hello") {
      this.#endThose((socket) => socket.term && socket.term !== term, "another tab leads");
      this.#ask();
    } else if (type === "bye") {
      this.#endThose((socket) => socket.term === term, "the leading tab is gone");
    } else if (type === "up") this.#retry();
    else if (type === "seen" && mine.length > 0) clearTimeout(this.#timer);
    else if (type === "frames") {
      for (const socket of mine) {
        // The first one that is meant for a socket opens it.
        if (to !== undefined) socket.term ??= term;
        if (socket.term === term) socket.receive(key, texts);
      }
    } else if (type === "closed") {
      clearTimeout(this.#timer);
      const isMeant = (socket) => mine.includes(socket) && (socket.term ?? term) === term;
      this.#endThose(isMeant, reason, code);
    }
  }

  #endThose(condition, reason, code) {
    const ended = [...this.#sockets].filter(condition);
    for (const socket of ended) {
      this.#sockets.delete(socket);
      socket.end(code === undefined ? `${reason}; ${AT_ONCE}` : reason, code);
    }
  }

  /* The life of the page. */

  #suspend = () => {
    this.#isAsleep = true;
    if (this.#channel) this.#stop(`this tab was asleep; ${AT_ONCE}`);
  };

  #resume = () => {
    this.#isAsleep = false;
    this.#join();
    this.#retry();
  };

  #wake = () => {
    if (!document.hidden) this.post({ type: "wake" });
  };

  /** The user wants the connection now. */
  connect() {
    this.post({ type: "connect" });
  }
}
