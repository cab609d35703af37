/**
 * Publishes with a server key, in batches.
 *
 * Invariant: all attempts for a message have the same idempotency key, so that a retry cannot publish
 * it twice.
 */

import { ThrongError } from "../src/errors.js";
import {
  backoffMs,
  deadline,
  delay,
  foundNoConnection,
  isForeign,
  isTemporary,
  orAborted,
  retryAfterMs,
  toError,
} from "../src/http.js";
import { isBinary, pathOf, randomKey, toBase64, toBytes, toJson, toTarget } from "../src/message.js";
import { check, checkNames, toUrl } from "../src/options.js";
import { Queue } from "./queue.js";

/**
 * The messages and characters of one request: below the server's limits, and so few that a retry
 * repeats little.
 */
const BATCH_LINES_MAX = 1_000;
const BATCH_LENGTH_MAX = 1 << 20;
/** The server remembers idempotency keys for five minutes; a retry after that could double. */
const PUBLISH_TIMEOUT_MAX_MS = 240_000;
/** Errors of a message after which the same message may be accepted. */
const RETRIED_CODES = ["busy", "too_many_requests", "full", "draining", "outcome_unknown"];
/** The error after which the message may have been published. */
const UNKNOWN_CODE = "outcome_unknown";
const FIRST_NAMES = ["data", "contentType", "exclude", "expiresInSeconds", "event", "tags"];
const DRAFT_NAMES = [...FIRST_NAMES, "channel", "user", "key"];
const CREATION_NAMES = ["contentType", "ttlSeconds", "expiresAt", "messages"];

/** A message without its target and key. Throws the `ThrongError` of a text that no server takes. */
function bodyOf({ data, contentType, exclude, expiresInSeconds, event, tags }) {
  const body = isBinary(data) ? { data: toBase64(toBytes(data)), encoding: "base64" } : { data };
  toJson(body.data);
  return { ...body, content_type: contentType, exclude, expires_in: expiresInSeconds, event, tags };
}

/** The error of a response about a creation, which has a code that pages never get. */
async function toCreationError(response, signal) {
  const copy = response.clone();
  const error = await toError(response, signal);
  const { error: code, message } = (await orAborted(copy.json(), signal).catch(() => {})) ?? {};
  return code === "already_created" ? new ThrongError(code, message, error.status) : error;
}

/** A message on its way. */
class Line {
  /** What became of it: the answer, or an error. */
  result;
  /** An attempt has no response, or one that says so: it may have been published. */
  isUnknown = false;

  constructor(draft) {
    checkNames(draft, DRAFT_NAMES, "a message");
    this.key = draft.key ?? randomKey();
    try {
      const line = { ...toTarget(draft), ...bodyOf(draft), key: this.key };
      this.text = `${JSON.stringify(line)}\n`;
    } catch (error) {
      // The fault of this message, and of no other.
      if (!(error instanceof ThrongError)) throw error;
      this.fail(error);
    }
  }

  /** Takes the answer to it. Returns whether it is to be sent again. */
  take({ error, message, id, subscribers, duplicate }) {
    if (error === undefined) {
      this.result = { id, subscribers, ...(duplicate && { duplicate }) };
      return false;
    }
    this.isUnknown ||= error === UNKNOWN_CODE;
    this.fail(new ThrongError(error, message));
    return RETRIED_CODES.includes(error);
  }

  fail({ code, message, status }) {
    const outcome = this.isUnknown ? "unknown" : "unpublished";
    this.result = Object.assign(new ThrongError(code, message, status), { outcome, key: this.key });
  }
}

function* partsOf(lines) {
  let part = [];
  let length = 0;
  for (const line of lines) {
    const isFull = part.length === BATCH_LINES_MAX || length + line.text.length > BATCH_LENGTH_MAX;
    if (isFull && part.length > 0) {
      yield part;
      [part, length] = [[], 0];
    }
    part.push(line);
    length += line.text.length;
  }
  if (part.length > 0) yield part;
}

/** The answers to `count` messages. */
function parse(text, count) {
  const answers = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  if (answers.length === count) return answers;
  throw new Error("the answer is not one of a Throng server");
}

function timeoutError(timeoutMs, reason) {
  const message = `the server did not confirm the message in ${timeoutMs / 1000} s: ${reason}`;
  return new ThrongError("timeout", message);
}

export class Publisher {
  #url;
  #options;
  /** The messages that are published in the background; undefined without the option `queueMax`. */
  #queue;

