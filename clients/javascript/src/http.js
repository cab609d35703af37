/** HTTP responses, and the delays and deadlines around requests. */

import { ThrongError } from "./errors.js";

/** Backoff: the bound of the first delay; it doubles with each attempt, up to the cap. */
const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;
/** The longest delay that `setTimeout` takes; it fires at once beyond. */
export const TIMER_MAX_MS = 2 ** 31 - 1;
/** The longest delay that a server can impose, a day: a longer one is more likely a mistake. */
export const RETRY_MAX_MS = 86_400_000;

/** Exponential backoff with full jitter: 0 to the bound, so that clients do not retry together. */
export function backoffMs(attempt, random = Math.random) {
  return random() * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** attempt);
}

/** A delay that the server has named, limited to `RETRY_MAX_MS`. */
export function boundedMs(delayMs) {
  return Math.min(delayMs, RETRY_MAX_MS);
}

/**
 * The `Retry-After` of a response in ms, undefined without one. Spread over a second, because many
 * clients get the same value.
 */
export function retryAfterMs(response, random) {
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  return seconds >= 0 ? boundedMs((seconds + random()) * 1_000) : undefined;
}

/** Whether the same request may succeed later. */
export function isTemporary({ status }) {
  return status >= 500 ? status !== 501 && status !== 505 : status === 408 || status === 429;
}

/** Whether a request was not sent, because there is no token for it. */
export function isOfToken({ code }) {
  return code === "no_token" || code === "token_failed";
}

/**
 * Whether a request failed because there was no connection, so that nothing of it was sent. Always
 * false in browsers, which give no reason.
 */
export function foundNoConnection(error) {
  const cause = error?.cause;
  if (cause?.code === "UND_ERR_CONNECT_TIMEOUT") return true;
  // One error for each address of the name if it has several.
  const failures = [cause?.errors ?? cause].flat();
  const syscalls = ["connect", "getaddrinfo"];
  return failures.length > 0 && failures.every((each) => syscalls.includes(each?.syscall));
}

/** Resolves after the delay, or early on abort. */
export function delay(delayMs, signal) {
  let timer;
  const elapsed = new Promise((resolve) => {
    timer = setTimeout(resolve, delayMs);
  });
  return orAborted(elapsed, signal).catch(() => clearTimeout(timer));
}

/** What `work()` resolves to, which is retried until then; undefined on abort. */
export async function persist(work, signal, random) {
  for (let attempt = 0; !signal.aborted; attempt += 1) {
    try {
      return await work();
    } catch {
      await delay(backoffMs(attempt, random), signal);
    }
  }
}

/**
 * What `work` resolves to. Rejects with the signal's reason once it is aborted, even if `work`
 * ignores the signal, as a custom `fetch` may.
 */
export function orAborted(work, signal) {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const end = () => reject(signal.reason);
    if (signal.aborted) end();
    else signal.addEventListener("abort", end);
    Promise.resolve(work)
      .then(resolve, reject)
      .finally(() => signal.removeEventListener("abort", end));
  });
}

export async function toError(response, signal) {
  const body = await orAborted(response.json(), signal).catch(() => ({}));
  const message = body.message ?? `the server answered ${response.status}`;
  return new ThrongError(body.error ?? `http_${response.status}`, message, response.status);
}

/**
 * A signal that is aborted after `timeoutMs`, or when `outer` is. `extend` restarts the timeout,
 * `end` cancels it.
 */
export function deadline(timeoutMs, outer) {
  const abort = new AbortController();
  let timer;
  const late = () => abort.abort(new ThrongError("timeout", "the server did not answer in time"));
  const extend = () => {
    clearTimeout(timer);
    timer = setTimeout(late, timeoutMs);
  };
  const cancel = () => abort.abort(outer.reason);
  if (outer?.aborted) cancel();
  outer?.addEventListener("abort", cancel);
  extend();
  const end = () => {
    clearTimeout(timer);
    outer?.removeEventListener("abort", cancel);
  };
  return { signal: abort.signal, extend, end };
}
