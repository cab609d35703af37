/** Errors that users of the client see, and the losses of links, which stay inside the client. */

/** A failed request. `code` is the server's, or one of the client's own. */
export class ThrongError extends Error {
  constructor(code, message, status, cause) {
    super(message, cause && { cause });
    this.name = "ThrongError";
    this.code = code;
    this.status = status;
  }
}

/** Why a link or a request ended, and what to do next. Users see only its message, as the reason of a state. */
export class Loss extends Error {
  /** The server's time to retry in ms; undefined if it named none. */
  hintMs;
  /** The transport does not work here, so a retry will not help. */
  isUnusable;
  /** Nothing came in time: the transport or the network may be at fault. */
  isSlow;
  /** The transport works: the server has refused the token, or there is none for now. */
  isAnswer;
  /** What has caused it is out of the way, so that the next attempt need not wait. */
  isMended;
  /** A proxy or another server has answered, which nobody expects: the console tells. */
  isForeign;
  /** Set if no transport will work: the client reports it and closes. */
  error;

  constructor(message, details) {
    super(message);
    Object.assign(this, details);
  }
}
