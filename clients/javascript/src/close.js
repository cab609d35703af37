/** What the client does when the server closes a WebSocket, or ends a stream with a last event. */

import { Loss, ThrongError } from "./errors.js";

/** Close codes after which the server would refuse the client again, if it has accepted it. */
const FINAL_CODES = [1002, 1003, 1007, 1008];
/** Close codes about the token or what it grants, and the errors of HTTP that mean the same. */
const TOKEN_CODES = {
  4002: "token_expired",
  4003: "unauthorized",
  4004: "token_revoked",
  4005: "forbidden",
};
/** Codes of the application; from the second on, clients do not come back. */
const DISCONNECTED = 4100;
const DISCONNECTED_FOR_GOOD = 4500;

/** The error that the client stops with; undefined if it may reconnect. */
function errorOf(code, message, isOpen, isRenewable) {
  const name = TOKEN_CODES[code];
  if (name) return isRenewable ? undefined : new ThrongError(name, message);
  if (code >= DISCONNECTED_FOR_GOOD) return new ThrongError("disconnected", message);
  const isFinal = isOpen && FINAL_CODES.includes(code);
  return isFinal ? new ThrongError(`close_${code}`, message) : undefined;
}

/** The loss of a link that the server has closed. `token` is the one that the link has sent. */
export function lossOf({ close_code: code, message, isOpen = true }, tokens, token) {
  const hint = /reconnect in (\d+) ms/.exec(message);
  const isStale = code === 4002 || code === 4003;
  if (isStale) tokens.refuse(token);
  // Without a token, what has ended was allowed to any client for a time.
  const isRenewable = isStale && (tokens.canRenew || (code === 4002 && token === undefined));
  const error = errorOf(code, message, isOpen, isRenewable);
  const isAnswer = isRenewable || code >= DISCONNECTED;
  return new Loss(message, { hintMs: hint ? Number(hint[1]) : undefined, isAnswer, error });
}
