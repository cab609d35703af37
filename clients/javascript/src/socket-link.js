/** One WebSocket with the protocol `throng.v1`. Open once the server has sent `welcome`. */

import { codeOf, lossOf } from "./close.js";
import { promisesOf } from "./emitter.js";
import { Loss, ThrongError } from "./errors.js";
import { backoffMs, delay, persist, TIMER_MAX_MS, toQuery } from "./http.js";
import { loadHttp } from "./load-http.js";
import { epochOf, isBinary, isUpTo, keyOf, parse, toBase64, toEnvelope } from "./message.js";

/** How long the server may send nothing after a probe. */
const PROBE_MS = 5_000;
/** How long a channel waits that exceeds a limit: at least this, and at most five times as long. */
const LIMIT_RETRY_MS = 1_000;
const PROTOCOL = "throng.v1";
const CLOSE_TOO_LARGE = 1009;
/** The size of messages that a server takes unless it names one. */
const MESSAGE_BYTES_MAX = 65_536;
/**
 * The length of a list of channels, in sizes of a message. A frame may have six, in bytes, of which a
 * character has at most three.
 */
const LIST_SIZES_MAX = 2;
/** The server cannot read a message: perhaps this browser keeps a deflate context that it may not. */
const CLOSE_UNREADABLE = 1007;
/**
 * How late a heartbeat may be before a ping, and the answer to that; in parts of a request's time.
 * A server under load may send heartbeats 3 s late, and pings would add to the load.
 */
const HEARTBEAT_GRACE = 0.3;
const PONG_GRACE = 0.2;

export class SocketLink {
  isOpen = false;
  #connection;
  #client;
  #options;
  #socket = null;
  #openTimer;
  #pulseTimer;
  #pulseAt = Infinity;
  /** When the last frame arrived, in ms since 1970. */
  receivedAt = 0;
  /** When any frame must have arrived, after a ping. */
  #dueAt = Infinity;
  /**
   * When the oldest command or ping must have its answer: heartbeats and messages do not show that
   * the server still hears this client. The answer to another one may delay it, for the server
   * answers one after the other, and so may a backlog, which it can be behind.
   */
  #answerBy = Infinity;
  #heartbeatMs;
  /** The socket's `bufferedAmount` at the last check. */
  #unsentBytes = 0;
  /** The token that the server has from this link. */
  #token;
  /** Opened without compression. */
  #isPlain;
  /** Messages come in compact form, many in a frame: this server also takes lists of channels. */
  #isCompact;
  #isRefreshing = false;
  /** Refused refreshes in a row. */
  #refreshes = 0;
  /** Aborted when the link ends. */
  #end = new AbortController();
  #ref = 0;
  /** Pending commands by `ref`: each with its publish, or with what it asks for by key. */
  #pending = new Map();
  /** Cursors and targets of the next commands, which name all that one turn of the page asks for. */
  #joining = new Set();
  #leaving = new Set();
  /** Cursors with a `subscribe` command. */
  #requested = new Set();
  /**
   * Cursors confirmed by `subscribed`, each with the end of its backlog if it has one. Messages
   * before it are of an earlier subscription.
   */
  #live = new Map();
  /** Cursors by the number of their channel in compact messages, each with the epoch of its ids. */
  #numbered = new Map();
  /** Frames that the page has handled, of those that asked to be told. */
  #handled = 0;
  /** Cursors of which the server has no presence events, or shows them to others only. */
  #unseen = new Set();

  constructor(connection, client) {
    this.#connection = connection;
    this.#client = client;
    this.#options = client.options;
    this.#heartbeatMs = this.#options.heartbeatMs || Infinity;
  }

