/** What fails: errors that users of the client see, and losses that only the client sees. */

/** A request that failed; `code` is the server's, or one of the client's own. */
export class ThrongError extends Error {
  constructor(code, message, status = undefined) {
    super(message);
    this.name = "ThrongError";
    this.code = code;
    this.status = status;
  }
}

/** Why a link ended, and what follows from it. Users see it only as the reason of a state. */
export class Loss extends Error {
  constructor(message, { hintMs, isUnusable = false, error } = {}) {
    super(message);
    /** How long the server asks the client to stay away. */
    this.hintMs = hintMs;
    /** The transport does not work here; waiting will not help. */
    this.isUnusable = isUnusable;
    /** Set when no transport will do: told to the user, and the client closes. */
    this.error = error;
  }
}
