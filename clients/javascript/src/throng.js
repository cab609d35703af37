/**
 * The client of Throng: follows channels and a user's inbox, publishes, reconnects and resumes.
 * For browsers and Node, without dependencies.
 *
 * Layout, from the bottom up: `Cursor` (the position in one channel) and its subscriptions; the
 * links `SocketLink`, `StreamLink` and `PollLink` (one attempt at one transport, from opening to
 * loss); `Connection` (its current link and its retries); `Outbox` (messages being published);
 * `Throng` (all channels, spread over connections). What needs no WebSocket is a part of its own,
 * loaded on first use: `http-part.js`.
 */

import { Connection } from "./connection.js";
import { emit, Emitter, hears } from "./emitter.js";
import { Loss, ThrongError } from "./errors.js";
import { isForeign, orAborted, toError } from "./http.js";
import { loadHttp } from "./load-http.js";
import { keyOf, toMessage, toName, toNotice, toTarget, toUser } from "./message.js";
import { check, checkNames, checkParam, toOptions, toUrl } from "./options.js";
import { Outbox } from "./outbox.js";
import { ChannelState } from "./state.js";
import { Cursor, Subscription } from "./subscription.js";
import { Tokens } from "./token.js";

export { ThrongError } from "./errors.js";
export { ChannelState } from "./state.js";
export { Subscription } from "./subscription.js";

/** The causes that the console tells of, each once; many more are of one that changes each time. */
const WARNINGS_MAX = 20;

/** Options of messages. */
const LABELS = ["contentType", "event", "tags"];
const LASTING = [...LABELS, "expiresInSeconds"];

/** So that nothing but a message is meant. */
const checkId = (id) => check(typeof id === "string" && id !== "", "name the id of a message");

/** The client. Emits "state" on each change of `state` or `transport`, "error", "unreadable" and "unread". */
export class Throng extends Emitter {
  /** `idle`, `connecting`, `open`, `waiting` (for the next attempt) or `closed`. */
  state = "idle";
  #url;
  #options;
  #cursors = new Map();
  /** The limit of channels per connection; infinite until the server has named one. */
  #channelsMax = Infinity;
  /** At least one. Others are opened because of `#channelsMax`. */
  #connections;
  #outbox;
  #tokens;
  #shared;
  /** The last "state" event. */
  status;
  /** The last "unread" event of each channel, by name, and of the inbox, without one. */
  #unreadOf = new Map();
  #warnings = new Set();

