/** The types of Throng's client. */

/** A channel by its name, or a user's inbox. */
export type Target = string | { channel: string } | { user: string };

export type Transport = "websocket" | "sse" | "poll";

export type State = "idle" | "connecting" | "open" | "waiting" | "closed";

/** One message. `Data` is a string, a JSON value or, for a binary body, a `Uint8Array`. */
export interface Message<Data = unknown> {
  /** Set unless the message came to a user's inbox. */
  readonly channel?: string;
  readonly user?: string;
  /** To resume after, or to page history with. */
  readonly id: string;
  /** When the server took it, in milliseconds since 1970. */
  readonly time: number;
  readonly data: Data;
  readonly contentType: string;
  /**
   * Older than the subscription: it came because of `history` or `since`. Messages that were
   * missed during a reconnect are not replayed ones.
   */
  readonly replayed: boolean;
}

/** Unknown options are refused with a `TypeError` that names the nearest one. */
export interface ThrongOptions {
  /** Whose connection this is: shown by `presence`, and the inbox that it may follow. */
  user?: string;
  /** In the order in which they are tried. Unless set: WebSocket, SSE, long-poll. */
  transports?: readonly Transport[];
  /** For Node before 22, which has none: the class of the package `ws`, say. */
  WebSocket?: unknown;
  fetch?: typeof globalThis.fetch;
  /** Numbers from 0 to 1, for the jitter. */
  random?: () => number;
  /**
   * The server's `heartbeat`, where the transport does not tell it; 0 if it has none. 25,000 unless
   * set. Silence of a heartbeat and `requestTimeoutMs` ends a connection. At most 1,000,000,000,
   * like all options in milliseconds that name no other limit: timers hold little more.
   */
  heartbeatMs?: number;
  /** A transport that is not open by then is given up for the next. 3,000 unless set. */
  openTimeoutMs?: number;
  /**
   * How long one request may go unanswered, a publish over a socket included: then the connection
   * counts as lost. Also how late a heartbeat may be. A body that still arrives is no silence.
   * 10,000 unless set.
   */
  requestTimeoutMs?: number;
  /** For a publish with all its attempts; at most 240,000. 30,000 unless set. */
  publishTimeoutMs?: number;
  /** How long a long-poll waits, 0 to 300. 25 unless set. */
  pollWaitSeconds?: number;
  /** Messages that may wait to be sent. 100 unless set. */
  queueMax?: number;
}

export interface SubscribeOptions {
  /** How many of the last messages to begin with. */
  history?: number;
  /** Resume after this id. Wins over `history`. */
  since?: string;
}

export interface PublishOptions {
  /** A repeated key within five minutes publishes nothing. Random unless set. */
  key?: string;
  /** `false`: this client does not hear the message itself. */
  echo?: boolean;
  contentType?: string;
  /** Let the request outlive the page, for a last word. */
  keepalive?: boolean;
}

export interface Published {
  id: string;
  /** Connections that the message is on its way to; 0 with `duplicate`. */
  subscribers: number;
  /**
   * The server had the message already, from an earlier attempt or an earlier call with its key:
   * nothing more was published, `id` is the first message's.
   */
  duplicate?: true;
}

export interface HistoryOptions {
  /** 1 to 1,000. 100 unless set. */
  limit?: number;
  before?: string;
  after?: string;
}

/** Oldest first. */
export interface History<Data = unknown> {
  channel?: string;
  user?: string;
  /** The newest message's id. */
  id: string;
  messages: Message<Data>[];
  /** Whether there are further messages in the direction asked. */
  more: boolean;
  /** With `after`: whether everything after that id is there. */
  recovered?: boolean;
}

export interface Presence {
  channel?: string;
  user?: string;
  connections: number;
  users: string[];
  /** Whether there are more users than listed. */
  more: boolean;
}

