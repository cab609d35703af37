/** Checks URLs and options, so that a typo is an error. */

export const TRANSPORTS = ["websocket", "sse", "poll"];

/** The largest time in ms of an option. The sum of two is less than `TIMER_MAX_MS` of `http.js`. */
const OPTION_MAX_MS = 1_000_000_000;

/** The options that are numbers, each with its default and its largest value. */
const NUMBERS = {
  heartbeatMs: [25_000, OPTION_MAX_MS],
  openTimeoutMs: [3_000, OPTION_MAX_MS],
  requestTimeoutMs: [10_000, OPTION_MAX_MS],
  // The server remembers idempotency keys for five minutes; a retry after that could double.
  publishTimeoutMs: [30_000, 240_000],
  // As on the server.
  pollWaitSeconds: [25, 300],
  queueMax: [100, Infinity],
};

/** The options that the server has for connections, by name, with their least and largest values. */
const CONNECTION = { heartbeat: [10, 3_600], pace: [10, 60_000] };

/** Two letters in the wrong order are two edits; with more than three, a word is another word. */
const EDITS_MAX = 3;

/** Throws a `TypeError` unless the caller has given what is right. */
export function check(isRight, message) {
  if (!isRight) throw new TypeError(message);
}

/** Whether so many edits, or fewer, turn one word into the other. */
function isNear(from, to, edits) {
  if (edits < 0) return false;
  const [less, fewer] = [from.slice(1), to.slice(1)];
  if (from[0] === to[0]) return from === "" || isNear(less, fewer, edits);
  const left = edits - 1;
  return isNear(less, to, left) || isNear(from, fewer, left) || isNear(less, fewer, left);
}

/** Throws if `word` is none of `words`. Suggests the nearest, or names all. */
export function checkWord(word, words, what) {
  if (words.includes(word)) return;
  const lower = String(word).toLowerCase();
  let near;
  for (let edits = 0; !near && edits <= Math.min(EDITS_MAX, lower.length / 2); edits += 1) {
    near = words.find((each) => isNear(lower, each.toLowerCase(), edits));
  }
  const hint = near ? `did you mean "${near}"?` : `there are: ${words.join(", ")}`;
  check(false, `${what} "${word}"; ${hint}`);
}

/** Throws a `TypeError` for an unknown option. */
export function checkNames(options, names, what) {
  check(options && typeof options === "object", `the options of ${what} must be an object`);
  for (const name of Object.keys(options)) checkWord(name, names, `${what} has no option`);
}

/** The server's URL, without a trailing slash. Throws a `TypeError` if it is not one. */
export function toUrl(url) {
  let text = String(url);
  const page = globalThis.location;
  if (/^\/(?!\/)/.test(text) && page) text = new URL(text, page.href).href;
  if (!/^https?:\/\//i.test(text)) {
    const isPlain = /^(ws:|\/*(localhost|127\.|\[::1\]|0\.0\.0\.0|:))/i.test(text);
    const rest = text.replace(/^([a-z][a-z0-9+.-]*:\/)?\/*/i, "").replace(/^:/, "localhost:");
    const meant = `http${isPlain ? "" : "s"}://${rest}`;
    check(false, `the URL "${text}" has no scheme of HTTP; did you mean "${meant}"?`);
  }
  try {
    new URL(text);
  } catch {
    check(false, `"${text}" is not a URL`);
  }
  check(!/[?#]/.test(text), `the URL "${text}" must not have a query or fragment`);
  return text.replace(/\/+$/, "");
}

/** Throws unless an option is a number within its bounds. */
function checkNumber(options, name, least, most) {
  const value = options[name];
  const isInside = typeof value === "number" && value >= least && value <= most;
  check(isInside, `the option "${name}" must be a number, ${least} to ${most}`);
}

/** Throws a `TypeError` unless the option of a connection or a subscription is one. */
export function checkParam(options, name) {
  checkNumber(options, name, ...CONNECTION[name]);
}

/** Whether the platform, such as React Native, can read a response while it comes. */
function canStream(fetch) {
  const { Response, TextDecoder } = globalThis;
  return TextDecoder && (fetch || (Response && "body" in Response.prototype));
}

export function toOptions(given) {
  for (const name of ["AbortController", "Headers"]) {
    check(globalThis[name], `this platform has no ${name}: load a polyfill before the client`);
  }
  const options = {
    user: undefined,
    noTime: false,
    params: {},
    transports: TRANSPORTS,
    WebSocket: globalThis.WebSocket,
    fetch: globalThis.fetch?.bind(globalThis),
    random: Math.random,
    token: undefined,
    getToken: undefined,
  };
  const numbers = Object.entries(NUMBERS);
  for (const [name, [number]] of numbers) options[name] = number;
  checkNames(given, Object.keys(options), "Throng");
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined) options[name] = value;
  }
  for (const [name, [, most]] of numbers) checkNumber(options, name, 0, most);
  const { params, token, getToken, transports, WebSocket } = options;
  checkNames(params, Object.keys(CONNECTION), "params");
  for (const name in params) checkParam(params, name);
  // Where the server does not announce it.
  if (params.heartbeat) options.heartbeatMs = given.heartbeatMs ?? params.heartbeat * 1_000;
  // No header may have a line break, with which one from a file may end.
  const isText = typeof token === "string" && /^\S+$/.test(token);
  const isToken = token === undefined || (isText && !getToken);
  const isFunction = getToken === undefined || typeof getToken === "function";
  check(isToken && isFunction, 'give "token", a string, or "getToken", a function, not both');
  for (const transport of transports) checkWord(transport, TRANSPORTS, "there is no transport");
  check(options.fetch, 'this platform has no fetch: give the option "fetch"');
  const isThere = { websocket: WebSocket, sse: canStream(given.fetch), poll: true };
  options.transports = transports.filter((each) => isThere[each]);
  const missing = "this platform has no WebSocket, or cannot read streams";
  check(options.transports.length > 0, `no transport of ${transports} is available here: ${missing}`);
  return options;
}
