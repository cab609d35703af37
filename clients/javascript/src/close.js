/** What the client does when the server closes a WebSocket, or ends a stream with a last event. */

import { Loss, ThrongError } from "./errors.js";
import { isOwnCode } from "./http.js";

/**
 * Close codes after which the server would refuse the client again, if the reason has an error code of
 * its own. Proxies and libraries close with them as well.
 */
const FINAL_CODES = [1002, 1003, 1007, 1008];
/** Close codes about the token or what it grants, and the errors of HTTP that mean the same. */
const TOKEN_CODES = {
  4002: "token_expired",
  4003: "unauthorized",
  4004: "token_revoked",
  4005: "forbidden",
};
/** From here on, close codes are the server's own, or the application's. */
const OWN = 3000;
/** Codes of the application, after which clients do not come back. */
const DISCONNECTED_FOR_GOOD = 4500;

/** The error code with which the reason of a close begins, if it is one of the server's. */
export function codeOf(reason) {
  const [, code] = /^(\w+):/.exec(reason) ?? [];
  return isOwnCode(code) ? code : undefined;
}

/** The error that the client stops with; undefined if it may reconnect. */
function errorOf(code, reason, message, isRenewable) {
  const name = TOKEN_CODES[code];
  if (name) return isRenewable ? undefined : new ThrongError(name, message);
  if (code >= DISCONNECTED_FOR_GOOD) return new ThrongError("disconnected", message);
  const own = FINAL_CODES.includes(code) && codeOf(reason);
  return own ? new ThrongError(own, message) : undefined;
}

/**
 * The loss of a link that the server has closed. `token` is the one that the link has sent; `isOwn` is
 * whether Throng itself was at the other end.
 */
export function lossOf({ close_code: code, message, reason = message, isOwn = true }, tokens, token) {
  const hint = /reconnect in (\d+) ms/.exec(reason);
  const isStale = isOwn && (code === 4002 || code === 4003);
  if (isStale) tokens.refuse(token);
  // Without a token, what has ended was allowed to any client for a time.
  const isRenewable = isStale && (tokens.canRenew || (code === 4002 && token === undefined));
  const error = isOwn ? errorOf(code, reason, message, isRenewable) : undefined;
  const isMended = isStale && tokens.canRenew;
  const isAnswer = isOwn && code >= OWN;
  return new Loss(message, { hintMs: hint ? Number(hint[1]) : undefined, isAnswer, isMended, error });
}
