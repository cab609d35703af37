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
import { isOfToken, isTemporary, orAborted, retryAfterMs, toError } from "./http.js";
import { keyOf, pathOf } from "./message.js";
import { followPresence } from "./presence.js";
import { Cursor } from "./subscription.js";

/** Changes of the channels within this time start only one new round. */
const REOPEN_DELAY_MS = 20;
/** Statuses after which the server would refuse the same request again, over any transport. */
const FINAL_STATUSES = new Set([400, 401, 403]);
/** Those of them that refuse the channel, if the request is for one channel. */
const CHANNEL_STATUSES = new Set([400, 403]);
/** Refusals of a request for too many channels, by number or by length. */
const TOO_MANY_CODES = new Set(["too_many_channels", "uri_too_long", "head_too_large"]);

export class HttpLink {
  isOpen = false;
  isClosed = false;
  /** When data last arrived on this link, in ms since 1970. */
  receivedAt = 0;
  connection;
  client;
  options;
  /** Aborts the request of this round, with a reason: the link itself, or a `Loss`. */
  round = null;
  #watchdog;
  #reopenTimer;
  /** Whether to ask for presence events: the server has not refused them. */
  #hasEvents = true;
  /** Cursors whose presence events this round asks for, and the last of which is known, by its time. */
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
        round.signal.throwIfAborted();
        const settled = cursors.filter(({ isClosed }) => !isClosed);
        // If every channel was refused, wait for the next subscription.
        if (settled.length > 0) await this.follow(settled, round.signal);
        else await aborted(round.signal);
      } catch (error) {
        const cause = round.signal.aborted ? round.signal.reason : error;
        if (this.isClosed || cause === this) continue;
        const isAnswer = isOfToken(cause);
        const loss = cause instanceof Loss ? cause : new Loss(String(cause), { isAnswer });
        this.connection.lost(this, loss);
        return;
      } finally {
        clearTimeout(this.#watchdog);
      }
    }
  }

  close() {
    this.isClosed = true;
    this.#end.abort();
    clearTimeout(this.#reopenTimer);
    clearTimeout(this.#watchdog);
    this.round?.abort(this);
  }

  subscribe() {
    clearTimeout(this.#reopenTimer);
    // Without channels, the client will close the link soon.
    this.#reopenTimer = setTimeout(() => {
      if (this.connection.cursors.size > 0) this.round?.abort(this);
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

  /** The cursor wants presence events. Inboxes have none, nor do all servers: presence is read then. */
  renew(cursor) {
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
    if (timeoutMs > 0) this.#watchdog = setTimeout(() => round.abort(loss), timeoutMs);
  }

  url(cursors, query) {
    const parameters = new URLSearchParams(query);
    for (const { target } of cursors) {
      if (target.user === undefined) parameters.append("channel", target.channel);
      else parameters.append("user", target.user);
    }
    parameters.set("envelope", "true");
    parameters.set("since", cursors.map(({ position }) => position).join(","));
    this.#asked = new Set(cursors.filter((each) => each.presence && this.#mayAsk(each)));
    if (this.#asked.size > 0) {
      const channels = cursors.filter(({ target }) => target.user === undefined);
      const known = (each) => this.#asked.has(each) && (this.#presenceTimes.get(each) ?? true);
      parameters.set("presence", channels.map(known).join(","));
    }
    return `/subscribe?${parameters}`;
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
    });
  }

  /** Whether this channel has no gap. A response covers all channels; a history covers one. */
  async #isWhole(cursor, cursors, signal) {
    if (cursors.length === 1) return false;
    const query = new URLSearchParams({ after: cursor.position, limit: "1" });
    const path = `${pathOf(cursor.target)}/history?${query}`;
    const response = await this.client.request(path, { signal });
    if (!response.ok) return false;
    return JSON.parse(await this.text(response)).recovered !== false;
  }

  /** The body. Each chunk extends the deadline. */
  text(response) {
    const late = new Loss("the answer stopped in the middle");
    this.watch(this.options.requestTimeoutMs, late);
    const text = readText(response, () => {
      this.receivedAt = Date.now();
      this.watch(this.options.requestTimeoutMs, late);
    });
    return orAborted(text, this.round.signal);
  }

  /** Throws the `Loss` for an error response. */
  async check(response) {
    this.receivedAt = Date.now();
    if (response.ok) return response;
    const error = await toError(response, this.round.signal);
    // A newer token may be better.
    const isRenewed = response.status === 401 && this.client.tokens.canRenew;
    if (isRenewed && error.code !== "token_revoked") {
      throw new Loss(error.message, { isAnswer: true });
    }
    if (FINAL_STATUSES.has(response.status)) throw new Loss(error.message, { error });
    const hintMs = retryAfterMs(response, this.options.random);
    throw new Loss(error.message, { hintMs, isUnusable: !isTemporary(response) });
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
      // Perhaps only the presence events of one of them, or for their number.
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
    return this.client.request(`${pathOf(target)}?transport=sse`, { method: "HEAD", signal });
  }

  deliver(cursors, envelope) {
    const cursor = cursors.find(({ key }) => key === keyOf(envelope));
    if (!cursor) return;
    if (envelope.type === "presence") {
      this.#presenceTimes.set(cursor, envelope.time);
      cursor.see(envelope);
    } else this.client.deliver(cursor, envelope);
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
      // With a position, so that one that is no id is the fault of this channel and of no other.
      const page = position ? `1&after=${encodeURIComponent(position)}` : Math.max(1, history);
      const path = `${pathOf(cursor.target)}/history?limit=${page}`;
      const answer = await this.client.request(path, { signal });
      if (CHANNEL_STATUSES.has(answer.status)) {
        const error = await toError(answer.clone(), signal);
        const { code } = error;
        if (code === "forbidden" && (await this.#settleWithoutHistory(cursor, signal))) return;
        const isOfChannel = cursor !== this.#inbox && code !== "origin_refused";
        if (isOfChannel) return this.client.drop(cursor, error);
      }
      const response = await this.check(answer);
      const { id, messages } = JSON.parse(await this.text(response));
      // A later round may have requested the same position.
      if (signal.aborted || cursor.isClosed) return;
      cursor.head = id;
      if (cursor.position) return;
      cursor.follow({ id, head: id });
      if (cursor.history > 0) {
        for (const envelope of messages) this.client.deliver(cursor, envelope);
      }
    };
    this.watch(this.options.requestTimeoutMs, new Loss("the server did not answer in time"));
    await Promise.all(cursors.filter((cursor) => cursor.needsStart).map(settle));
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

  async follow(cursors, signal) {
    const { heartbeatMs, openTimeoutMs, requestTimeoutMs } = this.options;
    // A resumed stream begins with an event at once, unless a proxy buffers it.
    const buffered = new Loss("the stream did not begin in time", { isUnusable: true });
    this.watch(openTimeoutMs, buffered);
    const path = this.url(cursors, { transport: "sse" });
    const headers = { Accept: "text/event-stream" };
    const answer = await this.client.request(path, { signal, headers });
    const { tokens } = this.client;
    const token = tokens.current;
    const response = await this.checkMany(answer, cursors);
    if (!response) return;
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
      if (done) throw new Loss("the stream ended", { hintMs: parser.retryMs });
      this.receivedAt = Date.now();
      const silence = new Loss("the server fell silent");
      this.watch(heartbeatMs > 0 ? heartbeatMs + requestTimeoutMs / 2 : 0, silence);
      for (const { event, data } of parser.push(value)) {
        if (event === "closed") throw lossOf(JSON.parse(data), tokens, token);
        await this.#take(event, JSON.parse(data), cursors, response, signal);
        if (signal.aborted) return;
      }
    }
  }

  async #take(event, body, cursors, response, signal) {
    if (/^(message|binary|presence)$/.test(event)) this.deliver(cursors, body);
    else if (event === "gap") cursors.find(({ key }) => key === keyOf(body))?.gap(body);
    else if (event === "resumed") {
      await this.resumed(cursors, body.recovered, response, signal);
      // A full server sends a stream that ends at once; this event confirms a subscription.
      if (!signal.aborted) this.connection.opened(this);
    }
  }
}

