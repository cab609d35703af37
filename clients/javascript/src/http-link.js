/**
 * What SSE and long-poll share: rounds of one request for all channels, ended and begun anew when
 * the channels change.
 *
 * The ids of several channels go out together, one for each or none at all. So a channel without a
 * position first asks its history, which gives the messages wanted and the id to go on from: one
 * rule for any mix of old and new channels, and one connection, of which browsers allow only six
 * to a server.
 */

import { Loss } from "./errors.js";
import { EventStreamParser } from "./event-stream.js";
import { aborted, isTemporary, orAborted, readText, retryAfterMs, toError } from "./http.js";
import { keyOf, pathOf } from "./message.js";
import { Cursor } from "./subscription.js";

/** Changes of the channels within this time re-open a stream or poll only once. */
const REOPEN_DELAY_MS = 20;
/** Statuses that say "this request will never do", as opposed to "not now" or "not this way". */
const FINAL_STATUSES = new Set([400, 401, 403]);
/** Those of them that concern one channel when only one was asked for. */
const CHANNEL_STATUSES = new Set([400, 403]);
/** Refusals of a request for too many channels, by number or by length. */
const TOO_MANY_CODES = new Set(["too_many_channels", "uri_too_long", "head_too_large"]);

export class HttpLink {
  isOpen = false;
  isClosed = false;
  /** When the server was last heard of over this link. */
  heardAt = 0;
  host;
  /** Ends the request of this round; its reason says why. */
  round = null;
  #watchdog;
  #reopenTimer;
  /** Follows the inbox that naming a user brings with it, when nothing subscribed to it. */
  #inbox;

  constructor(host) {
    this.host = host;
    if (host.user !== undefined) this.#inbox = new Cursor({ user: host.user });
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
        // With every channel refused there is nothing to ask for until others are subscribed.
        if (settled.length > 0) await this.follow(settled, round.signal);
        else await aborted(round.signal);
      } catch (error) {
        const cause = round.signal.aborted ? round.signal.reason : error;
        if (this.isClosed || cause === this) continue;
        const loss = cause instanceof Loss ? cause : new Loss(String(cause));
        this.host.lost(this, loss);
        return;
      } finally {
        clearTimeout(this.#watchdog);
      }
    }
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.#reopenTimer);
    clearTimeout(this.#watchdog);
    this.round?.abort(this);
  }

  subscribe() {
    clearTimeout(this.#reopenTimer);
    // Without a channel there is nothing to ask for; the client will close the link soon.
    this.#reopenTimer = setTimeout(() => {
      if (this.host.cursors.size > 0) this.round?.abort(this);
    }, REOPEN_DELAY_MS);
  }

  unsubscribe() {
    this.subscribe();
  }

  /** Ends the round unless it is called again in time. */
  watch(patienceMs, loss) {
    clearTimeout(this.#watchdog);
    const round = this.round;
    if (patienceMs > 0) this.#watchdog = setTimeout(() => round.abort(loss), patienceMs);
  }

  url(cursors, query) {
    const parameters = new URLSearchParams(query);
    for (const { target } of cursors) {
      if (target.user === undefined) parameters.append("channel", target.channel);
      else parameters.append("user", target.user);
    }
    parameters.set("envelope", "true");
    parameters.set("since", cursors.map(({ position }) => position).join(","));
    return `/subscribe?${parameters}`;
  }

  /** Takes the response's word on what is missing, before any of its messages is delivered. */
  async resumed(cursors, recovered, response, signal) {
    const starts = (response.headers.get("Throng-Id") ?? "").split(",");
    const isWhole = recovered
      ? cursors.map(() => true)
      : await Promise.all(cursors.map((cursor) => this.#isWhole(cursor, cursors, signal)));
    if (signal.aborted) return;
    cursors.forEach((cursor, index) => {
      cursor.isLive = true;
      cursor.follow({ id: starts[index], recovered: isWhole[index] });
    });
  }

  /** The answer covers all channels at once; which of them has the gap its history knows. */
  async #isWhole(cursor, cursors, signal) {
    if (cursors.length === 1) return false;
    const query = new URLSearchParams({ after: cursor.position, limit: "1" });
    const path = `${pathOf(cursor.target)}/history?${query}`;
    const response = await this.host.request(path, { signal });
    if (!response.ok) return false;
    return JSON.parse(await this.text(response)).recovered !== false;
  }

  /** The body; as long as some of it arrives now and then, the server is not silent. */
  text(response) {
    const late = new Loss("the answer stopped in the middle");
    this.watch(this.host.requestTimeoutMs, late);
    const text = readText(response, () => {
      this.heardAt = Date.now();
      this.watch(this.host.requestTimeoutMs, late);
    });
    return orAborted(text, this.round.signal);
  }

  /** Throws what a response other than the hoped-for means for the link. */
  async check(response) {
    this.heardAt = Date.now();
    if (response.ok) return response;
    const error = await toError(response, this.round.signal);
    if (FINAL_STATUSES.has(response.status)) throw new Loss(error.message, { error });
    const hintMs = retryAfterMs(response, this.host.random);
    throw new Loss(error.message, { hintMs, isUnusable: !isTemporary(response) });
  }

  /**
   * The response to a request for these channels; nothing where they were too many. Then some
   * have moved to another connection, and the next round asks for the others. The server does not
   * say how many it takes, so half of them is tried.
   */
  async checkMany(response, cursors) {
    if (!response.ok && cursors.length > 1) {
      const error = await toError(response.clone(), this.round.signal);
      if (TOO_MANY_CODES.has(error.code)) {
        this.host.learn(Math.ceil(cursors.length / 2));
        return undefined;
      }
    }
    return this.check(response);
  }

  deliver(cursors, envelope) {
    const cursor = cursors.find(({ key }) => key === keyOf(envelope));
    if (cursor) this.host.deliver(cursor, envelope);
  }

  /** Channels in the order of the URL, the user last: the order of the ids. */
  #cursors() {
    const cursors = [...this.host.cursors.values()];
    const channels = cursors.filter(({ target }) => target.user === undefined);
    const inbox = cursors.find(({ target }) => target.user !== undefined) ?? this.#inbox;
    return inbox ? [...channels, inbox] : channels;
  }

  /** Gives each channel a position, and with it the messages that it begins with. */
  async #settle(cursors, signal) {
    const settle = async (cursor) => {
      const limit = cursor.position ? 1 : Math.max(1, cursor.history);
      const path = `${pathOf(cursor.target)}/history?limit=${limit}`;
      const answer = await this.host.request(path, { signal });
      if (CHANNEL_STATUSES.has(answer.status) && cursor !== this.#inbox) {
        const error = await toError(answer.clone(), signal);
        if (error.code !== "origin_refused") return this.host.dropped(cursor, error);
      }
      const response = await this.check(answer);
      const { id, messages } = JSON.parse(await this.text(response));
      // Another round may have begun, and with it another request for the same position.
      if (signal.aborted || cursor.isClosed) return;
      cursor.head = id;
      if (cursor.position) return;
      cursor.follow({ id, head: id });
      if (cursor.history > 0) {
        for (const envelope of messages) this.host.deliver(cursor, envelope);
      }
    };
    this.watch(this.host.requestTimeoutMs, new Loss("the server did not answer in time"));
    await Promise.all(cursors.filter((cursor) => cursor.needsStart).map(settle));
  }
}

