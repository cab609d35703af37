/** Reads the history and presence of a channel. */

import { readText } from "./body.js";
import { emit } from "./emitter.js";
import { ThrongError } from "./errors.js";
import { deadline, isForeign, isOfToken, isTemporary, orAborted, toError, toQuery } from "./http.js";
import { checkText, isBinary, isUpTo, pathOf, toBytes, toHeader, toJson, toNotice, typeOf } from "./message.js";

/** The server's limit of messages on a page of history. */
const PAGE_MAX = 1_000;

/** The response to `GET …/history` or `…/presence`. Rejects with a `ThrongError`. */
export async function read(client, target, what, parameters) {
  const body = await ask(client, target, "GET", pathOf(target, what, parameters));
  if (!body.messages && !body.users) throw unreachable(new TypeError("it is no Throng server"));
  return body;
}

/**
 * Moves the read marker of a user in the inbox, or in a channel; asks for it without an id. Rejects
 * with a `ThrongError`.
 */
export function mark(client, { channel, user }, id) {
  const [target, reader] = channel === undefined ? [{ user }] : [{ channel }, user];
  return ask(client, target, id === undefined ? "GET" : "PUT", pathOf(target, "read", { id, reader }));
}

/** Erases a message, or all that there are. Rejects with a `ThrongError`. */
export async function erase(client, target, id) {
  const query = toQuery([...Object.entries(target), ["id", id]]);
  const path = id === undefined ? pathOf(target, "history") : `/messages?${query}`;
  const { erased_up_to: erasedUpTo, ...answer } = await ask(client, target, "DELETE", path);
  return id === undefined ? { ...answer, erasedUpTo } : answer;
}

/**
 * Publishes data in the place of a message (`place` has its `id`), which is erased, or as the value of
 * a `key`; without data, removes the key. With the method `end`, ends the channel with the data, or
 * opens it. Rejects with a `ThrongError`.
 */
export async function change(client, target, { end, ...place }, data, options) {
  const { contentType, event, tags, expiresInSeconds, ifMatch } = options;
  const what = end ? "end" : place.id === undefined ? "state" : "messages";
  const path = `/${what}?${toQuery([...Object.entries(target), ...Object.entries(place)])}`;
  const condition = {};
  if (ifMatch === null) condition["If-None-Match"] = "*";
  else if (ifMatch !== undefined) condition["If-Match"] = `"${ifMatch}"`;
  if (data === undefined) return ask(client, target, end ?? "DELETE", path, { headers: condition });
  if (typeof data === "string") checkText(data, "the text");
  const isPlain = typeof data === "string" || isBinary(data);
  const headers = { "Content-Type": contentType ?? typeOf(data), ...condition };
  if (expiresInSeconds) headers["Throng-Expires-In"] = String(expiresInSeconds);
  if (event !== undefined) headers["Throng-Event"] = toHeader(event);
  if (tags) headers["Throng-Tags"] = toHeader(toJson(tags));
  const body = isPlain ? (isBinary(data) ? toBytes(data) : data) : toJson(data);
  return ask(client, target, end ?? "PUT", path, { headers, body });
}

function unreachable(error) {
  const message = `the server cannot be reached: ${error.message}`;
  return new ThrongError("unreachable", message, undefined, error.cause ?? error);
}

/** The JSON of an answer. */
async function ask(client, target, method, path, more) {
  const startedAt = Date.now();
  const { requestTimeoutMs } = client.options;
  const limit = deadline(requestTimeoutMs);
  // So that a frozen server is detected when the time is over.
  const doubt = setTimeout(() => client.connectionFor(target).doubt(), requestTimeoutMs / 2);
  try {
    const init = { method, signal: limit.signal, ...more };
    const response = await client.request(path, init);
    if (!response.ok) throw await toError(response, limit.signal);
    return JSON.parse(await orAborted(readText(response, limit.extend), limit.signal));
  } catch (error) {
    if (error instanceof ThrongError && (error.status || isOfToken(error))) throw error;
    if (limit.signal.aborted) {
      client.connectionFor(target).suspect(startedAt);
      throw limit.signal.reason;
    }
    throw unreachable(error);
  } finally {
    clearTimeout(doubt);
    limit.end();
  }
}

/**
 * The messages after `since`, or the latest `history`, oldest first. `isWhole` is false if the
 * server no longer has all of those after `since`.
 */
async function readOlder(client, target, { history, since }) {
  const readPage = (page) => read(client, target, "history", page);
  let messages = [];
  let isWhole = true;
  let page = { more: true };
  if (since !== undefined) {
    for (let after = since; page.more; after = messages.at(-1).id) {
      page = await readPage({ after, limit: PAGE_MAX });
      if (after === since) isWhole = page.recovered !== false;
      messages.push(...page.messages);
      if (page.messages.length === 0) break;
    }
  } else {
    for (let before; page.more && messages.length < history; before = messages[0].id) {
      page = await readPage({ before, limit: Math.min(PAGE_MAX, history - messages.length) });
      messages = [...page.messages, ...messages];
      if (page.messages.length === 0) break;
    }
  }
  return { messages, isWhole };
}

