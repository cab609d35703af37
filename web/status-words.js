/** How the status page writes numbers, times and reasons. No element is touched here. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE_DECIMAL = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** What stands for a number that there is none of. */
export const NONE = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 1,000,000 */
export const count = (value) => (isNumber(value) ? WHOLE.format(value) : NONE);

/** 1.23M: where there is little room. */
export const compact = (value) => (isNumber(value) ? COMPACT.format(value) : NONE);

/** Three digits that count: 61.9, 8.2, 512. */
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

/** 200 µs, 10 ms, 1 s: at an axis, where values are round. */
export function roundMilliseconds(value) {
  if (value < 1) return `${COMPACT.format(value * 1000)} µs`;
  return value < 1000 ? `${COMPACT.format(value)} ms` : `${COMPACT.format(value / 1000)} s`;
}

/** 20 MiB, at an axis. */
export const roundBytes = (value) => (value === 0 ? "0" : bytes(value));

/** 42%, of one core. */
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
    origin: "origin (data plane)",
    origin_refused: "origin",
    subscribe: "bad subscription",
    full: "full",
    busy: "busy",
    command: "bad command",
    not_found: "no such path",
    forbidden: "not allowed",
    too_large: "too large",
    draining: "draining",
  },
  dropped: {
    behind: "skipped by subscribers behind",
    unread: "no longer held for those who do not read",
    evicted: "history, before its time",
  },
  closed: {
    peer: "by the client",
    socket_error: "by a socket error",
    protocol_violation: "for a violation of the protocol",
    behind: "too far behind",
    silent: "a ping not answered",
    idle: "idle",
    draining: "sent home by a stop",
    overload: "for holding too much",
  },
};

/** A reason in words; one that this page does not know is written as the server has it. */
export const reason = (table, name) => REASONS[table][name] ?? name.replaceAll("_", " ");

/** The reasons of a table in the order in which they are always shown. */
export const reasons = (table, present) => {
  const known = Object.keys(REASONS[table]).filter((name) => name in present);
  const others = Object.keys(present).filter((name) => !(name in REASONS[table])).sort();
  return [...known, ...others];
};
