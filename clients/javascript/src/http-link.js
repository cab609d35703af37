/**
 * The transports SSE and long-poll. A link works in rounds: one request for all channels, which it
 * repeats whenever the channels change.
 *
 * A request names a position for all of its channels or for none. So a channel without a position
 * first requests its history, which returns the messages to begin with and the id to continue from.
 * That works for any mix of old and new channels, over one connection; browsers allow six to a
 * server.
 */

import { aborted, readText } from "./body.js";
import { lossOf } from "./close.js";
import { Loss, ThrongError } from "./errors.js";
import { EventStreamParser } from "./event-stream.js";
import {
  abort, isForeign, isOfToken, isTemporary, orAborted, retryAfterMs, toError, toQuery,
} from "./http.js";
import { keyOf, parse, pathOf } from "./message.js";
import { followPresence } from "./presence.js";
import { readState } from "./read.js";
import { Cursor } from "./subscription.js";

/** Changes of the channels within this time start only one new round. */
const REOPEN_DELAY_MS = 20;
/** Statuses after which the server would refuse the same request again, over any transport. */
const FINAL_STATUSES = new Set([400, 401, 403]);
/** Those of them that refuse the channel, if the request is for one channel. */
const CHANNEL_STATUSES = new Set([400, 403]);
/** On waking, a link on which nothing has come for so long is asked for a sign of life. */
const PROBE_MS = 5_000;
/** How many times longer than its last answer a stream may take to begin. */
const PATIENCE = 3;
/** Refusals of a request for too many channels, by number or by length. */
const TOO_MANY_CODES = new Set(["too_many_channels", "uri_too_long", "head_too_large"]);

export class HttpLink {
  isOpen = false;
  isClosed = false;
  /** When data last arrived on this link, in ms since 1970. */
  receivedAt = 0;
  /** How long the last answer took. */
  latencyMs = 0;
  /** The next round is for a sign of life. */
  isProbing = false;
  connection;
  client;
  options;
  /** Aborts the request of this round, with a reason: the link itself, or a `Loss`. */
  round = null;
  #watchdog;
  #reopenTimer;
  /** Whether to ask for presence events: the server has not refused them. */
  #hasEvents = true;
  /** Cursors whose presence events this round asks for, and the last of which is known, by its time or id. */
  #asked = new Set();
  #presenceTimes = new Map();
  /** Cursors whose presence is being read. */
  #read = new Set();
  #end = new AbortController();
  /** The inbox that a request with `user` follows, without a subscription. */
  #inbox;

  constructor(connection, client) {
    this.connection = connection;
    this.client = client;
    this.options = client.options;
    const { user } = client.options;
    if (user !== undefined) this.#inbox = new Cursor({ user });
  }

