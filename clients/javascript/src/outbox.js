/**
 * The messages that are being published.
 *
 * Invariants:
 * - All attempts of a publish have the same idempotency key, so that a retry cannot publish twice.
 * - Messages to one channel arrive in the order in which they were published, but for those with a
 *   receipt or `keepalive`.
 */

import { ThrongError } from "./errors.js";
import { abort, backoffMs, deadline, delay, foundNoConnection, isForeign } from "./http.js";
import { isOfToken, isTemporary, orAborted, retryAfterMs, toError } from "./http.js";
import { bytesOf, checkText, isBinary, keyOf, pathOf, randomKey } from "./message.js";
import { toBytes, toHeader, toJson, typeOf } from "./message.js";
import { check, checkNames } from "./options.js";

/** The error after which the message may be published, now or later. */
const UNKNOWN_CODE = "outcome_unknown";
/** Errors of a WebSocket after which the same message may be accepted. */
const RETRIED_CODES = ["busy", "unavailable", "too_many_requests", UNKNOWN_CODE];
/** Ids of own messages to suppress (`echo: false`); beyond this, the oldest is forgotten. */
const SILENT_IDS_MAX = 1_000;
/** The longest wait for a receipt: the server's own limit. */
const RECEIPT_SECONDS_MAX = 60;
/** The longest time until a message expires: the server's own limit, a year. */
const EXPIRES_SECONDS_MAX = 31_536_000;
/** The most bytes of UTF-8 that a unit of a string becomes. */
const UNIT_BYTES_MAX = 3;
/** The longest time for all attempts; the server remembers a key a minute longer. */
const PUBLISH_MS_MAX = 240_000;

/** One message, with as many attempts as its deadline allows. */
class Publish {
  /** The WebSocket link that sent it last. */
  link;
  /** Sent by a request of its own, so that WebSocket links skip it. */
  isPosting = false;
  isSettled = false;
  /** Why the last request failed, for the error. */
  trouble = "";
  /** Ends its requests and delays. */
  abort = new AbortController();
  /** Number of attempts, and of those that may have published the message. */
  attempts = 0;
  #uncertain = 0;

  constructor(target, data, options) {
    const more = ["contentType", "keepalive", "receipt", "expiresInSeconds", "volatile"];
    checkNames(options, [...more, "key", "echo", "event", "tags", "stateKey"], "publish");
    const { echo, receipt, expiresInSeconds, volatile } = options;
    const lasts = expiresInSeconds ?? 1;
    const isLife = Number.isInteger(lasts) && lasts >= 1 && lasts <= EXPIRES_SECONDS_MAX;
    check(isLife, `"expiresInSeconds" must be a whole number, 1 to ${EXPIRES_SECONDS_MAX}`);
    // Messages of others would wait for the receipt, because they may be this one.
    const isInside = receipt >= 0 && receipt <= RECEIPT_SECONDS_MAX && echo !== false;
    const range = `a number of seconds, 0 to ${RECEIPT_SECONDS_MAX}`;
    const message = `"receipt" must be ${range}, and excludes "echo: false"`;
    check(receipt === undefined || isInside, message);
    Object.assign(this, { ...options, target, echo: echo ?? true });
    // A volatile message has one attempt: nothing would tell a second one from the first.
    if (!volatile) this.key ??= randomKey();
    /** When it expires, counted from the call; it is not sent any more then. */
    this.expiresAt = expiresInSeconds && Date.now() + expiresInSeconds * 1_000;
    /** How much longer than others a response may take. */
    this.waitMs = (receipt ?? 0) * 1_000;
    // Copied, because the caller may change the data before an attempt.
    if (this.tags) this.tags = JSON.parse(toJson(this.tags));
    if (typeof data === "string") {
      checkText(data, "the text");
      this.data = this.body = data;
    } else if (isBinary(data)) this.data = this.body = toBytes(data).slice();
    else {
      this.body = toJson(data);
      this.data = JSON.parse(this.body);
    }
    // Throws for a key or type that no header may have.
    new Headers(this.request().headers);
    this.answer = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
  }

  /** In how many seconds it expires from now; undefined if it does not. */
  get expiresIn() {
    return this.expiresAt && Math.max(1, Math.ceil((this.expiresAt - Date.now()) / 1_000));
  }

  /** Whether its body has more bytes than this. */
  isOver(bytesMax) {
    const { byteLength, length } = this.body;
    if (byteLength !== undefined) return byteLength > bytesMax;
    return length * UNIT_BYTES_MAX > bytesMax && bytesOf(this.body) > bytesMax;
  }

