/**
 * The client's token, and how it gets a newer one.
 *
 * Invariants:
 * - `getToken` runs once at a time, for all connections and requests together.
 * - A token that the server has refused is not sent again, unless `getToken` returns it again.
 */

import { ThrongError } from "./errors.js";
import { deadline, orAborted } from "./http.js";

/** When a token ends, in ms since 1970, if it is a JWT that says so; otherwise never. */
function endOf(token) {
  try {
    const [, claims] = token.split(".");
    const { exp } = JSON.parse(atob(claims.replace(/-/g, "+").replace(/_/g, "/")));
    return exp > 0 ? exp * 1_000 : Infinity;
  } catch {
    return Infinity;
  }
}

/** Why what `getToken` has returned cannot be a token; undefined if it can. */
function faultOf(token) {
  if (typeof token !== "string") return `returned a ${typeof token}, and not a string`;
  if (/^<|<html/i.test(token)) return "returned an HTML page: is the user logged in?";
  if (/^[{["]/.test(token)) return "returned JSON: return the text of the token in it";
  // RFC 6750, section 2.1: also what a sub-protocol of a WebSocket may have.
  if (!/^[\w.~+/=-]*$/.test(token)) return "returned a text that is no token: no header may have it";
  return undefined;
}

export class Tokens {
  /** The token to send; undefined if there is none yet, or the server has refused it. */
  current;
  /** When it ends by this clock. Never for one that has come expired: then this clock is wrong. */
  #endsAt = Infinity;
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
    if (this.#endsAt <= Date.now()) this.refuse(this.current);
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
    if (this.current === undefined) this.#endsAt = Infinity;
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
    } catch (cause) {
      const message = `getToken failed: ${cause?.message ?? cause}`;
      throw new ThrongError("token_failed", message, undefined, cause);
    } finally {
      limit.end();
    }
    // A file or an answer may end with a line feed.
    if (typeof token === "string") token = token.trim();
    const fault = faultOf(token);
    if (fault) throw new ThrongError("token_failed", `getToken ${fault}`);
    if (token === "") {
      const error = new ThrongError("no_token", "getToken returned no token");
      this.#stop(error);
      throw error;
    }
    this.current = token;
    const endsAt = endOf(token);
    this.#endsAt = endsAt > Date.now() ? endsAt : Infinity;
    return token;
  }
}
