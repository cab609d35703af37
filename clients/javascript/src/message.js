/** Conversion of targets, ids and messages between the API and the protocol. */

import { ThrongError } from "./errors.js";
import { toQuery } from "./http.js";
import { check } from "./options.js";

/** The server's limit of the levels of a JSON value. */
const LEVELS_MAX = 128;
/** Half of a surrogate pair, as JSON has it. */
const CUT_IN_JSON = /(^|[^\\])(\\\\)*\\ud[89a-f]/;
/** The server's limit of a name. */
const NAME_BYTES_MAX = 255;
/** The encoding of an envelope that cannot be read; its data is the reason. */
const UNREADABLE = "unreadable";
/** What few messages have. */
const ATTRIBUTES = ["event", "tags", "from", "replaces", "tombstone"];
/** The brackets and texts of JSON. */
const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{}]/g;
/** A compact message up to its offset, which some parsers can read when they refuse the rest. */
const COMPACT_HEAD = /^\[(\d+),(\d+|null),/;
/** The same of an envelope of the server, up to its id. */
const HEAD = /^{"type":"message","(channel|user)":("(?:[^"\\]|\\.)*"),"id":"([^"]+)"/;

/** Throws for text that UTF-8 cannot hold: it has half of a surrogate pair, as cut emoji have. */
export function checkText(text, what) {
  if (/\p{Surrogate}/u.test(text)) {
    throw new ThrongError("bad_utf8", `${what} has half of a surrogate pair: it was cut in two`);
  }
}

/** Whether a JSON value has more levels than so many. */
function isDeeper(value, levels) {
  if (typeof value !== "object" || value === null) return false;
  return levels === 0 || Object.values(value).some((each) => isDeeper(each, levels - 1));
}

/** The JSON of data. Throws for data that the server would refuse. */
export function toJson(data) {
  const body = JSON.stringify(data);
  check(body !== undefined, "this data has no JSON");
  checkText(CUT_IN_JSON.test(body) ? "\ud800" : body, "a text in the data");
  if (isDeeper(JSON.parse(body), LEVELS_MAX)) {
    throw new ThrongError("bad_json", `the data has more than ${LEVELS_MAX} levels`);
  }
  return body;
}

/** The length of text in UTF-8. */
export function bytesOf(text) {
  return encodeURIComponent(text).replace(/%../g, "x").length;
}

/** The name of a channel or user, which is checked before anything is sent. */
export function toName(name, what) {
  checkText(name, `the name of the ${what}`);
  const parts = name.split("/");
  const fault =
    (bytesOf(name) > NAME_BYTES_MAX && `is longer than ${NAME_BYTES_MAX} bytes`) ||
    (/\p{Cc}/u.test(name) && "has a control character") ||
    (name.includes("*") && "has a *: there are no patterns, name each") ||
    (parts.some((part) => /^\.{0,2}$/.test(part)) && 'is empty, or has a part "", "." or ".."');
  if (fault) throw new ThrongError("bad_name", `the name of the ${what} ${fault}`);
  return name;
}

/** The name of a user. Applications often number theirs. */
export function toUser(user) {
  return Number.isSafeInteger(user) || typeof user === "bigint" ? String(user) : user;
}

/** The target `{ channel }` or `{ user }` for an argument of the API. */
export function toTarget(target) {
  const { channel, user } = typeof target === "string" ? { channel: target } : (target ?? {});
  if (typeof channel === "string") return { channel: toName(channel, "channel") };
  const named = toUser(user);
  check(typeof named === "string", "name a channel, or give { channel } or { user }");
  return { user: toName(named, "user") };
}

export function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

/**
 * The path for something about a target, such as its history. Some proxies refuse or change what is
 * encoded in a path, so such a name goes into the query.
 */
export function pathOf(target, what, parameters = {}) {
  const [[kind, name]] = Object.entries(target);
  const isPlain = encodeURIComponent(name) === name;
  const isBase = what === "publish" || what === "subscribe";
  const path = isPlain ? `/${kind}s/${name}${isBase ? "" : `/${what}`}` : `/${what}`;
  const query = toQuery([...(isPlain ? [] : [[kind, name]]), ...Object.entries(parameters)]);
  return query ? `${path}?${query}` : path;
}

/** The epoch of an id, with the hyphen after it. */
export function epochOf(id) {
  return id.slice(0, id.lastIndexOf("-") + 1);
}

/** Whether `id` is `last` or before it. False if they are of different epochs, or there is no `last`. */
export function isUpTo(id, last) {
  if (!last) return false;
  const epoch = epochOf(id);
  if (epoch !== epochOf(last)) return false;
  return Number(id.slice(epoch.length)) <= Number(last.slice(epoch.length));
}

/** Each byte as a character. */
function toBinary(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return binary;
}

export function toBase64(bytes) {
  return btoa(toBinary(bytes));
}

function fromBase64(text) {
  // `atob` takes texts without padding, and what is no text.
  check(typeof text === "string" && text.length % 4 === 0, "its data is not base64");
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

export function isBinary(data) {
  return data instanceof ArrayBuffer || ArrayBuffer.isView(data);
}

export function toBytes(data) {
  return new Uint8Array(data.buffer ?? data, data.byteOffset, data.byteLength);
}

/** The content type of data that names none. */
export function typeOf(data) {
  if (isBinary(data)) return "application/octet-stream";
  return typeof data === "string" ? "text/plain; charset=utf-8" : "application/json";
}

/** A frame with many messages of which this parser refuses some: each is read by itself. */
function parseMany(text, error) {
  const frame = [Number(text[1])];
  let depth = 0;
  let start;
  for (const { 0: token, index } of text.matchAll(TOKENS)) {
    if (/[[{]/.test(token[0]) && (depth += 1) === 2) start = index;
    if (!/[\]}]/.test(token[0]) || (depth -= 1) !== 1) continue;
    const item = text.slice(start, index + 1);
    try {
      frame.push(JSON.parse(item));
    } catch ({ message }) {
      const [, number, offset] = COMPACT_HEAD.exec(item) ?? [];
      if (!number) throw error;
      frame.push([Number(number), JSON.parse(offset), message, { encoding: UNREADABLE }]);
    }
  }
  // It was cut.
  if (depth !== 0) throw error;
  return frame;
}

/**
 * The frame of a text. If only its head can be read, it is a message that is unreadable. One with many
 * messages is an array.
 */
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (text[0] === "[") return parseMany(text, error);
    const [, kind, name, id] = HEAD.exec(text) ?? [];
    if (!id) throw error;
    const unreadable = { encoding: UNREADABLE, data: error.message };
    return { type: "message", [kind]: JSON.parse(name), id, ...unreadable };
  }
}

/**
 * The envelope of a compact message: `[number, offset, data]`, then its time if that was asked for, and
 * an object with whatever else it has. A volatile one has no offset, and so no id.
 */
export function toEnvelope({ channel, user }, epoch, [, offset, data, time, more]) {
  check(offset === null || offset >= 0, "it has no offset");
  const isTimed = typeof time !== "object";
  const id = offset === null ? undefined : epoch + offset;
  const rest = isTimed ? more : time;
  return { ...rest, channel, user, id, time: isTimed ? time : undefined, data };
}

/** The message for listeners from an envelope. Throws for one that is unreadable. */
export function toMessage(envelope, replayed) {
  const { channel, user, id, time, encoding, content_type } = envelope;
  let { data } = envelope;
  check(data !== undefined, "it has no data");
  if (encoding === "base64") data = fromBase64(data);
  else if (encoding === UNREADABLE) throw new TypeError(data);
  else check(encoding === undefined, `its encoding "${encoding}" is unknown`);
  const contentType = content_type ?? typeOf(data);
  // Not put together from parts, which takes time.
  const message =
    user === undefined
      ? { channel, id, time, data, contentType, replayed }
      : { user, id, time, data, contentType, replayed };
  for (const name of ATTRIBUTES) {
    if (envelope[name] !== undefined) message[name] = envelope[name];
  }
  if (envelope.state_key !== undefined) message.stateKey = envelope.state_key;
  return message;
}

/** The notice of erasure in an envelope; undefined for a message. */
export function toNotice({ channel, user, id, erased, erased_up_to: erasedUpTo }) {
  if (erased === undefined && erasedUpTo === undefined) return undefined;
  return { ...(user === undefined ? { channel } : { user }), id, erased, erasedUpTo };
}

/** Text as a header has it: in UTF-8. */
export function toHeader(text) {
  return toBinary(new TextEncoder().encode(text));
}

/** A random key. Pages without TLS have no `crypto.randomUUID`, and React Native has no `crypto`. */
export function randomKey() {
  const parts = new Uint32Array(4);
  const { crypto } = globalThis;
  if (crypto?.getRandomValues) return crypto.getRandomValues(parts).join("-");
  return parts.map(() => Math.random() * 2 ** 32).join("-");
}