  sent() {
    this.attempts += 1;
    this.#uncertain += 1;
  }

  /** One attempt published nothing: the server refused it, or it was not sent. */
  ruledOut() {
    this.#uncertain -= 1;
  }

  /** `unknown` if an attempt has no response: the message may be published now or later. */
  get outcome() {
    return this.#uncertain > 0 ? "unknown" : "unpublished";
  }

  request(signal) {
    const { data, body, keepalive, expiresIn, event, tags, stateKey } = this;
    const headers = { "Content-Type": this.contentType ?? typeOf(data) };
    if (this.key !== undefined) headers["Idempotency-Key"] = this.key;
    if (expiresIn) headers["Throng-Expires-In"] = String(expiresIn);
    if (event !== undefined) headers["Throng-Event"] = toHeader(event);
    if (tags) headers["Throng-Tags"] = toHeader(JSON.stringify(tags));
    if (stateKey !== undefined) headers["Throng-State-Key"] = toHeader(stateKey);
    if (this.receipt !== undefined) headers.Prefer = `receipt, wait=${this.receipt}`;
    return { method: "POST", headers, body, keepalive, signal };
  }
}

export class Outbox {
  #client;
  pending = new Set();
  /** The last request per channel. The next one waits for it, which keeps the order. */
  #lanes = new Map();
  #silentIds = new Set();

  constructor(client) {
    this.#client = client;
  }

  publish(target, data, options, isClosed) {
    const publish = new Publish(target, data, options);
    const { queueMax, publishTimeoutMs } = this.#client.options;
    const { length } = [...this.pending].filter((each) => {
      return !each.link || each.link !== this.#client.connectionFor(each.target).link;
    });
    if (isClosed) this.#refuse(publish, new ThrongError("closed", "the client is closed"));
    else if (length >= queueMax) {
      this.#refuse(publish, new ThrongError("queue_full", `${length} messages wait to be sent`));
    }
    if (publish.isSettled) return publish.answer;
    const lifeMs = publish.expiresAt ? publish.expiresAt - Date.now() : Infinity;
    const limitMs = Math.min(publishTimeoutMs + publish.waitMs, PUBLISH_MS_MAX, lifeMs);
    publish.timer = setTimeout(() => this.#lose(publish, ` in ${limitMs} ms`), limitMs);
    this.pending.add(publish);
    this.#dispatch(publish);
    return publish.answer;
  }

  flush() {
    for (const publish of this.pending) this.#dispatch(publish);
  }

  /** Gives up: the time is over, or the only attempt of a volatile message. */
  #lose(publish, when = "") {
    const end = `${when}; outcome: ${publish.outcome}${publish.trouble}`;
    const message = `the server did not confirm the message${end}`;
    this.#refuse(publish, new ThrongError("timeout", message));
  }

  /** Rejects all unconfirmed messages. */
  close(error) {
    for (const publish of this.pending) {
      this.#refuse(publish, new ThrongError(error.code, error.message, error.status));
    }
  }

  /** The messages that a new WebSocket must send first. */
  retriesFor(connection) {
    return [...this.pending].filter((publish) => {
      const isOurs = this.#client.connectionFor(publish.target) === connection;
      return isOurs && publish.link && !publish.isPosting && !publish.volatile;
    });
  }

  /** Whether to suppress a message. Call it once per message: the id is then forgotten. */
  isSilent(key, id) {
    return this.#silentIds.size > 0 && this.#silentIds.delete(`${key} ${id}`);
  }