/**
 * The messages of all keys as they were at the message `id`, in the order of their ids. What is newer
 * comes to whoever follows the channel from there.
 */
export async function readState(client, target) {
  let id;
  let after;
  const messages = [];
  do {
    const page = await read(client, target, "state", { limit: PAGE_MAX, after });
    id ??= page.id;
    messages.push(...page.messages.filter((envelope) => isUpTo(envelope.id, id)));
    after = page.next;
  } while (after !== undefined);
  messages.sort((a, b) => (isUpTo(a.id, b.id) ? -1 : 1));
  return { id, messages };
}

/** Delivers the state to a subscription that has joined others, then what has come meanwhile. */
async function replayState(client, target, follower) {
  const { id, messages } = await readState(client, target);
  const { subscription, signal } = follower;
  for (const envelope of messages) {
    const message = !signal.aborted && client.readMessage(envelope, false, [follower]);
    if (message) subscription[emit]("message", message);
  }
  if (signal.aborted) return;
  subscription[emit]("state", { ...target, id });
  const { queued } = follower;
  follower.queued = undefined;
  for (const [name, value] of queued) {
    const isOld = value.stateKey !== undefined && isUpTo(value.id, id);
    if (!isOld) follower.pass(name, value);
  }
}

/**
 * Delivers older messages to a subscription that has joined others, then those that have come
 * meanwhile. Rejects if a later attempt may succeed; otherwise ends the subscription.
 */
export async function replayOlder(client, target, options, follower) {
  const { subscription, signal } = follower;
  let older;
  try {
    if (options.state) return await replayState(client, target, follower);
    older = await readOlder(client, target, options);
  } catch (error) {
    if (!error.status || isTemporary(error)) throw error;
    if (!signal.aborted) subscription[emit]("error", error);
    subscription.unsubscribe();
    return undefined;
  }
  if (signal.aborted) return undefined;
  if (!older.isWhole) subscription[emit]("gap", { ...target, id: options.since });
  const { queued } = follower;
  for (const envelope of older.messages) {
    const isQueued = queued.some(([, { id }]) => id === envelope.id);
    if (isQueued) continue;
    const notice = toNotice(envelope);
    const message = notice ?? client.readMessage(envelope, true, [follower]);
    if (message) follower.pass(notice ? "erased" : "message", message);
  }
  follower.queued = undefined;
  for (const [name, value] of queued) follower.pass(name, value);
  return undefined;
}

/** The body of `/health` of a server that serves. */
const HEALTHY = "ok";

/** Whether the server answers, and if not, who does. */
async function askHealth(client, signal) {
  const response = await client.fetch("/health", { signal });
  const text = await orAborted(response.text(), signal);
  if (response.ok && text.trim() === HEALTHY) return { isReachable: true };
  // A server that stops or is stuck answers 503.
  if (isTemporary(response)) return {};
  const said = `${client.url}/health answered ${response.status}`;
  return { reason: `is this the URL of a Throng server? ${said}`, isForeign: true };
}

/**
 * Why the server refuses this client; undefined if it does not, or a page may not read it. Gives up
 * compact messages if the server is an older one that does not know them.
 */
async function askRefusal(client, signal) {
  const path = client.isFull ? "/subscribe" : "/subscribe?envelope=compact";
  const response = await client.fetch(path, { signal }, client.tokens.current);
  if (response.ok) return undefined;
  const error = await toError(response, signal);
  // The other answers are about this request, which names no channel.
  if (response.status === 403) return error;
  if (response.status === 400 && error.message.includes("`envelope`")) client.isFull = true;
  return undefined;
}

/**
 * Looks why a transport fails: whether the server answers at all, after what time, and if `isMute`, the
 * reason that a page does not get from a WebSocket.
 */
export async function diagnose(client, timeoutMs, isMute) {
  const limit = deadline(timeoutMs);
  const startedAt = Date.now();
  const wasFull = client.isFull;
  const ask = (question) => question(client, limit.signal).catch(() => {});
  const asked = [ask(askHealth), isMute ? ask(askRefusal) : undefined];
  const [health, error] = await Promise.all(asked);
  limit.end();
  const tookMs = Date.now() - startedAt;
  if (error && !isForeign(error)) return { error };
  const isMended = client.isFull !== wasFull;
  return { tookMs, isMended, reason: error?.message, isForeign: error !== undefined, ...health };
}