  constructor(url, options = {}) {
    const defaults = {
      key: undefined,
      publishTimeoutMs: 30_000,
      requestTimeoutMs: 10_000,
      fetch: globalThis.fetch,
      random: Math.random,
      queueMax: undefined,
      onError: (error) => console.error("throng:", error),
    };
    checkNames(options, Object.keys(defaults), "Publisher");
    this.#url = toUrl(url);
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    this.#options = { ...defaults, ...Object.fromEntries(given) };
    if (!(this.#options.publishTimeoutMs <= PUBLISH_TIMEOUT_MAX_MS)) {
      throw new TypeError(`"publishTimeoutMs" is a number, at most ${PUBLISH_TIMEOUT_MAX_MS}`);
    }
    const { queueMax, onError } = this.#options;
    if (queueMax === undefined) return;
    check(Number.isInteger(queueMax) && queueMax > 0, '"queueMax" must be a whole number, 1 or more');
    this.#queue = new Queue(queueMax, BATCH_LINES_MAX, onError, (lines) => this.#publishAll(lines));
  }

  /** What became of the messages in the background. */
  get counts() {
    return this.#background.counts;
  }

  /** Publishes in the background. Returns the message's key at once, or throws if there is no room. */
  enqueue(target, data, options = {}) {
    const queue = this.#background;
    const line = new Line({ ...options, ...toTarget(target), data });
    if (line.result) throw line.result;
    queue.add(line);
    return line.key;
  }

  /** Waits for all messages that were given to `enqueue` until now. */
  async flush() {
    await this.#queue?.flush();
  }

  /** Waits for them, and takes no more. */
  async close() {
    await this.#queue?.close();
  }

  get #background() {
    check(this.#queue, 'publishing in the background needs the option "queueMax"');
    return this.#queue;
  }

  async publish(target, data, options = {}) {
    const [result] = await this.publishBatch([{ ...options, ...toTarget(target), data }]);
    if (result instanceof ThrongError) throw result;
    return result;
  }

  async publishBatch(drafts) {
    const lines = Array.from(drafts, (draft) => new Line(draft));
    await this.#publishAll(lines.filter(({ result }) => !result));
    return lines.map(({ result }) => result);
  }

  /** Creates a channel, and publishes its first messages in the same step. Makes one attempt. */
  async create(channel, options = {}) {
    checkNames(options, CREATION_NAMES, "create");
    const { contentType, ttlSeconds, expiresAt, messages = [] } = options;
    const first = Array.from(messages, (draft) => {
      checkNames(draft, FIRST_NAMES, "a first message");
      return bodyOf(draft);
    });
    const properties = { content_type: contentType, ttl: ttlSeconds, expires_at: expiresAt };
    const body = JSON.stringify({ ...properties, ...(first.length > 0 && { messages: first }) });
    return this.#askCreation(channel, { method: "PUT", body });
  }

  /** The creation of a channel. */
  creation(channel) {
    return this.#askCreation(channel, {});
  }

  async #askCreation(channel, request) {
    const { requestTimeoutMs } = this.#options;
    const limit = deadline(requestTimeoutMs);
    try {
      const path = pathOf(toTarget(channel), "creation");
      const response = await orAborted(this.#fetch(path, request, limit.signal), limit.signal);
      if (!response.ok) throw await toCreationError(response, limit.signal);
      const found = await orAborted(response.json(), limit.signal);
      const { content_type: contentType, ttl: ttlSeconds, expires_at: expiresAt, ...rest } = found;
      const given = Object.entries({ contentType, ttlSeconds, expiresAt });
      return { ...rest, ...Object.fromEntries(given.filter(([, value]) => value !== undefined)) };
    } catch (error) {
      if (error instanceof ThrongError) throw error;
      const message = `the server cannot be reached: ${error.message}`;
      throw new ThrongError("unreachable", message, undefined, error);
    } finally {
      limit.end();
    }
  }

  /** In order: messages of a channel must not overtake each other. */
  async #publishAll(lines) {
    for (const part of partsOf(lines)) await this.#publishPart(part);
  }

  async #publishPart(part) {
    const { publishTimeoutMs, requestTimeoutMs, random } = this.#options;
    const until = performance.now() + publishTimeoutMs;
    let open = part;
    for (let attempt = 0; ; attempt += 1) {
      let delayMs = backoffMs(attempt, random);
      let error;
      const limit = deadline(Math.min(requestTimeoutMs, until - performance.now()));
      try {
        const response = await orAborted(this.#send(open, limit.signal), limit.signal);
        if (response.ok) {
          const answers = parse(await orAborted(response.text(), limit.signal), open.length);
          open = open.filter((line, index) => line.take(answers[index]));
        } else {
          error = await toError(response, limit.signal);
          // A proxy's error says nothing about what the server behind it did.
          if (isForeign(error)) open.forEach((line) => (line.isUnknown = true));
          if (!isTemporary(error)) return open.forEach((line) => line.fail(error));
          delayMs = retryAfterMs(response, random) ?? delayMs;
        }
      } catch (lost) {
        error = lost;
        if (!foundNoConnection(lost)) open.forEach((line) => (line.isUnknown = true));
      } finally {
        limit.end();
      }
      if (open.length === 0) return undefined;
      if (performance.now() + delayMs >= until) {
        return open.forEach((line) => {
          const reason = error?.cause?.message ?? error?.message ?? line.result.message;
          line.fail(timeoutError(publishTimeoutMs, reason));
        });
      }
      await delay(delayMs);
    }
  }

  #send(lines, signal) {
    const body = lines.map(({ text }) => text).join("");
    return this.#fetch("/publish", { method: "POST", body }, signal, "application/x-ndjson");
  }

  #fetch(path, request, signal, contentType = "application/json") {
    const { key, fetch } = this.#options;
    const headers = request.body === undefined ? {} : { "Content-Type": contentType };
    if (key !== undefined) headers.Authorization = `Bearer ${key}`;
    return fetch(`${this.#url}${path}`, { ...request, headers, signal });
  }
}
