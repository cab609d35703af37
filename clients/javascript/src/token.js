/**
 * The client's token, and how it gets a newer one.
 *
 * Invariants:
 * - `getToken` runs once at a time, for all connections and requests together.
 * - A token that the server has refused is not sent again, unless `getToken` returns it again.
 */

import { ThrongError } from "./errors.js";
import { deadline, orAborted } from "./http.js";

export class Tokens {
  /** The token to send; undefined if there is none yet, or the server has refused it. */
  current;
  #getToken;
  #timeoutMs;
  #stop;
  #pending;

  /** `stop` is called with the error once `getToken` returns no token. */
  constructor({ token, getToken, requestTimeoutMs }, stop) {
    this.current = token;
    this.#getToken = getToken;
    this.#timeoutMs = requestTimeoutMs;
    this.#stop = stop;
  }

  /** Whether there may be a newer token. */
  get canRenew() {
    return this.#getToken !== undefined;
  }

  /** Whether `current` is what to send, without waiting. */
  get isReady() {
    return this.current !== undefined || !this.canRenew;
  }

  /** The token; undefined for a client without one. */
  async get() {
    return this.isReady ? this.current : this.#load();
  }

  /** A newer token than `old`, which stays the current one until then. */
  async renew(old) {
    if (this.current !== undefined && this.current !== old) return this.current;
    return this.#load();
  }

  /** The server has refused this token. */
  refuse(token) {
    if (this.canRenew && this.current === token) this.current = undefined;
  }

  #load() {
    this.#pending ??= this.#call().finally(() => {
      this.#pending = undefined;
    });
    return this.#pending;
  }

  async #call() {
    const limit = deadline(this.#timeoutMs);
    let token;
    try {
      token = (await orAborted(this.#getToken(), limit.signal)) ?? "";
      if (typeof token !== "string") throw new TypeError(`it returned a ${typeof token}`);
    } catch (cause) {
      const message = `getToken failed: ${cause?.message ?? cause}`;
      throw new ThrongError("token_failed", message, undefined, cause);
    } finally {
      limit.end();
    }
    if (token === "") {
      const error = new ThrongError("no_token", "getToken returned no token");
      this.#stop(error);
      throw error;
    }
    this.current = token;
    return token;
  }
}