  settle(publish, { id, volatile, subscribers, duplicate, receipt }) {
    if (!this.#finish(publish)) return;
    if (!publish.echo && id) {
      this.#silentIds.add(`${keyOf(publish.target)} ${id}`);
      const [oldest] = this.#silentIds;
      if (this.#silentIds.size > SILENT_IDS_MAX) this.#silentIds.delete(oldest);
    }
    const fields = Object.entries({ id, volatile, subscribers, duplicate, receipt });
    publish.resolve(Object.fromEntries(fields.filter(([, value]) => value !== undefined)));
  }

  /** Handles an error response over a WebSocket. */
  async retryOrRefuse(publish, error) {
    if (error.code !== UNKNOWN_CODE) publish.ruledOut();
    if (publish.volatile || !RETRIED_CODES.includes(error.code)) {
      return this.#refuse(publish, error);
    }
    const { link, attempts, abort } = publish;
    await delay(backoffMs(attempts, this.#client.options.random), abort.signal);
    if (publish.link !== link) return;
    publish.link = undefined;
    this.#dispatch(publish);
  }

  /** Sends it over a WebSocket if there is one or will be, and else by a request of its own. */
  #dispatch(publish) {
    if (publish.isPosting || publish.isSettled) return;
    const { messageBytesMax = Infinity } = this.#client;
    if (publish.isOver(messageBytesMax)) {
      const message = `the message is larger than the ${messageBytesMax} bytes that the server takes`;
      return this.#refuse(publish, new ThrongError("too_large", message));
    }
    const connection = this.#client.connectionFor(publish.target);
    const { link, state } = connection;
    const { volatile, keepalive, receipt } = publish;
    const isAlone = keepalive || receipt !== undefined;
    if (volatile && (publish.link ?? link) !== link) this.#lose(publish);
    else if (isAlone || state === "idle") this.#post(publish);
    else if (volatile && !link?.isOpen) this.#lose(publish);
    else if (connection.transport === "websocket") {
      // After a fallback, messages before this one may still be on their way by requests.
      const isFirst = !this.#lanes.has(keyOf(publish.target));
      if (link?.isOpen && publish.link !== link && isFirst) link.publish(publish);
    } else {
      // Before its subscription is live, the client would miss its own message.
      const cursor = connection.cursors.get(keyOf(publish.target));
      const isAhead = cursor && !cursor.isLive && state !== "waiting";
      if (!isAhead) this.#post(publish);
    }
  }

  #post(publish) {
    publish.isPosting = true;
    const lane = keyOf(publish.target);
    // A page that is closing must send at once.
    const previous = publish.keepalive ? undefined : this.#lanes.get(lane);
    const done = Promise.resolve(previous).then(() => this.#postUntilSettled(publish));
    // Nothing waits until the server has a receipt, or for the last request of a page.
    if (publish.receipt !== undefined || publish.keepalive) return;
    this.#lanes.set(lane, done);
    done.finally(() => {
      if (this.#lanes.get(lane) !== done) return;
      this.#lanes.delete(lane);
      this.flush();
    });
  }

  async #postUntilSettled(publish) {
    const { random, requestTimeoutMs } = this.#client.options;
    for (let attempt = 0; !publish.isSettled; attempt += 1) {
      let delayMs = backoffMs(attempt, random);
      const startedAt = Date.now();
      const limit = deadline(requestTimeoutMs + publish.waitMs, publish.abort.signal);
      const init = publish.request(limit.signal);
      const connection = this.#client.connectionFor(publish.target);
      if (!publish.echo && connection.link?.serverName) {
        init.headers["Throng-Exclude"] = connection.link.serverName;
      }
      publish.sent();
      const doubt = setTimeout(() => connection.doubt(), requestTimeoutMs / 2 + publish.waitMs);
      try {
        const { target, volatile } = publish;
        const path = pathOf(target, "publish", { volatile });
        const response = await this.#client.request(path, init);
        if (response.ok) {
          const body = await orAborted(response.json(), limit.signal);
          // Without this number it is not from Throng, and says nothing about a server behind it.
          if (body.subscribers >= 0) return this.settle(publish, body);
        } else {
          const error = await toError(response, limit.signal);
          // A proxy's error says nothing about what the server behind it did.
          const isUnknown = isForeign(error) || error.code === UNKNOWN_CODE;
          if (!isUnknown) publish.ruledOut();
          if (publish.volatile || !isTemporary(error)) return this.#refuse(publish, error);
          publish.trouble = `; ${error.message}`;
          if (isForeign(error)) this.#client.warn(error.message);
          delayMs = retryAfterMs(response, random) ?? delayMs;
        }
      } catch (error) {
        // The message may have arrived; the key makes the next attempt safe.
        publish.trouble = `; ${error.message}`;
        if (foundNoConnection(error) || isOfToken(error)) publish.ruledOut();
        if (limit.signal.reason?.code === "timeout") connection.suspect(startedAt);
      } finally {
        clearTimeout(doubt);
        limit.end();
      }
      if (publish.volatile) return this.#lose(publish);
      await delay(delayMs, publish.abort.signal);
    }
  }

  #refuse(publish, error) {
    const { outcome, key } = publish;
    if (this.#finish(publish)) publish.reject(Object.assign(error, { outcome, key }));
  }

  #finish(publish) {
    if (publish.isSettled) return false;
    publish.isSettled = true;
    clearTimeout(publish.timer);
    this.pending.delete(publish);
    abort(publish.abort);
    return true;
  }
}
