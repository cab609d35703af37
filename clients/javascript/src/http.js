/** Requests and their answers, and waiting between them. */

import { ThrongError } from "./errors.js";

/** Backoff: the first delay is below the base, each further bound doubles up to the cap. */
const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;

/** Exponential backoff with full jitter: anything from 0 to the bound, so that crowds spread. */
export function backoffMs(attempt, random = Math.random) {
  return random() * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** Math.min(attempt, 16));
}

/** The `Retry-After` of an answer, spread over a second because many clients get the same one. */
export function retryAfterMs(response, random) {
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  return Number.isFinite(seconds) ? (seconds + random()) * 1_000 : undefined;
}

/** Whether the same request may succeed later. */
export function isTemporary({ status }) {
  if (status === 501 || status === 505) return false;
  return status === 408 || status === 429 || status >= 500;
}

/**
 * Whether a request failed for want of a connection, so that nothing of it left. Node says so;
 * browsers give no reason, and there it is false.
 */
export function foundNoConnection(error) {
  const cause = error?.cause;
  if (cause?.code === "UND_ERR_CONNECT_TIMEOUT") return true;
  // One error for each address of the name, where several were tried.
  const failures = cause?.errors?.length > 0 ? cause.errors : [cause];
  return failures.every((each) => ["connect", "getaddrinfo"].includes(each?.syscall));
}

/** Resolves after the delay, or early on abort. */
export function delay(delayMs, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, delayMs);
    signal.addEventListener("abort", end);
  });
}

/**
 * What `work` resolves to. Throws the signal's reason as soon as that is aborted, even if `work`
 * does not heed the signal, as a `fetch` that the page brings along may not.
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

/** Waits for the abort, and throws its reason. */
export function aborted(signal) {
  return orAborted(new Promise(() => {}), signal);
}

export async function toError(response, signal = undefined) {
  const body = await orAborted(response.json(), signal).catch(() => ({}));
  const message = body.message ?? `the server answered ${response.status}`;
  return new ThrongError(body.error ?? `http_${response.status}`, message, response.status);
}

/** The body as text. `onChunk` is called for each piece, so that a slow body counts as life. */
export async function readText(response, onChunk) {
  // Some platforms have `fetch` without streams.
  if (!response.body?.getReader) return response.text();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    onChunk();
    text += decoder.decode(value, { stream: true });
  }
}

/**
 * Aborts its signal when nothing happens for `patienceMs`; `touch` begins anew, `end` stops it.
 * `outer` aborts it too.
 */
export function patience(patienceMs, outer = undefined) {
  const abort = new AbortController();
  let timer;
  const late = () => abort.abort(new ThrongError("timeout", "the server did not answer in time"));
  const touch = () => {
    clearTimeout(timer);
    timer = setTimeout(late, patienceMs);
  };
  const cancel = () => abort.abort(outer.reason);
  if (outer?.aborted) cancel();
  outer?.addEventListener("abort", cancel);
  touch();
  const end = () => {
    clearTimeout(timer);
    outer?.removeEventListener("abort", cancel);
  };
  return { signal: abort.signal, touch, end };
}
