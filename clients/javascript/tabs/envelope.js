/** Conversion between the messages of the API and the frames between tabs, which are the server's. */

export function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

export function targetOf({ channel, user }) {
  return user === undefined ? { channel } : { user };
}

/** The commands in one, which may name many channels: each for one of them. */
export function commandsOf({ channels, ...command }) {
  if (!channels) return [command];
  const toFields = (entry) => (typeof entry === "string" ? { channel: entry } : entry);
  return channels.map((entry) => ({ ...command, ...toFields(entry), isListed: true }));
}

function toBase64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/**
 * JSON of a value with any number of levels: `JSON.stringify` calls itself for each of them, and the
 * stack ends where `JSON.parse` still goes on.
 */
export function toJson(value) {
  const parts = [];
  /** What is still to be written, the next one last: values, and texts as they are. */
  const rest = [{ value }];
  while (rest.length > 0) {
    const { text, value: next } = rest.pop();
    if (text !== undefined) parts.push(text);
    else if (typeof next !== "object" || next === null) parts.push(JSON.stringify(next));
    else {
      const isArray = Array.isArray(next);
      const entries = Object.entries(next).filter(([, member]) => member !== undefined);
      const members = entries.flatMap(([name, member], index) => {
        const before = `${index > 0 ? "," : ""}${isArray ? "" : `${JSON.stringify(name)}:`}`;
        return [{ text: before }, { value: member }];
      });
      const [first, last] = isArray ? "[]" : "{}";
      rest.push(...[{ text: first }, ...members, { text: last }].reverse());
    }
  }
  return parts.join("");
}

function stringify(frame) {
  try {
    return JSON.stringify(frame);
  } catch {
    return toJson(frame);
  }
}

/**
 * The frame of a message, as its id and its text, which is made once for all tabs. A volatile message has
 * no id.
 */
export function toFrame({ replayed, contentType, stateKey, data, ...message }) {
  const isBinary = data instanceof Uint8Array;
  const body = isBinary ? { data: toBase64(data), encoding: "base64" } : { data };
  const more = { state_key: stateKey, content_type: contentType };
  const frame = { type: "message", ...message, ...body, ...more };
  return { id: message.id, text: stringify(frame) };
}

/** The frame of a message that this client cannot read: the clients of the tabs report it. */
export function toUnreadable({ reason, ...message }) {
  const frame = { type: "message", ...message, time: 0, encoding: "unreadable", data: reason };
  return { id: message.id, text: JSON.stringify(frame) };
}

/** The frame of a notice that messages are erased. */
export function toErased({ erasedUpTo, ...notice }) {
  const frame = { type: "erased", ...notice, erased_up_to: erasedUpTo };
  return { id: notice.id, text: JSON.stringify(frame) };
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
