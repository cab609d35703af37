/** Checks URLs and options, so that a typo is an error. */

export const TRANSPORTS = ["websocket", "sse", "poll"];

/** The largest time in ms of an option. The sum of two is less than `TIMER_MAX_MS` of `http.js`. */
const OPTION_MAX_MS = 1_000_000_000;

/** The largest value of each option that limits a time, in its unit. */
const TIME_MAX = {
  heartbeatMs: OPTION_MAX_MS,
  openTimeoutMs: OPTION_MAX_MS,
  requestTimeoutMs: OPTION_MAX_MS,
  // The server remembers idempotency keys for five minutes; a retry after that could double.
  publishTimeoutMs: 240_000,
  // As on the server.
  pollWaitSeconds: 300,
};

const OPTIONS = [
  ...["user", "transports", "WebSocket", "fetch", "random", "heartbeatMs", "openTimeoutMs"],
  ...["requestTimeoutMs", "publishTimeoutMs", "pollWaitSeconds", "queueMax", "token", "getToken"],
];

/** The edit distance between two words. */
function distance(from, to) {
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let line = 1; line <= from.length; line += 1) {
    const next = [line];
    for (let column = 1; column <= to.length; column += 1) {
      const change = row[column - 1] + (from[line - 1] === to[column - 1] ? 0 : 1);
      next.push(Math.min(change, row[column] + 1, next[column - 1] + 1));
    }
    row = next;
  }
  return row[to.length];
}

function nearest(word, words) {
  const lower = word.toLowerCase();
  const ranked = words.map((each) => [distance(lower, each.toLowerCase()), each]);
  const [[edits, best]] = ranked.sort(([a], [b]) => a - b);
  return edits <= Math.max(2, Math.floor(word.length / 3)) ? best : undefined;
}

/** Throws a `TypeError` for an unknown option. */
export function checkNames(options, names, what) {
  if (options === null || typeof options !== "object") {
    throw new TypeError(`the options of ${what} must be an object`);
  }
  for (const name of Object.keys(options)) {
    if (names.includes(name)) continue;
    const near = nearest(name, names);
    const hint = near ? `did you mean "${near}"?` : `its options are ${names.join(", ")}`;
    throw new TypeError(`${what} has no option "${name}"; ${hint}`);
  }
}

/** The server's URL, without a trailing slash. Throws a `TypeError` if it is not one. */
export function toUrl(url) {
  let text = String(url);
  const page = globalThis.location;
  const scheme = /^([a-z][a-z0-9+.-]*):\/\//i.exec(text)?.[1].toLowerCase();
  if (!scheme && text.startsWith("/") && page) text = new URL(text, page.href).href;
  else if (!scheme) {
    const isLocal = /^(localhost|127\.|\[::1\]|0\.0\.0\.0|:)/i.test(text);
    const meant = `${isLocal ? "http" : "https"}://${text.replace(/^\/+/, "").replace(/^:/, "localhost:")}`;
    throw new TypeError(`the URL "${text}" has no scheme; did you mean "${meant}"?`);
  } else if (!/^https?$/.test(scheme)) {
    const meant = text.replace(/^[^:]+/, /^(ws|http)$/.test(scheme) ? "http" : "https");
    throw new TypeError(`the URL "${text}" is not an HTTP URL; did you mean "${meant}"?`);
  }
  let parsed;
  try {
    parsed = new URL(text);
  } catch {
    throw new TypeError(`"${text}" is not a URL`);
  }
  if (parsed.search || parsed.hash) {
    throw new TypeError(`the URL "${text}" must not have a query or fragment`);
  }
  return text.replace(/\/+$/, "");
}

export function toOptions(options) {
  checkNames(options, OPTIONS, "Throng");
  const {
    user,
    token,
    getToken,
    transports = TRANSPORTS,
    WebSocket = globalThis.WebSocket,
    fetch = globalThis.fetch.bind(globalThis),
    random = Math.random,
    heartbeatMs = 25_000,
    openTimeoutMs = 3_000,
    requestTimeoutMs = 10_000,
    publishTimeoutMs = 30_000,
    pollWaitSeconds = 25,
    queueMax = 100,
  } = options;
  const numbers = { heartbeatMs, openTimeoutMs, requestTimeoutMs, publishTimeoutMs };
  for (const [name, value] of Object.entries({ ...numbers, pollWaitSeconds, queueMax })) {
    if (typeof value !== "number" || !(value >= 0)) {
      throw new TypeError(`the option "${name}" must be a number, 0 or more`);
    }
    if (value > TIME_MAX[name]) {
      throw new TypeError(`the option "${name}" must be at most ${TIME_MAX[name]}`);
    }
  }
  if (token !== undefined && (typeof token !== "string" || token === "")) {
    throw new TypeError('the option "token" must be a string');
  }
  if (getToken !== undefined && typeof getToken !== "function") {
    throw new TypeError('the option "getToken" must be a function');
  }
  if (token !== undefined && getToken !== undefined) {
    throw new TypeError('give "token" or "getToken", not both');
  }
  for (const transport of transports) {
    if (TRANSPORTS.includes(transport)) continue;
    const near = nearest(String(transport), TRANSPORTS);
    const hint = near ? `did you mean "${near}"?` : `the transports are ${TRANSPORTS.join(", ")}`;
    throw new TypeError(`there is no transport "${transport}"; ${hint}`);
  }
  const possible = transports.filter((transport) => transport !== "websocket" || WebSocket);
  if (possible.length === 0) throw new TypeError("none of these transports is available here");
  return {
    ...numbers,
    ...{ token, getToken },
    ...{ user, transports: possible, WebSocket, fetch, random, pollWaitSeconds, queueMax },
  };
}