/** The state of all connections is that of the least of them. */
export interface StateEvent {
  state: State;
  transport: Transport;
  /** With `waiting`: until the next attempt. */
  delayMs?: number;
  /** Why the connection was lost. */
  reason?: string;
}

export interface Place {
  channel?: string;
  user?: string;
}

export interface SubscriptionEvents<Data = unknown> {
  message: Message<Data>;
  /** The server follows from `id` on. Once; after a loss it is "recovered" or "gap". */
  subscribed: Place & { id: string };
  /** The connection was lost, and nothing is missing. */
  recovered: Place;
  /** Messages are missing here: `missed` of them, where the server knows. */
  gap: Place & { id?: string; missed?: number };
  /** The server refused it; the subscription has ended. Without a listener: `console.error`. */
  error: ThrongError;
}

export interface ThrongEvents {
  state: StateEvent;
  /**
   * The server refused the connection for good; the client is closed. Without a listener:
   * `console.error`.
   */
  error: ThrongError;
}

declare class Emitter<Events> {
  /** Returns a function that removes the listener. */
  on<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): () => void;
  /** The same, for the next event only. */
  once<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): () => void;
  off<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): void;
}

export declare class Subscription<Data = unknown> extends Emitter<SubscriptionEvents<Data>> {
  private constructor();
  readonly channel?: string;
  readonly user?: string;
  unsubscribe(): void;
}

/**
 * `code` is the server's, or `closed`, `timeout`, `queue_full`, `unreachable`, `close_…`, `http_…`.
 */
export declare class ThrongError extends Error {
  constructor(code: string, message: string, status?: number);
  readonly code: string;
  /** The HTTP status, where there was one. */
  readonly status?: number;
  /**
   * Of `publish`: `"unknown"` where an attempt went unanswered, so that the message may have been
   * published, or may be yet; else `"unpublished"`. An attempt that found no connection counts as
   * unanswered in browsers, which do not tell, and not in Node.
   */
  readonly outcome?: "unpublished" | "unknown";
  /** Of `publish`: the key with which another try publishes the message once. */
  readonly key?: string;
}

export declare class Throng extends Emitter<ThrongEvents> {
  /** Throws a `TypeError` for a URL without a scheme, and for unknown options. */
  constructor(url?: string | URL, options?: ThrongOptions);
  constructor(options: ThrongOptions);
  readonly state: State;
  /** The transport in use, or the one being tried. */
  readonly transport: Transport;
  /**
   * Follows a channel, or the inbox of the client's own `user`. A channel may be subscribed several
   * times. Channels beyond the server's limit for one connection get further connections.
   */
  subscribe<Data = unknown>(
    target: Target,
    options: SubscribeOptions,
    listener?: (message: Message<Data>) => void,
  ): Subscription<Data>;
  subscribe<Data = unknown>(
    target: Target,
    listener?: (message: Message<Data>) => void,
  ): Subscription<Data>;
  /**
   * Resolves once the server has the message, after as many attempts as `publishTimeoutMs` allows,
   * all with one idempotency key. Rejects with a `ThrongError` that has an `outcome`; with a
   * `TypeError` for data without a JSON form and for unknown options.
   */
  publish(target: Target, data: unknown, options?: PublishOptions): Promise<Published>;
  history<Data = unknown>(target: Target, options?: HistoryOptions): Promise<History<Data>>;
  presence(target: Target, options?: { limit?: number }): Promise<Presence>;
  /** A fresh start: at once, and with the best transport. Also after `close`. */
  connect(): void;
  /** Ends the connection and rejects what was not confirmed. Subscriptions are kept. */
  close(): void;
}

/** Reads server-sent events from chunks that may be split anywhere. */
export declare class EventStreamParser {
  readonly retryMs?: number;
  push(bytes: Uint8Array): { event: string; data: string }[];
}

/** Exponential backoff with full jitter, in milliseconds. */
export declare function backoffMs(attempt: number, random?: () => number): number;
