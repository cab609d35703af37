/** HTTP responses, and the delays and deadlines around requests. */

import { Loss, ThrongError } from "./errors.js";

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

/**
 * The server's error codes behind their status, as in docs/reference/http.md: those of requests that
 * this client makes and can read the answers to.
 */
const CODES =
  "400 bad_request bad_length bad_name bad_id bad_parameter too_many_channels bad_json bad_utf8 " +
  "bad_compression,401 unauthorized invalid_token token_expired token_revoked,403 origin_refused " +
  "host_refused forwarded_refused forbidden,404 not_found not_created,405 method_not_allowed,408 " +
  "too_slow,409 already_subscribed not_subscribed closed,412 conflict,413 too_large,414 " +
  "uri_too_long,415 other_type,429 too_many_requests,431 head_too_large,501 not_implemented,503 full " +
  "busy unavailable draining,504 outcome_unknown,507 not_stored";

/** Whether this is an error code of the server, or one that it gives with this status. */
export function isOwnCode(code, status = "") {
  return CODES.split(",").some(
    (line) => line.startsWith(status) && line.split(" ").indexOf(code) > 0,
  );
}

/** Whether an error response is not the server's own, but of a proxy or another server. */
export function isForeign({ code = "" }) {
  return code.startsWith("http_");
}

/** Whether the same request may succeed later. The answer of a proxy says nothing about that. */
export function isTemporary(error) {
  const { status } = error;
  if (isForeign(error)) return true;
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
  const { cause } = (error instanceof Loss ? error.cause : error) ?? {};
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

/**
 * The error of a response. Only a body of the server's own form is its word; all else is of a proxy, or
 * of another server.
 */
export async function toError(response, signal) {
  const { status, statusText } = response;
  const body = await orAborted(response.json(), signal).catch(() => {});
  const { error, message, ...others } = body ?? {};
  const isOwn = typeof message === "string" && isOwnCode(error, status);
  if (isOwn && Object.keys(others).length === 0) return new ThrongError(error, message, status);
  const said = statusText ? `: ${statusText}` : "";
  const text = `a proxy or another server answered ${status}${said}`;
  return new ThrongError(`http_${status}`, text, status);
}

/** The query of a URL. Some platforms have no working `URLSearchParams`. */
export function toQuery(parameters) {
  const named = parameters.filter(([, value]) => value !== undefined);
  return named.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

/** Aborts with a reason, also on platforms whose signals have none. */
export function abort(controller, reason) {
  const { signal } = controller;
  if (!("reason" in signal)) signal.reason = reason;
  controller.abort(reason);
}

/**
 * A signal that is aborted after `timeoutMs`, or when `outer` is. `extend` restarts the timeout,
 * `end` cancels it.
 */
export function deadline(timeoutMs, outer) {
  const controller = new AbortController();
  let timer;
  const timeout = new ThrongError("timeout", "the server did not answer in time");
  const late = () => abort(controller, timeout);
  const extend = () => {
    clearTimeout(timer);
    timer = setTimeout(late, timeoutMs);
  };
  const cancel = () => abort(controller, outer.reason);
  if (outer?.aborted) cancel();
  outer?.addEventListener("abort", cancel);
  extend();
  const end = () => {
    clearTimeout(timer);
    outer?.removeEventListener("abort", cancel);
  };
  return { signal: controller.signal, extend, end };
}