  async open() {
    while (!this.isClosed) {
      clearTimeout(this.#reopenTimer);
      const round = (this.round = new AbortController());
      try {
        const cursors = this.#cursors();
        await this.#settle(cursors, round.signal);
        if (round.signal.aborted) continue;
        const settled = cursors.filter(({ isClosed }) => !isClosed);
        // If every channel was refused, wait for the next subscription.
        if (settled.length > 0) await this.follow(settled, round.signal);
        else await aborted(round.signal);
      } catch (error) {
        const cause = round.signal.aborted ? round.signal.reason : error;
        if (this.isClosed || cause === this) continue;
        this.connection.lost(this, this.#lossOf(cause));
        return;
      } finally {
        clearTimeout(this.#watchdog);
      }
    }
  }

  /** What fails otherwise than by the network or the server would fail again. */
  #lossOf(cause) {
    if (cause instanceof Loss) return cause;
    if (cause instanceof ThrongError) {
      return new Loss(cause.message, { isAnswer: isOfToken(cause) });
    }
    return new Loss(String(cause), { error: cause });
  }

  /** What `work` makes of what has come. If it fails, no Throng server has sent that. */
  hear(work) {
    try {
      return work();
    } catch (error) {
      if (error instanceof Loss) throw error;
      throw new Loss(`this is no Throng server: ${error}`);
    }
  }

  close() {
    this.isClosed = true;
    this.#end.abort();
    clearTimeout(this.#reopenTimer);
    clearTimeout(this.#watchdog);
    this.#restart();
  }

  /** Begins the next round, from the present positions. */
  #restart() {
    if (this.round) abort(this.round, this);
  }

  /** Asks the server for a sign of life by a new round, unless there was one just now. */
  probe() {
    if (!this.isOpen || Date.now() - this.receivedAt < PROBE_MS) return;
    this.isProbing = true;
    this.#restart();
  }

  subscribe() {
    clearTimeout(this.#reopenTimer);
    // Without channels, the client will close the link soon.
    this.#reopenTimer = setTimeout(() => {
      if (this.connection.cursors.size > 0) this.#restart();
    }, REOPEN_DELAY_MS);
  }

  unsubscribe(cursor) {
    this.#read.delete(cursor);
    this.#presenceTimes.delete(cursor);
    this.subscribe();
  }

  /** A separate request, sent at `sinceMs`, got no answer. */
  suspect(sinceMs) {
    if (!this.isOpen || this.receivedAt >= sinceMs) return;
    this.connection.lost(this, new Loss("the server does not answer"));
  }

  /** The cursor wants another pace, or presence events. Inboxes have none, nor do all servers: presence is read then. */
  renew(cursor) {
    if (!cursor.presence) return this.subscribe();
    if (this.#asked.has(cursor) || this.#read.has(cursor)) return;
    if (this.#mayAsk(cursor)) return this.subscribe();
    this.#read.add(cursor);
    followPresence(this.client, cursor, this.#end.signal);
  }

  #mayAsk({ target }) {
    return this.#hasEvents && target.user === undefined;
  }

  /** Ends the round with `loss` after `timeoutMs`, unless called again. 0 means no timeout. */
  watch(timeoutMs, loss) {
    clearTimeout(this.#watchdog);
    const round = this.round;
    if (timeoutMs > 0) this.#watchdog = setTimeout(() => abort(round, loss), timeoutMs);
  }

  url(cursors, query) {
    const parameters = Object.entries({ ...query, envelope: "true" });
    for (const { target } of cursors) parameters.push(...Object.entries(target));
    parameters.push(["since", cursors.map(({ position }) => position).join(",")]);
    this.#asked = new Set(cursors.filter((each) => each.presence && this.#mayAsk(each)));
    if (this.#asked.size > 0) {
      const channels = cursors.filter(({ target }) => target.user === undefined);
      const known = (each) => {
        const last = this.#presenceTimes.get(each) ?? true;
        // A stream may be lost in the middle of a list of members: all of it comes again.
        const isWhole = typeof last === "number" || query.transport === "poll";
        return this.#asked.has(each) && (isWhole ? last : true);
      };
      parameters.push(["presence", channels.map(known).join(",")]);
    }
    return `/subscribe?${toQuery(parameters)}`;
  }

  /** Reports gaps that the response announces. Call it before delivering its messages. */
  async resumed(cursors, recovered, response, signal) {
    const starts = (response.headers.get("Throng-Id") ?? "").split(",");
    const isWhole = recovered
      ? cursors.map(() => true)
      : await Promise.all(cursors.map((cursor) => this.#isWhole(cursor, cursors, signal)));
    if (signal.aborted) return;
    cursors.forEach((cursor, index) => {
      cursor.isLive = true;
      cursor.follow({ id: starts[index], recovered: isWhole[index] });
      if (cursor.presence) this.renew(cursor);
      // The next round begins with its state.
      if (!cursor.position) this.subscribe();
    });
  }

  /** Whether this channel has no gap. A response covers all channels; a history covers one. */
  async #isWhole(cursor, cursors, signal) {
    if (cursors.length === 1) return false;
    const path = pathOf(cursor.target, "history", { after: cursor.position, limit: 1 });
    const response = await this.client.request(path, { signal });
    if (!response.ok) return false;
    const text = await this.text(response);
    return this.hear(() => JSON.parse(text).recovered !== false);
  }

  /** The body. Each chunk extends the deadline. */
  text(response) {
    const late = new Loss("the answer stopped in the middle");
    this.watch(this.options.requestTimeoutMs, late);
    const text = readText(response, () => {
      this.receivedAt = Date.now();
      this.watch(this.options.requestTimeoutMs, late);
    });
    return orAborted(text, this.round.signal).catch((error) => {
      throw error instanceof TypeError ? new Loss(String(error)) : error;
    });
  }

  /** Throws the `Loss` for an error response. */
  async check(response) {
    this.receivedAt = Date.now();
    if (response.ok) return response;
    const error = await toError(response, this.round.signal);
    // A newer token may be better.
    const isRenewed = response.status === 401 && this.client.tokens.canRenew;
    const isOfProxy = isForeign(error);
    if (isRenewed && !isOfProxy && error.code !== "token_revoked") {
      throw new Loss(error.message, { isAnswer: true });
    }
    const isFinal = FINAL_STATUSES.has(response.status) && !isOfProxy;
    if (isFinal) throw new Loss(error.message, { error });
    const hintMs = retryAfterMs(response, this.options.random);
    // Another transport may pass what refuses this one.
    const isUnusable = !isTemporary(isOfProxy ? response : error);
    throw new Loss(error.message, { hintMs, isUnusable, isForeign: isOfProxy });
  }

  /**
   * The response to a request for these channels; undefined if they were too many. The server does
   * not name its limit, so half of them move to another connection, and the next round requests
   * the rest.
   */
  async checkMany(response, cursors) {
    if (!response.ok && cursors.length > 1) {
      const error = await toError(response.clone(), this.round.signal);
      // A channel beside the inbox cannot leave it: the next round would be the same.
      const canMove = cursors.filter((cursor) => cursor !== this.#inbox).length > 1;
      if (TOO_MANY_CODES.has(error.code) && canMove) {
        this.client.learn(Math.ceil(cursors.length / 2));
        return undefined;
      }
      if (error.code === "forbidden" && (await this.#dropForbidden(cursors))) return undefined;
    }
    if (CHANNEL_STATUSES.has(response.status) && this.#asked.size > 0) {
      // Perhaps it refuses only the presence events of one of them, or their number.
      this.#hasEvents = false;
      return undefined;
    }
    return this.check(response);
  }

  /** Ends the channels that the server does not allow any more. False if it allows each. */
  async #dropForbidden(cursors) {
    const { signal } = this.round;
    const isDropped = async (cursor) => {
      const answer = await this.#head(cursor, signal);
      // The response has no body.
      if (answer.status !== 403 || cursor === this.#inbox) return false;
      this.client.drop(cursor, new ThrongError("forbidden", "this is not allowed any more", 403));
      return true;
    };
    return (await Promise.all(cursors.map(isDropped))).includes(true);
  }

  /** The head of a subscription: whether it is allowed, and where it would start. */
  #head({ target }, signal) {
    const path = pathOf(target, "subscribe", { transport: "sse" });
    return this.client.request(path, { method: "HEAD", signal });
  }

  deliver(cursors, envelope) {
    const cursor = cursors.find(({ key }) => key === keyOf(envelope));
    if (!cursor) return;
    if (envelope.type === "presence") {
      this.#presenceTimes.set(cursor, envelope.id ?? envelope.time);
      cursor.see(envelope);
    } else if (envelope.type === "ended") this.client.drop(cursor, undefined, envelope.id);
    else if (/^(message|erased)$/.test(envelope.type)) this.client.deliver(cursor, envelope);
  }

  /** Ends all channels of a response that says so: nothing comes after it. */
  endAll(cursors, { headers }) {
    if (!headers.get("Throng-Ended")) return;
    const ids = headers.get("Throng-Id").split(",");
    cursors.forEach((cursor, index) => this.client.drop(cursor, undefined, ids[index]));
  }

  /** Channels in the order of the URL, which is the order of ids; the user is last. */
  #cursors() {
    const cursors = [...this.connection.cursors.values()];
    const channels = cursors.filter(({ target }) => target.user === undefined);
    const inbox = cursors.find(({ target }) => target.user !== undefined) ?? this.#inbox;
    return inbox ? [...channels, inbox] : channels;
  }

  /** Gives each channel a position, and delivers the messages that it begins with. */
  async #settle(cursors, signal) {
    const settle = async (cursor) => {
      const { position, history } = cursor;
      if (cursor.wantsState && !position) return this.#settleState(cursor, signal);
      // With a position, so that one that is no id is the fault of this channel and of no other.
      const page = position ? { limit: 1, after: position } : { limit: Math.max(1, history) };
      const startedAt = Date.now();
      const answer = await this.client.request(pathOf(cursor.target, "history", page), { signal });
      this.latencyMs = Date.now() - startedAt;
      const error = answer.ok ? undefined : await toError(answer.clone(), signal);
      if (CHANNEL_STATUSES.has(answer.status) && !isForeign(error)) {
        const { code } = error;
        if (code === "forbidden" && (await this.#settleWithoutHistory(cursor, signal))) return;
        const isOfChannel = cursor !== this.#inbox && code !== "origin_refused";
        if (isOfChannel) return this.client.drop(cursor, error);
      }
      const response = await this.check(answer);
      const text = await this.text(response);
      // A later round may have requested the same position.
      if (signal.aborted || cursor.isClosed) return;
      this.hear(() => this.#begin(cursor, pageOf(text)));
    };
    this.watch(this.options.requestTimeoutMs, new Loss("the server did not answer in time"));
    await Promise.all(cursors.filter((cursor) => cursor.needsStart).map(settle));
  }

  /** Delivers the state of a channel, which is followed from there. */
  async #settleState(cursor, signal) {
    let state;
    try {
      state = await readState(this.client, cursor.target);
    } catch (error) {
      if (CHANNEL_STATUSES.has(error.status) && !isForeign(error)) return this.client.drop(cursor, error);
      const isFinal = error.status === 401 && !this.client.tokens.canRenew;
      throw new Loss(error.message, isFinal ? { error } : {});
    }
    const { id, messages } = state;
    if (signal.aborted || cursor.isClosed) return undefined;
    cursor.follow({ id, head: id });
    for (const envelope of messages) this.client.deliver(cursor, envelope);
    cursor.endState(state);
    return undefined;
  }

  /** Starts a channel from a page of its history. */
  #begin(cursor, { id, messages }) {
    cursor.head = id;
    if (cursor.position) return;
    cursor.follow({ id, head: id });
    if (cursor.history > 0) {
      for (const envelope of messages) this.client.deliver(cursor, envelope);
    }
  }

  /**
   * Gives a channel a position whose history the token does not grant. False if it does not grant
   * the channel either.
   */
  async #settleWithoutHistory(cursor, signal) {
    const answer = await this.#head(cursor, signal);
    const id = answer.headers.get("Throng-Id");
    if (!answer.ok || !id) return false;
    if (signal.aborted || cursor.isClosed) return true;
    cursor.head = id;
    if (!cursor.position) cursor.follow({ id, head: id });
    return true;
  }
}

/** Server-sent events, read from a streaming response, because Node has no `EventSource`. */
export class StreamLink extends HttpLink {
  /** The server's name of this connection, for `echo: false`. */
  serverName;
  /** The pace that this round asks for. */
  #pace;

  async follow(cursors, signal) {
    const { heartbeatMs, requestTimeoutMs } = this.options;
    const message = "the stream did not begin in time";
    const beginMs = Math.max(this.connection.openTimeoutMs, PATIENCE * this.latencyMs);
    this.watch(beginMs, new Loss(message, { isSlow: true }));
    const pace = (this.#pace = this.#fastest());
    // A greeting has the number of unread messages.
    const welcome = this.options.user === undefined ? undefined : true;
    const path = this.url(cursors, { ...this.options.params, pace, welcome, transport: "sse" });
    const headers = { Accept: "text/event-stream" };
    const answer = await this.client.request(path, { signal, headers });
    // A resumed stream begins with an event at once, unless a proxy buffers it.
    this.watch(beginMs, new Loss(message, { isUnusable: true }));
    const { tokens } = this.client;
    const token = tokens.current;
    const response = await this.checkMany(answer, cursors);
    if (!response) return;
    if (response.status === 204 && response.headers.get("Throng-Ended")) {
      await this.resumed(cursors, isRecovered(response), response, signal);
      if (signal.aborted) return;
      this.connection.opened(this);
      this.endAll(cursors, response);
      return;
    }
    const type = response.headers.get("Content-Type") ?? "";
    if (!type.startsWith("text/event-stream") || !response.body) {
      throw new Loss("the answer is not an event stream", { isUnusable: true });
    }
    this.serverName = response.headers.get("Throng-Connection") ?? undefined;
    const parser = new EventStreamParser();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await orAborted(reader.read(), signal).catch((error) => {
        // A `fetch` that ignores its signal would keep the connection open.
        reader.cancel().catch(() => {});
        throw signal.aborted ? error : new Loss(String(error), { hintMs: parser.retryMs });
      });
      if (done && cursors.every(({ isClosed }) => isClosed)) return;
      if (done) throw new Loss("the stream ended", { hintMs: parser.retryMs });
      this.receivedAt = Date.now();
      const silence = new Loss("the server fell silent");
      this.watch(heartbeatMs > 0 ? heartbeatMs + requestTimeoutMs / 2 : 0, silence);
      for (const { event, data } of parser.push(value)) {
        const body = this.hear(() => parse(data));
        if (event === "closed") throw this.hear(() => lossOf(body, tokens, token));
        await this.#take(event, body, cursors, response, signal);
        if (signal.aborted) return;
      }
    }
  }

  async #take(event, body, cursors, response, signal) {
    if (/^(message|binary|erased|presence|ended)$/.test(event)) this.hear(() => this.deliver(cursors, body));
    else if (/^(gap|conflated)$/.test(event)) {
      const cursor = cursors.find(({ key }) => key === keyOf(body));
      this.hear(() => (event === "gap" ? cursor?.gap(body) : cursor?.skip(body.count)));
    } else if (/^(welcome|unread)$/.test(event)) this.hear(() => this.client.tellUnread(body));
    else if (event === "resumed") {
      await this.resumed(cursors, body?.recovered, response, signal);
      // A full server sends a stream that ends at once; this event confirms a subscription.
      if (!signal.aborted) this.connection.opened(this);
      if (this.#pace !== this.#fastest()) this.subscribe();
    }
  }

  /** The pace of the stream: that of the fastest channel, because it has one for all. */
  #fastest() {
    const paces = [...this.connection.cursors.values()].map(({ pace = 0 }) => pace);
    return Math.min(...paces) || undefined;
  }
}

/** Whether no messages are missing before those of a response. */
function isRecovered({ headers }) {
  return headers.get("Throng-Recovered") !== "false";
}

/** A page of history. Throws for what is none, such as a proxy's page of login. */
function pageOf(text) {
  const page = JSON.parse(text);
  if (typeof page?.id !== "string" || !Array.isArray(page.messages)) throw new Error("no page of history");
  return page;
}

/** Long-poll: one request after another; each returns as soon as there is a message. */
export class PollLink extends HttpLink {
  async follow(cursors, signal) {
    const { pollWaitSeconds, requestTimeoutMs } = this.options;
    // The first poll returns at once, which shows that the transport works. If others did, one would
    // follow the other without a pause.
    const isFirst = !this.isOpen || this.isProbing;
    this.isProbing = false;
    const waitSeconds = isFirst ? 0 : Math.max(1, pollWaitSeconds);
    const late = new Loss("the poll was not answered in time");
    const graceMs = waitSeconds > 0 ? requestTimeoutMs / 2 : requestTimeoutMs;
    this.watch(waitSeconds * 1_000 + graceMs, late);
    const path = this.url(cursors, { transport: "poll", wait: String(waitSeconds) });
    const request = this.client.request(path, { signal });
    if (!isFirst) this.#waits(cursors);
    const answer = await request;
    const response = await this.checkMany(answer, cursors);
    if (!response) return;
    if (!response.headers.get("Throng-Id")) {
      throw new Loss("the answer is not one of a Throng server", { isUnusable: true, isForeign: true });
    }
    const text = await this.text(response);
    // A publish cannot exclude a poll: own messages are recognized by their ids.
    const silent = [...this.client.outbox.pending].filter((each) => !each.echo && each.attempts > 0);
    await orAborted(Promise.allSettled(silent.map(({ answer }) => answer)), signal);
    await this.resumed(cursors, isRecovered(response), response, signal);
    if (signal.aborted) return;
    this.connection.opened(this);
    for (const line of text.split("\n")) {
      if (line !== "") this.hear(() => this.deliver(cursors, parse(line)));
    }
    const ids = (response.headers.get("Throng-Id") ?? "").split(",");
    // Chromium may end the body of a cut response as if it were whole. So what has messages counts as
    // far as they came.
    if (response.status === 204 && ids.length === cursors.length) {
      cursors.forEach((cursor, index) => {
        // Without a position its state comes first.
        if (cursor.position) cursor.position = ids[index];
      });
    }
    this.endAll(cursors, response);
    // A server that shuts down adds a time to retry to its last response.
    const hintMs = retryAfterMs(response, this.options.random);
    if (hintMs !== undefined) throw new Loss("the server is shutting down", { hintMs });
  }

  /** Reports a waiting poll as open: it returns nothing until there is a message. */
  #waits(cursors) {
    for (const cursor of cursors) cursor.isLive = true;
    this.connection.opened(this);
  }
}