/** Server-sent events, read from a streaming response (Node has no EventSource). */
export class StreamLink extends HttpLink {
  /** The server's name of this connection, to keep own messages from it (`echo: false`). */
  connection = undefined;

  async follow(cursors, signal) {
    const { heartbeatMs, openTimeoutMs, requestTimeoutMs } = this.host;
    // A stream that resumes begins with an event at once; a proxy that collects keeps it back.
    const held = new Loss("the stream is held back on the way", { isUnusable: true });
    this.watch(openTimeoutMs, held);
    const path = this.url(cursors, { transport: "sse" });
    const headers = { Accept: "text/event-stream" };
    const answer = await this.host.request(path, { signal, headers });
    const response = await this.checkMany(answer, cursors);
    if (!response) return;
    const type = response.headers.get("Content-Type") ?? "";
    if (!type.startsWith("text/event-stream") || !response.body) {
      throw new Loss("the answer is not an event stream", { isUnusable: true });
    }
    this.connection = response.headers.get("Throng-Connection") ?? undefined;
    const parser = new EventStreamParser();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await orAborted(reader.read(), signal).catch((error) => {
        // A `fetch` that ignores its signal would keep the connection.
        reader.cancel().catch(() => {});
        throw signal.aborted ? error : new Loss(String(error), { hintMs: parser.retryMs });
      });
      if (done) throw new Loss("the stream ended", { hintMs: parser.retryMs });
      this.heardAt = Date.now();
      const silence = new Loss("the server fell silent");
      this.watch(heartbeatMs > 0 ? heartbeatMs + requestTimeoutMs : 0, silence);
      for (const { event, data } of parser.push(value)) {
        await this.#take(event, JSON.parse(data), cursors, response, signal);
        if (signal.aborted) return;
      }
    }
  }

  async #take(event, body, cursors, response, signal) {
    if (event === "message" || event === "binary") this.deliver(cursors, body);
    else if (event === "gap") cursors.find(({ key }) => key === keyOf(body))?.gap(body);
    else if (event === "resumed") {
      await this.resumed(cursors, body.recovered, response, signal);
      // A server without room sends a stream that ends at once: only this event says it stands.
      if (!signal.aborted) this.host.opened(this);
    }
  }
}

/** Long-poll: one request after the other, each answered as soon as there is something. */
export class PollLink extends HttpLink {
  async follow(cursors, signal) {
    const { pollWaitSeconds, requestTimeoutMs } = this.host;
    // The first is answered at once, which shows that the way is open.
    const waitSeconds = this.isOpen ? pollWaitSeconds : 0;
    const late = new Loss("the poll was not answered in time");
    this.watch(waitSeconds * 1_000 + requestTimeoutMs, late);
    const path = this.url(cursors, { transport: "poll", wait: String(waitSeconds) });
    const asked = this.host.request(path, { signal });
    if (this.isOpen) this.#waits(cursors);
    const answer = await asked;
    const response = await this.checkMany(answer, cursors);
    if (!response) return;
    const text = await this.text(response);
    // A poll has no name that a publish could exclude; own messages are known by their ids.
    await orAborted(this.host.silentPublishes(), signal);
    const recovered = response.headers.get("Throng-Recovered") !== "false";
    await this.resumed(cursors, recovered, response, signal);
    if (signal.aborted) return;
    this.host.opened(this);
    for (const line of text.split("\n")) {
      if (line !== "") this.deliver(cursors, JSON.parse(line));
    }
    const ids = (response.headers.get("Throng-Id") ?? "").split(",");
    if (ids.length !== cursors.length) return;
    cursors.forEach((cursor, index) => {
      cursor.position = ids[index];
    });
    // A server that goes away says so in an answer that is otherwise good.
    const hintMs = retryAfterMs(response, this.host.random);
    if (hintMs !== undefined) throw new Loss("the server is going away", { hintMs });
  }

  /** A poll that waits is as live as it gets: nothing comes before there is a message. */
  #waits(cursors) {
    for (const cursor of cursors) cursor.isLive = true;
    this.host.opened(this);
  }
}
