/** Loads the part for HTTP, on first use. */

import { ThrongError } from "./errors.js";
import { deadline, orAborted } from "./http.js";
import { importHttp } from "./import-http.js";

let part;

/** The exports of `http-part.js`. If they cannot be loaded in time, the next call tries again. */
export function loadHttp(options) {
  part ??= load(options);
  return part;
}

async function load({ requestTimeoutMs }) {
  const limit = deadline(requestTimeoutMs);
  try {
    return await orAborted(importHttp(), limit.signal);
  } catch (cause) {
    part = undefined;
    const message = `cannot load a part of the client: ${cause}`;
    throw new ThrongError("unreachable", message, undefined, cause);
  } finally {
    limit.end();
  }
}
