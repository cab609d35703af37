/** Formats the numbers, times and reasons of the status page. Does not touch the document. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE_DECIMAL = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Stands for a missing number. */
export const NONE = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 1,000,000 */
export const count = (value) => (isNumber(value) ? WHOLE.format(value) : NONE);

/** 1.23M, where space is short. */
export const compact = (value) => (isNumber(value) ? COMPACT.format(value) : NONE);

/** About three significant digits: 61.9, 8.2, 512. */
function threeDigits(value) {
  if (value >= 100) return WHOLE.format(value);
  return ONE_DECIMAL.format(value);
}

/** 79,323/s, 0.3/s */
export function rate(value) {
  if (!isNumber(value)) return NONE;
  return `${value >= 100 ? WHOLE.format(value) : ONE_DECIMAL.format(value)}/s`;
}

/** 61.9 B, 8.2 KiB */
export function bytes(value) {
  if (!isNumber(value)) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${threeDigits(value)} ${BYTE_UNITS[unit]}`;
}

/** 184 µs, 6.54 ms, 1.2 s */
export function milliseconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 1) return `${WHOLE.format(value * 1000)} µs`;
  if (value < 10) return `${value.toFixed(2)} ms`;
  if (value < 100) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${WHOLE.format(value)} ms`;
  return `${ONE_DECIMAL.format(value / 1000)} s`;
}

/** 200 µs, 10 ms, 1 s: labels of an axis, where values are round. */
export function roundMilliseconds(value) {
  if (value < 1) return `${COMPACT.format(value * 1000)} µs`;
  return value < 1000 ? `${COMPACT.format(value)} ms` : `${COMPACT.format(value / 1000)} s`;
}

/** 20 MiB: labels of an axis. */
export const roundBytes = (value) => (value === 0 ? "0" : bytes(value));

/** 42%: a share of one core. */
export const percent = (share) => (isNumber(share) ? `${WHOLE.format(share * 100)}%` : NONE);

/** 1.35 */
export const cores = (share) => (isNumber(share) ? share.toFixed(2) : NONE);

/** 3 d 4 h, 12 min 5 s */
export function duration(ms) {
  if (!isNumber(ms)) return NONE;
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  const shown = first < 0 ? parts.slice(3) : parts.slice(first, first + 2);
  return shown.map(([amount, unit]) => `${amount} ${unit}`).join(" ");
}

/** 12:03:04 */
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

const REASONS = {
  refused: {
    head: "malformed request",
    too_slow: "too slow",
    origin: "origin not allowed (subscription)",
    origin_refused: "origin not allowed",
    host: "host not allowed (subscription)",
    host_refused: "host not allowed",
    subscribe: "bad subscription",
    full: "full",
    busy: "busy",
    command: "bad command",
    not_found: "no such path",
    forbidden: "not allowed",
    too_large: "too large",
    draining: "draining",
    storm: "sent away in a storm",
  },
  dropped: {
    skipped: "skipped by a slow subscriber",
    unread: "no longer buffered for clients that do not read",
    evicted: "dropped early from history",
  },
  closed: {
    peer: "closed by the client",
    socket_error: "socket error",
    protocol_violation: "protocol violation",
    lag: "over the lag limit",
    slow: "behind for too long",
    memory: "behind when memory was short",
    ping_timeout: "ping not answered",
    idle: "idle",
    draining: "server shutdown",
    overload: "too much buffered",
    evicted: "evicted for a new connection",
  },
};

/** What the server says while it leaves, with how far a drain has come. */
export function departure(progress) {
  if (!progress) return "The server is shutting down.";
  const { clients, asked, left, return_rate: perSecond } = progress;
  return `The server asks its clients to leave, ${count(perSecond)} a second: `
    + `${count(asked)} of ${count(clients)} were asked, ${count(left)} are here.`;
}

/** What is to be said of an upgrade for this long, in milliseconds. */
const UPGRADE_SAID_MS = { under_way: Infinity, failed: 15 * 60_000, done: 60_000 };

/** What came of the last upgrade, or how far it is; nothing once that is old. */
export function upgrade(last, now) {
  if (!last || now - last.time_ms > (UPGRADE_SAID_MS[last.state] ?? 0)) return "";
  const { state, message, pause_ms: pause } = last;
  if (state === "under_way") return `An upgrade is under way: ${message}.`;
  if (state === "failed") return `The last upgrade has failed, and the server continues: ${message}.`;
  return `The server was upgraded: ${message}${pause === null ? "" : ` after a pause of ${pause} ms`}.`;
}

const MEMORY_STEPS = {
  none: "nothing",
  shrink: "old messages",
  refuse_reads: "history, batches",
  refuse_subscriptions: "new subscriptions",
  close_slow: "slow connections",
};

/** What the server gives up while memory is short. */
export const memoryStep = (step) => MEMORY_STEPS[step] ?? step;

const DATA_STATES = {
  full: "refused: its disk is full",
  limit: "refused: it is beyond its limit",
  failed: "refused: its disk fails",
};

/** Whether the data directory takes changes; why not, if `refuses` says so. */
export const dataState = (refuses) => (refuses === null ? "taken" : DATA_STATES[refuses] ?? refuses);

/** The text of a reason; for an unknown one the name that the server uses. */
export const reason = (table, name) => REASONS[table][name] ?? name.replaceAll("_", " ");

/** The reasons of a table, in an order that does not change from sample to sample. */
export const reasons = (table, present) => {
  const known = Object.keys(REASONS[table]).filter((name) => name in present);
  const others = Object.keys(present).filter((name) => !(name in REASONS[table])).sort();
  return [...known, ...others];
};