  open(timeoutMs = this.#connection.openTimeoutMs) {
    const { url, tokens } = this.#client;
    const { user, noTime, params: { pace, ...params }, WebSocket } = this.#options;
    this.#isPlain = this.#client.isPlain;
    this.#isCompact = !this.#client.isFull;
    const compression = this.#isPlain ? "none" : undefined;
    const form = this.#isCompact ? { envelope: "compact", time: noTime ? undefined : true } : {};
    const query = toQuery(Object.entries({ user, compression, ...form, ...params }));
    const slow = new Loss("the WebSocket did not open in time", { isSlow: true });
    this.#openTimer = setTimeout(() => this.#connection.slow(this, slow), timeoutMs);
    try {
      this.#token = tokens.current;
      const offered = [PROTOCOL];
      // A page can set no header of a WebSocket but this one.
      if (this.#token !== undefined) offered.push(`throng.token.${this.#token}`);
      const base = `${url.replace(/^http/i, "ws")}/subscribe`;
      this.#socket = new WebSocket(query ? `${base}?${query}` : base, offered);
    } catch (error) {
      // For example, a page under TLS may not open a plain WebSocket.
      return this.#lost(new Loss(String(error), { isUnusable: true }));
    }
    this.#socket.onmessage = ({ data }) => this.#receive(data);
    this.#socket.onclose = ({ code, reason }) => this.#closed(code, reason ?? "");
    // A close event always follows, with the reason.
    this.#socket.onerror = () => {};
  }

  close() {
    clearTimeout(this.#openTimer);
    clearTimeout(this.#pulseTimer);
    this.#end.abort();
    if (!this.#socket) return;
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
  }

  /** Asks for a channel, together with all that are asked for in this turn. */
  subscribe(cursor) {
    if (!this.isOpen) return;
    this.#joining.add(cursor);
    queueMicrotask(() => this.#sendLists());
  }

  unsubscribe(cursor) {
    this.#live.delete(cursor);
    this.#joining.delete(cursor);
    // The server may give the number to another channel.
    if (this.#numbered.get(cursor.number)?.cursor === cursor) this.#numbered.delete(cursor.number);
    if (!this.#requested.delete(cursor)) return;
    this.#leaving.add(cursor.target);
    queueMicrotask(() => this.#sendLists());
  }

  #sendLists() {
    if (this.#end.signal.aborted) return;
    const joining = [...this.#joining];
    // The URL's `user` follows the inbox from now on, but this cursor may begin earlier.
    for (const { target } of joining) if (target.user !== undefined) this.#leaving.add(target);
    const leaving = [...this.#leaving].map((target) => ({ target, from: {} }));
    this.#joining.clear();
    this.#leaving.clear();
    this.#sendList("unsubscribe", leaving);
    for (const cursor of joining) this.#requested.add(cursor);
    const asked = joining.map((cursor) => ({ cursor, target: cursor.target, from: this.#from(cursor) }));
    this.#sendList("subscribe", asked);
  }

  /** The fields of a `subscribe` command besides its channel; those that are undefined are left out. */
  #from(cursor) {
    const { position: since, history, pace, info } = cursor;
    const presence = (cursor.presence && !this.#unseen.has(cursor)) || undefined;
    const state = cursor.wantsState || undefined;
    return { since, history: (!since && !state && history) || undefined, state, presence, info, pace };
  }

  /**
   * Sends a command for these channels, or some if they are many. A command has one pace, and presence
   * events and what a member shows are for one channel.
   */
  #sendList(type, list) {
    const lengthMax = LIST_SIZES_MAX * (this.#client.messageBytesMax ?? MESSAGE_BYTES_MAX);
    let part = [];
    let length = 0;
    const send = () => {
      const [{ target, from }] = part;
      const channels = part.map(({ target, from: { since, history, state } }) => {
        return { ...target, since, history, state };
      });
      const named = part.length > 1 ? { channels, pace: from.pace } : { ...target, ...from };
      const asked = new Map(part.map((each) => [keyOf(each.target), each]));
      this.#send({ type, ...named }, type === "subscribe" && { asked });
      part = [];
      length = 0;
    };
    for (const each of list) {
      const { target, from } = each;
      const before = part[0]?.from;
      const size = JSON.stringify({ ...target, ...from }).length;
      const isFull = !this.#isCompact || length + size > lengthMax;
      const isAlone = [from, before].some((it) => it?.presence || it?.info);
      if (before && (isFull || isAlone || from.pace !== before.pace)) send();
      part.push(each);
      length += size;
    }
    if (part.length > 0) send();
  }

  /** Subscribes again, because the cursor wants presence events now, or another pace. */
  renew(cursor) {
    cursor.isLive = false;
    this.unsubscribe(cursor);
    this.subscribe(cursor);
  }

  /**
   * Shows something else of the client to the other members of a channel. A later `subscribe` tells it
   * otherwise.
   */
  show(cursor, info) {
    const command = { cursor, info, from: cursor.info };
    if (this.#requested.has(cursor)) this.#send({ type: "update", ...cursor.target, info }, command);
  }

  publish(publish) {
    // Messages to a channel come back only if it is asked for before.
    this.#sendLists();
    const { target, data, key, echo, contentType, expiresIn, volatile, event, tags } = publish;
    const { stateKey } = publish;
    publish.link = this;
    publish.sent();
    const body = isBinary(data) ? { data: toBase64(data), encoding: "base64" } : { data };
    const labels = { volatile, event, tags, state_key: stateKey };
    const more = { content_type: contentType, expires_in: expiresIn, ...labels };
    const options = { ...more, key, echo: echo && undefined };
    this.#send({ type: "publish", ...target, ...body, ...options }, { publish });
  }

  /** Sends a ping, after which something must arrive within `PROBE_MS`. */
  probe() {
    if (this.isOpen) this.#ping(PROBE_MS);
  }

  /** Half of the time of a separate request is over: the other half is for the answer to a ping. */
  doubt() {
    if (!this.isOpen) return;
    const patienceMs = this.#options.requestTimeoutMs / 2;
    this.#ping(patienceMs);
    this.#answerBy = Math.min(this.#answerBy, this.#dueAt);
  }

  #send(frame, command) {
    if (command) {
      frame.ref = ++this.#ref;
      this.#pending.set(frame.ref, command);
      this.#answerBy = Math.min(this.#answerBy, Date.now() + this.#options.requestTimeoutMs);
      this.#schedule(this.#answerBy);
    }
    // A closing socket drops the frame; the close event leads to a retry.
    this.#socket.send(JSON.stringify(frame));
    this.#unsentBytes = this.#socket.bufferedAmount ?? 0;
  }

  /** Sends a ping, and ends the link unless a frame arrives within this time. */
  #ping(timeoutMs) {
    this.#send({ type: "ping" }, {});
    this.#dueAt = Math.min(this.#dueAt, Date.now() + timeoutMs);
    this.#schedule(this.#dueAt);
  }

  /** The server has heard this client. */
  #heard() {
    const { requestTimeoutMs } = this.#options;
    this.#answerBy = this.#pending.size > 0 ? this.receivedAt + requestTimeoutMs : Infinity;
  }

  /** When the next heartbeat is late. */
  get #quietAt() {
    const grace = this.#options.requestTimeoutMs * HEARTBEAT_GRACE;
    return this.receivedAt + this.#heartbeatMs + grace;
  }

  #schedule(at) {
    if (at >= this.#pulseAt) return;
    clearTimeout(this.#pulseTimer);
    this.#pulseAt = at;
    const delayMs = Math.min(Math.max(0, at - Date.now()), TIMER_MAX_MS);
    this.#pulseTimer = setTimeout(() => this.#pulse(), delayMs);
  }

  /**
   * Ends the link if a frame or an answer is overdue. Without one expected, sends a ping if the
   * server's heartbeats do not arrive; its deadline counts from the ping and not from the last
   * frame, because timers of a hidden page run late.
   */
  #pulse() {
    this.#pulseAt = Infinity;
    const now = Date.now();
    const { requestTimeoutMs } = this.#options;
    const unsentBytes = this.#socket.bufferedAmount ?? 0;
    // The server cannot answer a large message before it has left.
    const isSending = unsentBytes > 0 && unsentBytes < this.#unsentBytes;
    this.#unsentBytes = unsentBytes;
    let at = Math.min(this.#dueAt, this.#answerBy);
    if (at === Infinity) {
      at = this.#quietAt;
      if (now >= at) return this.#ping(requestTimeoutMs * PONG_GRACE);
    } else if (isSending) {
      this.#dueAt = Infinity;
      at = this.#answerBy = now + requestTimeoutMs;
    } else if (now >= at) return this.#lost(new Loss("the server fell silent"));
    this.#schedule(at);
  }

  #receive(text) {
    this.receivedAt = Date.now();
    try {
      const frame = parse(text);
      if (Array.isArray(frame)) this.#takeMany(frame);
      else this.#take(frame);
    } catch (error) {
      this.#lost(new Loss(`this is no Throng server: ${error}`, { isUnusable: !this.isOpen }));
    }
  }

  /** A frame with many messages, whose first item is 1 if the server asks when they are handled. */
  #takeMany([asks, ...items]) {
    this.#dueAt = Infinity;
    const take = () => {
      for (const item of items) if (!this.#end.signal.aborted) this.#takeItem(item);
    };
    if (asks === 1) this.#acknowledge(promisesOf(take));
    else take();
  }

  #takeItem(item) {
    const [number, offset] = item;
    const { cursor, epoch } = this.#numbered.get(number) ?? {};
    // A channel that was left, or one that the server follows for the user.
    if (!this.#live.has(cursor)) return;
    if (item.length === 2) cursor.skip(offset < 0 ? -offset : undefined);
    else this.#deliver(cursor, toEnvelope(cursor.target, epoch, item));
  }

  /** The listeners of a frame have run: once what they have promised is done, the server is told. */
  async #acknowledge(promises) {
    if (promises.length > 0) await Promise.all(promises);
    this.#handled += 1;
    // Frames whose handlers end together have one command.
    queueMicrotask(() => {
      if (this.#handled === 0 || this.#end.signal.aborted) return;
      this.#send({ type: "ack", frames: this.#handled });
      this.#handled = 0;
    });
  }

  #take(frame) {
    const { type, ref } = frame;
    const command = this.#pending.get(ref);
    this.#pending.delete(ref);
    this.#dueAt = Infinity;
    if (command) this.#heard();
    if (type === "welcome") this.#welcome(frame);
    else if (type === "numbers") this.#learnNumbers(frame);
    else if (type === "unread") this.#client.tellUnread(frame);
    else if (type === "subscribed" && command?.asked) this.#answered(frame, command);
    else if (type === "published" && command?.publish) {
      this.#client.outbox.settle(command.publish, frame);
    } else if (type === "expiring") this.#refresh();
    else if (type === "authenticated" && command?.token) this.#refreshed(command);
    else if (type === "unsubscribed" && frame.code) this.#revoked(frame);
    else if (type === "error") this.#refused(frame, command);
    else this.#advance(frame);
  }

  #welcome({ heartbeat, channels_max: channelsMax, max_message_bytes: bytesMax, unread }) {
    clearTimeout(this.#openTimer);
    if (heartbeat > 0) this.#heartbeatMs = heartbeat * 1_000;
    if (bytesMax > 0) this.#client.messageBytesMax = bytesMax;
    this.isOpen = true;
    this.#schedule(this.#quietAt);
    this.#connection.welcomed(this, () => {
      this.#client.tellUnread({ unread });
      this.#begin(channelsMax);
    });
  }

  /** Follows the connection's channels, and publishes. */
  #begin(channelsMax) {
    // Channels beyond the limit move to other connections before they are requested here.
    if (channelsMax > 0) this.#client.learn(channelsMax);
    const cursors = [...this.#connection.cursors.values()];
    for (const cursor of cursors) if (!cursor.position) this.subscribe(cursor);
    this.#sendLists();
    // Retries before resumed channels: the responses name the ids to suppress (`echo: false`)
    // before the backlog contains them.
    for (const publish of this.#client.outbox.retriesFor(this.#connection)) this.publish(publish);
    for (const cursor of cursors) if (cursor.position) this.subscribe(cursor);
    this.#sendLists();
    this.#connection.opened(this);
  }

  /** An answer to a command. That to a list may come in parts, each with some of its channels. */
  #answered(frame, { asked }) {
    const answers = frame.channels ?? [{ ...frame, ...[...asked.values()][0].target }];
    const { ref } = frame;
    for (const answer of answers) {
      const key = keyOf(answer);
      const each = asked.get(key);
      asked.delete(key);
      if (answer.error) this.#refusedOne(new ThrongError(answer.error.code, answer.error.message), each);
      else if (each) this.#subscribed(answer, each);
    }
    if (asked.size > 0) this.#pending.set(ref, { asked });
  }

  #subscribed({ id, head, recovered, number }, { cursor, from }) {
    if (cursor.connection !== this.#connection) return;
    this.#live.set(cursor, head);
    if (number !== undefined) this.#number(number, cursor, epochOf(id));
    cursor.isLive = true;
    cursor.follow({ id, head, recovered: from.since && recovered !== false });
    // A subscription that has come meanwhile may want more.
    const { presence, pace } = this.#from(cursor);
    if (presence !== from.presence || pace !== from.pace) this.renew(cursor);
  }

  /** The numbers of channels of which nothing else tells them, or that have others now. */
  #learnNumbers({ channels = [], users = [] }) {
    const { cursors } = this.#connection;
    const learn = (target, number, epoch) => this.#number(number, cursors.get(keyOf(target)), `${epoch}-`);
    for (const [channel, ...rest] of channels) learn({ channel }, ...rest);
    for (const [user, ...rest] of users) learn({ user }, ...rest);
  }

  /** Messages with this number are of this cursor, and their ids of this epoch. */
  #number(number, cursor, epoch) {
    if (cursor) cursor.number = number;
    this.#numbered.set(number, { cursor, epoch });
  }

  #advance(frame) {
    const cursor = this.#connection.cursors.get(keyOf(frame));
    if (!cursor || !this.#live.has(cursor)) return;
    const { type, id } = frame;
    // The answer to a query has no time, but this client sends none.
    if (type === "presence") cursor.see(frame);
    else if (type === "conflated") cursor.skip(frame.count);
    else if (type === "state") cursor.endState(frame);
    else if (type === "message" || type === "erased") this.#deliver(cursor, frame);
    else if (type === "ended") {
      this.#requested.delete(cursor);
      this.#client.drop(cursor, undefined, id);
    } else if (type === "gap") {
      this.#hearBacklog(cursor, id);
      cursor.gap(frame);
      if (!cursor.wantsState) return;
      cursor.position = undefined;
      this.renew(cursor);
    }
  }

  #deliver(cursor, envelope) {
    this.#hearBacklog(cursor, envelope.id);
    this.#client.deliver(cursor, envelope);
  }

  /** The answer to a command may be behind a backlog, which counts for it. */
  #hearBacklog(cursor, id) {
    if (this.#answerBy < Infinity && id && isUpTo(id, this.#live.get(cursor))) this.#heard();
  }

  #refused({ code, message }, command) {
    const error = new ThrongError(code, message);
    if (command?.token) return this.#refusedToken(error, command.token);
    if (command?.info) {
      // The next `subscribe` would be refused for it, too.
      if (command.cursor.info === command.info) command.cursor.info = command.from;
      this.#client.warn(message);
    }
    if (command?.publish) this.#client.outbox.retryOrRefuse(command.publish, error);
    for (const each of command?.asked?.values() ?? []) this.#refusedOne(error, each);
  }

  #refusedOne(error, { cursor, from }) {
    const { code, message } = error;
    this.#requested.delete(cursor);
    // The cursor may have moved to another connection.
    if (cursor.connection !== this.#connection) return;
    if (from.presence && /^(bad_request|forbidden)$/.test(code)) this.#readPresence(cursor);
    else if (code === "busy") this.#lost(new Loss(message));
    else if (code === "too_many_requests") this.#subscribeLater(cursor);
    else if (code === "too_many_channels" && this.#live.size > 0) {
      this.#client.learn(this.#live.size + this.#connection.reservedChannels());
    } else this.#client.drop(cursor, error);
  }

  /** Without presence events, reads who is there from time to time. */
  async #readPresence(cursor) {
    this.#unseen.add(cursor);
    this.subscribe(cursor);
    const { signal } = this.#end;
    const part = await persist(() => loadHttp(this.#options), signal);
    part?.followPresence(this.#client, cursor, signal);
  }

  /** One channel more than the server allows this client for now. The others stay. */
  async #subscribeLater(cursor) {
    const { signal } = this.#end;
    await delay(LIMIT_RETRY_MS * (1 + 4 * this.#options.random()), signal);
    if (signal.aborted || cursor.connection !== this.#connection) return;
    if (!this.#requested.has(cursor)) this.subscribe(cursor);
  }

  /** The server has ended a subscription: a newer token does not grant it. */
  #revoked(frame) {
    const cursor = this.#connection.cursors.get(keyOf(frame));
    this.#live.delete(cursor);
    if (!this.#requested.delete(cursor)) return;
    this.#client.drop(cursor, new ThrongError(frame.code, frame.message));
  }

  /** Sends a newer token. The connection is closed when the present one expires, and not before. */
  async #refresh() {
    const { tokens, options: { random } } = this.#client;
    if (!tokens.canRenew || this.#isRefreshing) return;
    this.#isRefreshing = true;
    const { signal } = this.#end;
    const token = await persist(() => tokens.renew(this.#token), signal, random);
    if (!signal.aborted) this.#send({ type: "auth", token }, { token });
  }

  #refreshed({ token }) {
    this.#token = token;
    this.#isRefreshing = false;
    this.#refreshes = 0;
  }

  async #refusedToken(error, token) {
    const { tokens, options: { random } } = this.#client;
    tokens.refuse(token);
    this.#isRefreshing = false;
    // Of another user, or revoked: the next one would be so too.
    if (error.code === "forbidden" || error.code === "token_revoked") {
      this.#lost(new Loss(error.message, { error }));
      return;
    }
    const { signal } = this.#end;
    await delay(backoffMs(this.#refreshes++, random), signal);
    if (!signal.aborted) this.#refresh();
  }

  #lost(loss) {
    this.#connection.lost(this, loss);
  }

  #closed(code, reason) {
    const message = `the WebSocket closed with ${code}${reason ? `: ${reason}` : ""}`;
    if (code === CLOSE_TOO_LARGE) this.#refuseLargest(message);
    const { tokens } = this.#client;
    // A server without this option refuses it.
    if (this.#isPlain && !this.isOpen) this.#client.isPlain = false;
    const isCodeless = code === CLOSE_UNREADABLE && !codeOf(reason);
    if (!this.#isPlain && (isCodeless || reason.startsWith("bad_compression"))) {
      this.#client.isPlain = true;
      return this.#lost(new Loss(message, { isAnswer: true, isMended: true }));
    }
    const isOwn = this.isOpen || this.#socket.protocol === PROTOCOL;
    const closed = { close_code: code, message, reason, isOwn };
    this.#lost(lossOf(closed, tokens, this.#token));
  }

  /** The server does not say which message was too large. Retries all but the largest. */
  #refuseLargest(message) {
    const size = ({ body }) => body.byteLength ?? body.length;
    const sent = [...this.#pending.values()].flatMap(({ publish }) => publish ?? []);
    const [largest] = sent.sort((a, b) => size(b) - size(a));
    if (largest) this.#client.outbox.retryOrRefuse(largest, new ThrongError("too_large", message));
  }
}