  constructor(url, options = {}) {
    super(["state", "error", "unreadable", "unread"]);
    const isUrl = typeof url === "string" || url instanceof URL;
    const base = isUrl ? url : globalThis.location?.origin;
    check(base !== undefined, "outside a page, give a URL");
    this.#url = toUrl(base);
    this.#options = toOptions(isUrl || url === undefined ? options : url);
    const user = toUser(this.#options.user);
    this.#options.user = user && toName(user, "user");
    this.#tokens = new Tokens(this.#options, (error) => this.#fail(error));
    this.#shared = this.#share();
    this.#outbox = this.#shared.outbox = new Outbox(this.#shared);
    this.#connections = [new Connection(this.#shared, 0)];
    this.status = { state: "idle", transport: this.transport };
    this.#listen(true);
  }

  get transport() {
    return this.#connections[0].transport;
  }

  /**
   * Follows a channel, or the inbox of the client's user, or each of a list. `listener` is one for
   * "message".
   */
  subscribe(target, options = {}, listener) {
    if (typeof options === "function") return this.subscribe(target, {}, options);
    if (Array.isArray(target)) return this.#subscribeAll(target, options, listener);
    if (this.state === "closed") throw new ThrongError("closed", "the client is closed");
    checkNames(options, ["history", "since", "presence", "info", "pace", "state"], "subscribe");
    const isCount = (options.history ?? 0) >= 0 && !(options.history && options.state);
    check(isCount, '"history" must be a number, 0 or more, and excludes "state"');
    if (options.pace !== undefined) checkParam(options, "pace");
    const named = toTarget(target);
    const { user } = this.#options;
    // A client with a token and without `user` leaves it to the server which inbox is its own.
    const { canRenew, current } = this.#tokens;
    const mayBeOwn = named.user === user || (user === undefined && (canRenew || current));
    if (named.user !== undefined && !mayBeOwn) {
      throw new ThrongError("forbidden", "a client follows only the inbox of its own `user`");
    }
    const known = this.#cursors.get(keyOf(named));
    const wanted = { ...options, pace: options.pace ?? this.#options.params.pace };
    const cursor = known ?? new Cursor(named, wanted);
    const end = () => {
      cursor.part(subscription);
      if (cursor.isUnused) this.#leave(cursor);
    };
    const subscription = new Subscription(named, end, (info) => cursor.update(info));
    if (listener) subscription.on("message", listener);
    cursor.join(subscription, options, async (follower) => {
      await (await loadHttp(this.#options)).replayOlder(this.#shared, named, options, follower);
    });
    if (!known) {
      this.#cursors.set(cursor.key, cursor);
      this.#place(cursor);
    } else if (cursor.widen(wanted) && cursor.isLive) cursor.connection.link.renew(cursor);
    return subscription;
  }

  /** Follows each of a list, whose entries may have options of their own. */
  #subscribeAll(targets, options, listener) {
    for (const target of targets) toTarget(target);
    return targets.map((target) => {
      const { channel, user, ...own } = typeof target === "string" ? {} : target;
      return this.subscribe(target, { ...options, ...own }, listener);
    });
  }

  /** Publishes, with retries. Resolves with the id once the server has the message. */
  async publish(target, data, options = {}) {
    const isClosed = this.state === "closed";
    return this.#outbox.publish(toTarget(target), data, options, isClosed);
  }

  async history(target, options = {}) {
    const names = ["limit", "before", "after", "sinceTime", "order"];
    const body = await this.#read(target, "history", options, names);
    const envelopes = body.messages.filter((envelope) => !toNotice(envelope));
    const messages = envelopes.map((envelope) => this.#decode(envelope, true));
    return { ...body, messages: messages.filter(Boolean) };
  }

  /** The last "unread" event of the inbox; undefined until there was one. */
  get unread() {
    return this.unreadOf();
  }

  /**
   * Moves the read marker of the client's user to a message of the inbox, or of a `channel`; without an
   * id, asks where it is. Resolves with the number of messages behind it, which "unread" tells, too.
   */
  async read(id, { channel } = {}) {
    const { user } = this.#options;
    check(user, 'who reads? Give the client the option "user"');
    const marker = await (await loadHttp(this.#options)).mark(this.#shared, { channel, user }, id);
    this.#tellUnread(marker);
    return marker;
  }

  unreadOf(channel) {
    return this.#unreadOf.get(channel);
  }

  presence(target, options = {}) {
    return this.#read(target, "presence", options, ["limit", "after"]);
  }

  /** Publishes data in the place of a message, which is erased. Makes one attempt. */
  async edit(target, id, data, options = {}) {
    checkId(id);
    check(data !== undefined, "this data has no JSON");
    return this.#change(target, "edit", LABELS, { id }, data, options);
  }

  /** Sets the value of a key. With `ifMatch`, only if that is the id of its message, in one attempt. */
  async set(target, key, data, options = {}) {
    const { ifMatch, ...more } = options;
    check(data !== undefined, "this data has no JSON");
    if (ifMatch === undefined) return this.publish(target, data, { ...more, stateKey: key });
    return this.#change(target, "set", [...LASTING, "ifMatch"], { key }, data, options);
  }

  /** Removes a key. */
  async remove(target, key, options = {}) {
    return this.#change(target, "remove", ["ifMatch"], { key }, undefined, options);
  }

  /** Follows a channel, and keeps the newest message of each of its keys. */
  stateOf(target) {
    return new ChannelState((options, listener) => this.subscribe(target, options, listener));
  }

  /** Erases a message, by its id. */
  async erase(target, id) {
    checkId(id);
    return (await loadHttp(this.#options)).erase(this.#shared, toTarget(target), id);
  }

  /** Erases all messages that there are now. */
  async eraseHistory(target) {
    return (await loadHttp(this.#options)).erase(this.#shared, toTarget(target));
  }

  /** Ends a channel, with a last message if `data` is given. Makes one attempt. */
  async end(target, data, options = {}) {
    return this.#change(target, "end", LASTING, { end: "POST" }, data, options);
  }

  /** Opens a channel again that has ended. */
  async open(target) {
    return this.#change(target, "open", [], { end: "DELETE" });
  }

  /** Starts over at once, with the first transport. Also works after `close`. */
  connect() {
    this.#release();
    this.#listen(true);
    this.#channelsMax = Infinity;
    this.#connections = [new Connection(this.#shared, 0)];
    this.state = "idle";
    for (const cursor of this.#cursors.values()) this.#place(cursor);
    this.#reportState();
    // Without channels no connection opens that would send waiting messages.
    this.#outbox.flush();
  }

  /** Closes the connections and rejects unconfirmed messages. Keeps the subscriptions. */
  close() {
    this.#end(new ThrongError("closed", "the client is closed"));
  }

  /** The interface of the client for its connections and its outbox. */
  #share() {
    return {
      options: this.#options,
      url: this.#url,
      tokens: this.#tokens,
      request: (path, init) => this.#request(path, init),
      fetch: (path, init) => this.#fetch(path, init),
      connectionFor: (target) => this.#connectionFor(target),
      changed: () => this.#reportState(),
      emptied: (connection) => this.#emptied(connection),
      learn: (channelsMax) => this.#learn(channelsMax),
      deliver: (cursor, envelope) => this.#deliver(cursor, envelope),
      readMessage: (envelope, isReplayed, followers) => this.#decode(envelope, isReplayed, followers),
      tellUnread: (marker) => this.#tellUnread(marker),
      warn: (cause) => this.#warn(cause),
      drop: (cursor, error, end) => this.#drop(cursor, error, end),
      fail: (error) => this.#fail(error),
    };
  }

  /** One request with the token. If the server refuses that, one more with a newer token. */
  async #request(path, init) {
    const tokens = this.#tokens;
    // A page that is closing must send at once.
    if (!tokens.isReady) await orAborted(tokens.get(), init.signal);
    const token = tokens.current;
    const response = await this.#fetch(path, init, token);
    if (response.status !== 401) return response;
    const error = await toError(response.clone(), init.signal);
    if (isForeign(error)) return response;
    tokens.refuse(token);
    if (!tokens.canRenew || error.code === "token_revoked") return response;
    const newer = await orAborted(tokens.get(), init.signal);
    if (newer === token) return response;
    const answer = await this.#fetch(path, init, newer);
    if (answer.status === 401) tokens.refuse(newer);
    return answer;
  }

  async #fetch(path, init, token) {
    const headers = { ...init.headers };
    if (token !== undefined) headers.Authorization = `Bearer ${token}`;
    const request = { cache: "no-store", ...init, headers };
    const { signal } = init;
    try {
      return await orAborted(this.#options.fetch(this.#url + path, request), signal);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Loss(String(error), { cause: error });
    }
  }

  async #change(target, what, names, place, data, options = {}) {
    checkNames(options, names, what);
    return (await loadHttp(this.#options)).change(this.#shared, toTarget(target), place, data, options);
  }

  async #read(target, what, parameters, names) {
    checkNames(parameters, names, what);
    const named = toTarget(target);
    const { sinceTime: since_time, ...query } = parameters;
    return (await loadHttp(this.#options)).read(this.#shared, named, what, { ...query, since_time });
  }

  /* Channels and their connections. */

  /** The connection that follows the target, so that messages and echoes share it, or the first. */
  #connectionFor(target) {
    return this.#cursors.get(keyOf(target))?.connection ?? this.#connections[0];
  }

  #place(cursor) {
    let connection = this.#connections.find((each) => each.hasCapacity(this.#channelsMax));
    if (!connection) {
      connection = new Connection(this.#shared, this.#connections[0].transportIndex);
      this.#connections.push(connection);
    }
    connection.add(cursor);
  }

  /** Sets the limit of channels per connection, and moves channels beyond it to others. */
  #learn(channelsMax) {
    this.#channelsMax = channelsMax;
    const moved = this.#connections.flatMap((each) => each.takeSurplus(channelsMax));
    for (const cursor of moved) this.#place(cursor);
  }

  #emptied(connection) {
    connection.close();
    if (this.#connections.length > 1) {
      this.#connections = this.#connections.filter((each) => each !== connection);
    }
    this.#reportState();
    this.#outbox.flush();
  }

  #leave(cursor) {
    if (cursor.isClosed) return;
    cursor.isClosed = true;
    this.#drop(cursor);
  }

  /** Leaves a channel: the server has refused it, or it has ended, with the id `end`. */
  #drop(cursor, error, end) {
    this.#cursors.delete(cursor.key);
    cursor.connection?.remove(cursor);
    if (error) cursor.end("error", error);
    else if (end) cursor.end("ended", { ...cursor.target, id: end });
    // Messages that waited for the subscription need not wait any longer.
    this.#outbox.flush();
  }

  #deliver(cursor, envelope) {
    const { readMessage } = this.#shared;
    cursor.take(envelope, readMessage, this.#outbox.isSilent(cursor.key, envelope.id));
  }

  /** Tells how far the user has read, once: several connections may say the same. */
  #tellUnread({ channel, user = this.#options.user, read, unread }) {
    if (unread === undefined) return;
    const before = this.unreadOf(channel);
    if (read !== undefined && read === before?.read && unread === before.unread) return;
    const marker = { ...(channel && { channel }), user, read, unread };
    this.#unreadOf.set(channel, marker);
    this[emit]("unread", marker);
  }

  /** The message of an envelope. One that is unreadable is reported, to `followers` too. */
  #decode(envelope, isReplayed, followers = []) {
    try {
      return toMessage(envelope, isReplayed);
    } catch ({ message: reason }) {
      const { channel, user, id } = envelope;
      const event = { ...(user === undefined ? { channel } : { user }), id, reason };
      const listeners = followers.map(({ subscription }) => subscription);
      const isHeard = [this, ...listeners].some((each) => each[hears]("unreadable"));
      if (!isHeard) this.#warn(`messages of ${channel ?? user} are unreadable: ${reason}`);
      for (const follower of followers) follower.receive("unreadable", event);
      this[emit]("unreadable", event);
      return undefined;
    }
  }

  /** Tells of a cause in the console, once. */
  #warn(cause) {
    // Times to retry differ each time.
    const name = cause.replace(/\d+ ms/, "");
    if (this.#warnings.has(name) || this.#warnings.size >= WARNINGS_MAX) return;
    this.#warnings.add(name);
    console.warn(`throng: ${cause}`);
  }

  /* The state. */

  /** Emits "state" if it has changed. The state is that of the least connected connection. */
  #reportState(end) {
    if (this.state === "closed" && !end) return;
    const least = ["waiting", "connecting", "open"]
      .map((rank) => this.#connections.find((each) => each.state === rank))
      .find(Boolean);
    const state = end ?? least?.state ?? "idle";
    const { transport } = least ?? this;
    this.state = state;
    const { status } = this;
    if (state === status.state && transport === status.transport) return;
    const event = { state, transport, ...least?.detail };
    this.status = event;
    const { reason } = event;
    if (reason && !this[hears]("state")) this.#warn(`not connected: ${reason}; tries again`);
    this[emit]("state", event);
  }

  #release() {
    for (const connection of this.#connections) connection.close();
  }

  #end(error) {
    this.#release();
    this.#listen(false);
    this.#reportState("closed");
    this.#outbox.close(error);
  }

  /** The server has refused the client permanently. */
  #fail(error) {
    if (this.state === "closed") return;
    this.#end(error);
    this[emit]("error", error);
  }

  /** The network has changed, or the page is visible again. */
  #wake = ({ type }) => {
    if (type === "visibilitychange" && globalThis.document.hidden) return;
    for (const connection of this.#connections) {
      if (type === "offline") connection.probe();
      else connection.wake(type === "online");
    }
  };

  #listen(isOn) {
    const change = isOn ? "addEventListener" : "removeEventListener";
    const events = ["online", "offline", "pageshow"];
    for (const event of events) globalThis[change]?.(event, this.#wake);
    globalThis.document?.[change]("visibilitychange", this.#wake);
  }
}
