/** Conversion between the messages of the API and the frames between tabs, which are the server's. */

export function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

export function targetOf({ channel, user }) {
  return user === undefined ? { channel } : { user };
}

function toBase64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/** The frame of a message. */
export function toFrame({ replayed, contentType, data, ...message }) {
  const isBinary = data instanceof Uint8Array;
  const body = isBinary ? { data: toBase64(data), encoding: "base64" } : { data };
  return { type: "message", ...message, ...body, content_type: contentType };
}

/** The data of a `publish` frame. */
export function dataOf({ data, encoding }) {
  if (encoding !== "base64") return data;
  return Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
}

/** Whether `id` is `last` or before it. False if they are of different epochs. */
export function isUpTo(id, last) {
  const [[epoch, offset], [lastEpoch, lastOffset]] = [id.split("-"), last.split("-")];
  return epoch === lastEpoch && Number(offset) <= Number(lastOffset);
}
