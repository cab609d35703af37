/** Conversion of targets, ids and messages between the API and the protocol. */

/** The target `{ channel }` or `{ user }` for an argument of the API. */
export function toTarget(target) {
  if (typeof target === "string") return { channel: target };
  if (typeof target?.channel === "string") return { channel: target.channel };
  if (typeof target?.user === "string") return { user: target.user };
  throw new TypeError("name a channel, or give { channel } or { user }");
}

export function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

export function pathOf({ channel, user }) {
  return user === undefined
    ? `/channels/${encodeURIComponent(channel)}`
    : `/users/${encodeURIComponent(user)}`;
}

/** Whether `id` is `last` or before it. False if they are of different epochs. */
export function isUpTo(id, last) {
  if (last === undefined) return false;
  const [epoch, offset] = splitId(id);
  const [lastEpoch, lastOffset] = splitId(last);
  return epoch === lastEpoch && offset <= lastOffset;
}

function splitId(id) {
  const dash = id.lastIndexOf("-");
  return [id.slice(0, dash), Number(id.slice(dash + 1))];
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
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** The message for listeners from an envelope. */
export function toMessage(envelope, replayed) {
  const { channel, user, id, time, data, encoding, content_type: contentType } = envelope;
  let fallback = typeof data === "string" ? "text/plain; charset=utf-8" : "application/json";
  if (encoding === "base64") fallback = "application/octet-stream";
  return {
    ...(user === undefined ? { channel } : { user }),
    id,
    time,
    data: encoding === "base64" ? fromBase64(data) : data,
    contentType: contentType ?? fallback,
    replayed,
  };
}

/** A random key. Pages without TLS have no `crypto.randomUUID`. */
export function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
