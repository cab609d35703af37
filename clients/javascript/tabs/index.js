/**
 * One connection for all tabs of a browser: a `Throng` whose connection is that of the leading tab.
 *
 * Each tab has a whole client, with its positions, retries and outbox; only its WebSocket is one to the
 * leading tab (`TabSocket`), which follows the channels of all tabs with a client of its own (`Hub`). So a
 * tab resumes at another leader as a client resumes at another server.
 *
 * Layout, from the bottom up: `envelope.js`, `room.js`, `hub.js`; `socket.js`, `election.js`, `tab.js`.
 */

import { Throng } from "@throng-push/client";
import { canShare, Tab } from "./tab.js";

/** A client that shares its connection with those of the other tabs of the same user. */
export class SharedThrong extends Throng {
  #tab;

  constructor(url, options = {}) {
    const isUrl = typeof url === "string" || url instanceof URL;
    const { group, ...given } = (isUrl || url === undefined ? options : url) ?? {};
    const base = isUrl ? url : undefined;
    const { user, token, getToken } = given;
    if (group === undefined && user === undefined && (token ?? getToken) !== undefined) {
      throw new TypeError('give "user" or "group", so that tabs of different users share nothing');
    }
    let tab;
    const isShared = canShare();
    const own = { transports: ["websocket"], WebSocket: toConstructor(() => tab.open()) };
    super(base, isShared ? { ...given, ...own } : given);
    if (!isShared) return;
    // Wrong options are an error now, and not when this tab leads.
    new Throng(base, given).close();
    const server = new URL(base ?? location.origin, location.href).href;
    const name = `throng ${JSON.stringify([server, group ?? user ?? null])}`;
    const makeClient = () => new Throng(base, given);
    const retry = () => {
      if (this.state === "waiting") super.connect();
    };
    tab = this.#tab = new Tab(name, makeClient, { retry, loggedOut: () => super.close() });
  }

  /** Whether this browser can share a connection; if not, this tab has one of its own. */
  get isShared() {
    return this.#tab !== undefined;
  }

  /** Whether the connection is this tab's. */
  get isLeader() {
    return this.#tab?.isLeader ?? true;
  }

  connect() {
    this.#tab?.connect();
    super.connect();
  }

  /** Closes this tab's client. If it has the connection, another tab takes over. */
  close() {
    super.close();
    this.#tab?.stop();
  }

  /** Closes the clients of all tabs. */
  logout() {
    super.close();
    this.#tab?.logout();
  }
}

/** A class for `new`, which returns what `make` makes. */
function toConstructor(make) {
  return function WebSocket() {
    return make();
  };
}