/** Long-poll: one request after another; each returns as soon as there is a message. */
export class PollLink extends HttpLink {
  async follow(cursors, signal) {
    const { pollWaitSeconds, requestTimeoutMs } = this.options;
    // The first poll returns at once, which shows that the transport works. If others did, one would
    // follow the other without a pause.
    const waitSeconds = this.isOpen ? Math.max(1, pollWaitSeconds) : 0;
    const late = new Loss("the poll was not answered in time");
    const graceMs = waitSeconds > 0 ? requestTimeoutMs / 2 : requestTimeoutMs;
    this.watch(waitSeconds * 1_000 + graceMs, late);
    const path = this.url(cursors, { transport: "poll", wait: String(waitSeconds) });
    const request = this.client.request(path, { signal });
    if (this.isOpen) this.#waits(cursors);
    const answer = await request;
    const response = await this.checkMany(answer, cursors);
    if (!response) return;
    const text = await this.text(response);
    // A publish cannot exclude a poll: own messages are recognized by their ids.
    const silent = [...this.client.outbox.pending].filter((each) => !each.echo && each.attempts > 0);
    await orAborted(Promise.allSettled(silent.map(({ answer }) => answer)), signal);
    const recovered = response.headers.get("Throng-Recovered") !== "false";
    await this.resumed(cursors, recovered, response, signal);
    if (signal.aborted) return;
    this.connection.opened(this);
    for (const line of text.split("\n")) {
      if (line !== "") this.deliver(cursors, JSON.parse(line));
    }
    const ids = (response.headers.get("Throng-Id") ?? "").split(",");
    // Chromium may end the body of a cut response as if it were whole. So what has messages counts as
    // far as they came.
    if (response.status === 204 && ids.length === cursors.length) {
      cursors.forEach((cursor, index) => {
        cursor.position = ids[index];
      });
    }
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
