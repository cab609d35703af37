/** Conversion of targets, ids and messages between the API and the protocol. */

import { check } from "./options.js";

/** The target `{ channel }` or `{ user }` for an argument of the API. */
export function toTarget(target) {
  const { channel, user } = typeof target === "string" ? { channel: target } : (target ?? {});
  if (typeof channel === "string") return { channel };
  check(typeof user === "string", "name a channel, or give { channel } or { user }");
  return { user };
}

export function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

/** The path of a target, which has nothing but its name. */
export function pathOf(target) {
  const [[kind, name]] = Object.entries(target);
  return `/${kind}s/${encodeURIComponent(name)}`;
}

/** Whether `id` is `last` or before it. False if they are of different epochs, or there is no `last`. */
export function isUpTo(id, last = "") {
  const [[epoch, offset], [lastEpoch, lastOffset]] = [id, last].map((each) => each.split("-"));
  return epoch === lastEpoch && Number(offset) <= Number(lastOffset);
}

export function toBase64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

function fromBase64(text) {
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

/** The message for listeners from an envelope. */
export function toMessage(envelope, replayed) {
  const { channel, user, id, time, content_type: contentType } = envelope;
  const data = envelope.encoding === "base64" ? fromBase64(envelope.data) : envelope.data;
  return {
    ...(user === undefined ? { channel } : { user }),
    ...{ id, time, data, contentType: contentType ?? typeOf(data), replayed },
  };
}

/** A random key. Pages without TLS have no `crypto.randomUUID`. */
export function randomKey() {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}
