/** The types of Throng's client. */

/** A channel by its name, or a user's inbox. A number becomes its digits. */
export type Target = string | { channel: string } | { user: string | number | bigint };

export type Transport = "websocket" | "sse" | "poll";

export type State = "idle" | "connecting" | "open" | "waiting" | "closed";

/** At most 16 short facts about a message, of at most 1,024 bytes as JSON. */
export type Tags = Record<string, string | number>;

/** One message. `Data` is a string, a JSON value or, for a binary body, a `Uint8Array`. */
export interface Message<Data = unknown> {
  /** Set unless the message came to a user's inbox. */
  readonly channel?: string;
  readonly user?: string;
  /**
   * Identifies the message: to resume after it, or to page through history. A volatile message, which
   * is not kept, has none.
   */
  readonly id?: string;
  /** When the server accepted it, in milliseconds since 1970. Missing if the option `noTime` leaves it out. */
  readonly time: number;
  readonly data: Data;
  readonly contentType: string;
  /** The name of its event, if it has one: see `onEvent`. */
  readonly event?: string;
  /** Its tags, if it has some. */
  readonly tags?: Readonly<Tags>;
  /** Who published it, set by the server, if the channel shows that. */
  readonly from?: string;
  /** The id of the message in whose place it is, which is erased: forget that one. */
  readonly replaces?: string;
  /** The key that it sets, if it has one. */
  readonly stateKey?: string;
  /** It removes its key. `data` is null. */
  readonly tombstone?: true;
  /**
   * Whether it is older than the subscription, and was delivered because of `history` or `since`.
   * False for messages missed during a reconnect.
   */
  readonly replayed: boolean;
}

/** Options that the server has for each connection; see "Options of a connection" in its reference. */
export interface ConnectionOptions {
  /** The longest silence of the server in whole seconds, 10 to 3,600. Default: the server's. */
  heartbeat?: number;
  /**
   * The least time in whole milliseconds between two deliveries of a channel, 10 to 60,000: messages that
   * come within it go out together, the first after silence at once. Default: the server's.
   */
  pace?: number;
}

/** An unknown option throws a `TypeError` that suggests the nearest one. */
export interface ThrongOptions {
  /**
   * The user of the connection, shown by `presence`. The client may follow this user's inbox. With
   * a token it must be the token's user, and may be left out. A number becomes its digits.
   */
  user?: string | number | bigint;
  /** A token for servers with access control. The client stops when it expires. */
  token?: string;
  /**
   * Returns a token: called before the first request, before the token expires or when it has, and
   * at once after the server has refused one; never twice at a time. If it fails, returns something
   * else, or takes longer than `requestTimeoutMs`, it is called again after a backoff. `null` stops
   * the client, with the error `no_token`. Excludes `token`.
   */
  getToken?: () => string | null | undefined | Promise<string | null | undefined>;
  /** `true`: messages over WebSockets have no `time`, which makes them smaller. Default: false. */
  noTime?: boolean;
  /** Options that the client asks of the server for its connections. */
  params?: ConnectionOptions;
  /** The transports in order of preference. Default: WebSocket, SSE, long-poll. */
  transports?: readonly Transport[];
  /** A WebSocket class, such as that of the package `ws`. Node before 22 has none. */
  WebSocket?: unknown;
  fetch?: typeof globalThis.fetch;
  /** Returns numbers from 0 to 1, for the jitter. */
  random?: () => number;
  /**
   * The server's `heartbeat`, for transports that do not announce it; 0 if the server sends none.
   * Default: 25,000. A connection ends after a heartbeat and half of `requestTimeoutMs` without data. At
   * most 1,000,000,000, like all options in milliseconds without another limit.
   */
  heartbeatMs?: number;
  /**
   * Time for a transport to open, after which the client asks whether the server answers. It doubles
   * with each attempt that was too slow, up to eightfold. Default: 3,000.
   */
  openTimeoutMs?: number;
  /**
   * Time without data after which a request, or a publish over a WebSocket, counts as unanswered,
   * and its connection as lost. A heartbeat may be late by half of it. Default: 10,000.
   */
  requestTimeoutMs?: number;
  /** Time for a publish with all its attempts; at most 240,000. Default: 30,000. */
  publishTimeoutMs?: number;
  /** How long a long-poll waits, at most 300; less than 1 counts as 1. Default: 25. */
  pollWaitSeconds?: number;
  /** Limit of messages that wait to be sent. Default: 100. */
  queueMax?: number;
}

export interface SubscribeOptions {
  /** Number of latest messages to begin with. */
  history?: number;
  /** The id to resume after. Overrides `history`. */
  since?: string;
  /**
   * Whether to begin with the newest message of each key, after which comes "state". After a "gap" it
   * begins again, unless messages were missed because this client was behind. Excludes `history`.
   */
  state?: boolean;
  /**
   * Whether to emit "presence", for all subscriptions of the channel. Counts as one more channel of
   * the connection. Default: false.
   */
  presence?: boolean;
  /**
   * What the user shows to the other members of a channel that has a list of them: at most 1 KiB as JSON.
   * Over WebSockets only, and with the right `update`.
   */
  info?: object;
  /**
   * As in `ConnectionOptions`, for this channel. Subscriptions of a channel share it: the fastest counts.
   * Over SSE, the fastest of all channels.
   */
  pace?: number;
}

/** A channel of a list, or a user's inbox, which may have options of its own. */
export type Entry = string | (Exclude<Target, string> & SubscribeOptions);

export interface PublishOptions {
  /** Idempotency key: repeated within five minutes, it publishes nothing. Default: random. */
  key?: string;
  /** `false`: this client does not receive the message. Default: true. */
  echo?: boolean;
  contentType?: string;
  /** The name of the message's event: 1 to 128 bytes, and none of the server's own events. */
  event?: string;
  tags?: Tags;
  /** The key whose value the message is: 1 to 255 bytes. See `Throng.set`. */
  stateKey?: string;
  /**
   * Whole seconds from the call after which the message is worthless, 1 to 31,536,000: it is not
   * sent or delivered any more.
   */
  expiresInSeconds?: number;
  /**
   * `true`: the message has no id, and only those get it who follow now and keep up: typing notices,
   * cursors. It is tried once, and fails with `timeout` while there is no connection. The server
   * refuses it with a `key`, a `receipt` or `expiresInSeconds`. Default: false.
   */
  volatile?: boolean;
  /** Lets the request outlive the page. Default: false. */
  keepalive?: boolean;
  /**
   * Resolve with a receipt, after at most this many seconds: 0 to 60. Published by a request of its
   * own, so later messages may overtake this one. Counts against `queueMax` until then. Excludes
   * `echo: false`.
   */
  receipt?: number;
}

/** What became of a message. `matched` is the sum of `written`, `behind` and `dropped`. */
export interface Receipt {
  /** `complete`: nothing is behind. `timeout`: delivery goes on. `unknown`: not all will be known. */
  outcome: "complete" | "timeout" | "unknown";
  matched: number;
  written: number;
  behind: number;
  unknown: number;
  dropped: number;
  dropped_by: { lagging: number; skipped: number; closed: number; expired: number };
}

export interface Published {
  id: string;
  /** Number of connections that the message goes to; 0 with `duplicate`. */
  subscribers: number;
  /**
   * The server already had a message with this key, from an earlier attempt or call. `id` is that
   * message's, and nothing was published.
   */
  duplicate?: true;
  /** With the option `receipt`, unless the message is a duplicate. */
  receipt?: Receipt;
}

/** What became of a volatile message. */
export interface VolatilePublished {
  volatile: true;
  /** Number of connections that the message goes to, if they keep up. */
  subscribers: number;
}

export interface HistoryOptions {
  /** 1 to 1,000. Default: 100. */
  limit?: number;
  before?: string;
  after?: string;
  /** Messages published at this time or later, in milliseconds since 1970. Excludes `before` and `after`. */
  sinceTime?: number;
  /** Which message comes first. Default: "oldest". */
  order?: "oldest" | "newest";
}

/** A page of history. Messages are in order, oldest first unless `order` is "newest". */
export interface History<Data = unknown> {
  channel?: string;
  user?: string;
  /** The id of the newest message. */
  id: string;
  messages: (Message<Data> & { readonly id: string })[];
  /** Whether the channel has ended. */
  ended?: true;
  /** Whether there are further messages in the requested direction. */
  more: boolean;
  /** With `after`: whether the server still has all messages after that id. */
  recovered?: boolean;
}

export interface Presence {
  channel?: string;
  user?: string;
  connections: number;
  users: string[];
  /** Whether there are more users than listed. */
  more: boolean;
  /**
   * True if some may be missing, because a node of several cannot be reached. In an event about members:
   * when the list came.
   */
  partial?: true;
}

/** A member of a channel, as it shows itself. */
export interface Member {
  /** The user; undefined for a connection without one. */
  user?: string;
  /** The connection, where each one is a member. */
  connection?: string;
  info?: any;
}

/** The page of a channel's members, where the server keeps a list of them. */
export interface Members extends Presence {
  members?: Member[];
  /** The `after` of the next page. */
  next?: string;
}

/**
 * Who follows a channel: the whole state in each event. The server sends it at once and on each
 * change, if it has presence events; otherwise the client reads it every 15 s.
 */
export interface PresenceEvent extends Presence {
  /** When the server looked, in milliseconds since 1970. */
  time: number;
  /** The users who have come since the event before; missing in the first event of a connection. */
  joined?: string[];
  /** Those who have left, and when they were found to be gone; missing in the first event. */
  left?: { user: string; last_seen: number }[];
  /**
   * In a channel with a list of its members: each by its user, or by its connection. Kept up to date, and
   * the same in all events. `joined`, `updated` and `left` then name its keys, and `connections` is its size.
   */
  members?: ReadonlyMap<string, Member>;
  /** The members that show something else than before. */
  updated?: string[];
  /** Why nobody is listed: the server does not show this client who is there. It ends the events. */
  error?: ThrongError;
}

/** The state of the client: with several connections, that of the least connected one. */
export interface StateEvent {
  state: State;
  transport: Transport;
  /** In state `waiting`: time until the next attempt. */
  delayMs?: number;
  /** Why the connection was lost. */
  reason?: string;
}

/** A message that this client could not read. It is passed over; the connection stays. */
export interface Unreadable extends Place {
  /** Missing if the message was volatile. */
  id?: string;
  reason: string;
}

export interface Place {
  channel?: string;
  user?: string;
}

/** A notice that messages are erased. It has an id of its own, as a message has. */
export interface Notice extends Place {
  id: string;
  erased?: string;
  erasedUpTo?: string;
}

/** How a key is set. */
export interface SetOptions extends Omit<PublishOptions, "stateKey"> {
  /**
   * Only if this is the id of the key's message, or with null, only if the key has no value; otherwise
   * the error is `conflict`. Makes one attempt, and excludes all options but `contentType`, `event`,
   * `tags` and `expiresInSeconds`.
   */
  ifMatch?: string | null;
}

export type EditOptions = Pick<PublishOptions, "contentType" | "event" | "tags">;

/** The answer to `edit`: the message that is published, and the one that is erased. */
export interface Replaced {
  id: string;
  replaces: string;
}

/** What `end` takes with a last message. */
export type EndOptions = Pick<PublishOptions, "contentType" | "event" | "tags" | "expiresInSeconds">;

/** The answer to `end`. */
export interface Ended {
  /** The id of the end. */
  ended: string;
  /** The id of the last message, if there is one. */
  id?: string;
}

/** How far a user has read the inbox or a channel, on whatever device. */
export interface ReadMarker {
  /** The channel; missing for the inbox. */
  channel?: string;
  user: string;
  /** The id of the last message that was read; missing if there is no marker. */
  read?: string;
  /** The number of messages behind it that the server keeps, at most 10,000; in a channel, 1,000. */
  unread: number;
}

/** The answer to an erasure. */
export interface Erased {
  /** The id of the notice; missing if there never was a message. */
  id?: string;
  erased?: string;
  /** The last message that is erased, of several. */
  erasedUpTo?: string;
  /** How many were erased, if the server knows that. */
  messages?: number;
}

export interface SubscriptionEvents<Data = unknown> {
  message: Message<Data>;
  /** The subscription starts after `id`. Once; after a reconnect, "recovered" or "gap" follows. */
  subscribed: Place & { id: string };
  /** Reconnected after a loss; no messages are missing. */
  recovered: Place;
  /** Messages are missing here; `missed` is their number if the server knows it. */
  gap: Place & { id?: string; missed?: number };
  /**
   * Messages were skipped for newer ones, because this client was behind and the channel has the newest
   * only (`lag-policy = "latest"`), or their keys have newer values. It is no gap; `count` is their
   * number if the server knows it.
   */
  conflated: Place & { count?: number };
  /** Messages are erased: the one with the id `erased`, or all up to `erasedUpTo`. Forget them. */
  erased: Notice;
  /** With the option `state`: the values of all keys have come, as they were at the message `id`. */
  state: Place & { id: string };
  /** The channel has ended: all of its messages have come, and so the subscription is over. `id` is the last id. */
  ended: Place & { id: string };
  /** A message that could not be read, in place of it. Without a listener: `console.warn`. */
  unreadable: Unreadable;
  /** With the option `presence`: who follows the channel, at once and on each change. */
  presence: PresenceEvent;
  /**
   * The server refused the subscription, or a newer token does not grant it; it has ended.
   * Without a listener: `console.error`.
   */
  error: ThrongError;
}

export interface ThrongEvents {
  /** Each change of the state. Without a listener, reasons are told by `console.warn`, each once. */
  state: StateEvent;
  /** A message of any channel that could not be read, also of `history`. */
  unreadable: Unreadable;
  /**
   * How many messages of the inbox are unread: once the client is connected with its `user`, when the user
   * has read on, on whatever device, and after `read`. A new message is no such event. Over `poll`, only
   * after `read`. With `channel`, how many of that channel: when the user has read on, and after `read`.
   * Devices that follow the user's inbox are told.
   */
  unread: ReadMarker;
  /**
   * The server refused the connection permanently; the client is closed. Without a listener:
   * `console.error`.
   */
  error: ThrongError;
}

declare class Emitter<Events> {
  /** Returns a function that removes the listener. Throws a `TypeError` for an unknown event. */
  on<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): () => void;
  /** The same, for the next event only. */
  once<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): () => void;
  off<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => void): void;
}

export declare class Subscription<Data = unknown> extends Emitter<SubscriptionEvents<Data>> {
  private constructor();
  readonly channel?: string;
  readonly user?: string;
  /**
   * Listens to the messages whose `event` is this name. Listeners of "message" get them, too. Returns a
   * function that removes the listener.
   */
  onEvent(event: string, listener: (message: Message<Data>) => void): () => void;
  /** Shows something else to the other members of the channel, in place of the option `info`. */
  update(info: object): void;
  unsubscribe(): void;
}

export interface ChannelStateEvents<Data = unknown> {
  /** A key has another value, or none: then `value` is undefined. */
  change: { key: string; value?: Data; message?: Message<Data> };
  /** All keys are known, for the first time or after a loss. */
  complete: undefined;
  /** The channel has ended: nothing changes any more. */
  ended: Place & { id: string };
  /** The server refused the subscription; it has ended. */
  error: ThrongError;
}

/** The newest message of each key of a channel, which `Throng.stateOf` follows. */
export declare class ChannelState<Data = unknown> extends Emitter<ChannelStateEvents<Data>> {
  private constructor();
  /** Until it is true, keys are missing. */
  readonly isComplete: boolean;
  /** The number of keys. */
  readonly size: number;
  /** The value of a key. */
  get(key: string): Data | undefined;
  /** The message that has set a key, such as for its id. */
  message(key: string): Message<Data> | undefined;
  /** All keys with their values, those that were set last at the end. */
  entries(): [key: string, value: Data][];
  /** Ends the subscription. */
  close(): void;
}

/**
 * `code` is the server's, or `closed` (which is the server's, too, for a channel that has ended), `timeout`, `queue_full`, `unreachable`, `no_token`,
 * `token_failed`, `disconnected`, and `http_…` for the answer of a proxy or another server.
 */
export declare class ThrongError extends Error {
  constructor(code: string, message: string, status?: number);
  readonly code: string;
  /** The HTTP status, if the error is from a response. */
  readonly status?: number;
  /**
   * Of `publish`: `"unknown"` if an attempt got no response, so that the message may have been
   * published or may still be; otherwise `"unpublished"`. Browsers do not report a refused
   * connection, so there it counts as no response; in Node it does not.
   */
  readonly outcome?: "unpublished" | "unknown";
  /** Of `publish`: the idempotency key, for a retry that does not publish the message twice. */
  readonly key?: string;
}

export declare class Throng extends Emitter<ThrongEvents> {
  /** Throws a `TypeError` for a URL without a scheme or an unknown option. */
  constructor(url?: string | URL, options?: ThrongOptions);
  constructor(options: ThrongOptions);
  readonly state: State;
  /** The last "state" event. */
  readonly status: StateEvent;
  /** The last "unread" event of the inbox; undefined until there was one. */
  readonly unread?: ReadMarker;
  /** The last "unread" event of a channel; undefined until there was one. */
  unreadOf(channel: string): ReadMarker | undefined;
  /** The current transport, open or being tried. */
  readonly transport: Transport;
  /**
   * Follows a channel, or the inbox of the client's own `user`. A channel may be subscribed several
   * times. Channels beyond the server's limit for one connection get further connections. If a listener
   * for messages returns a promise, its message counts as handled once that is settled.
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
   * Follows each of a list, with one command and one answer. Returns their subscriptions in the same order.
   * Throws for a bad name before it follows any.
   */
  subscribe<Data = unknown>(
    targets: readonly Entry[],
    options: SubscribeOptions,
    listener?: (message: Message<Data>) => void,
  ): Subscription<Data>[];
  subscribe<Data = unknown>(
    targets: readonly Entry[],
    listener?: (message: Message<Data>) => void,
  ): Subscription<Data>[];
  /**
   * Resolves once the server has the message. Retries within `publishTimeoutMs`, with the same
   * idempotency key. Rejects with a `ThrongError` that has an `outcome`; at once with `too_large`
   * for what the server does not take, `bad_name`, `bad_utf8` or `bad_json`, and with a `TypeError`
   * for data that JSON cannot represent and for unknown options.
   */
  publish(
    target: Target,
    data: unknown,
    options: PublishOptions & { volatile: true },
  ): Promise<VolatilePublished>;
  publish(target: Target, data: unknown, options?: PublishOptions): Promise<Published>;
  history<Data = unknown>(target: Target, options?: HistoryOptions): Promise<History<Data>>;
  /**
   * Moves the read marker of the client's `user` to a message of the inbox, or of a `channel` that has read
   * markers: forward only, so that devices may report late. Without an id, it only asks.
   */
  read(id?: string, options?: { channel?: string }): Promise<ReadMarker>;
  presence(target: Target, options?: { limit?: number; after?: string }): Promise<Members>;
  /**
   * Publishes data in the place of a message, which is erased. Needs the right `edit`, unless the client
   * has published the message itself and the channel shows users. Makes one attempt.
   */
  edit(target: Target, id: string, data: unknown, options?: EditOptions): Promise<Replaced>;
  /** Publishes data as the value of a key. */
  set(target: Target, key: string, data: unknown, options?: SetOptions): Promise<Published>;
  /** Removes a key: if `ifMatch` is given, only if that is the id of its message. Makes one attempt. */
  remove(target: Target, key: string, options?: { ifMatch?: string }): Promise<Published>;
  /** Follows a channel, and keeps the newest message of each of its keys. */
  stateOf<Data = unknown>(target: Target): ChannelState<Data>;
  /** Erases a message, which needs the right `erase`. Followers get the event "erased". */
  erase(target: Target, id: string): Promise<Erased>;
  /** Erases all messages that the channel keeps now. */
  eraseHistory(target: Target): Promise<Erased>;
  /**
   * Ends a channel, with a last message if `data` is given, which needs the right `end`. Followers get
   * the event "ended", later publications the error `closed`. Makes one attempt.
   */
  end(channel: Target, data?: unknown, options?: EndOptions): Promise<Ended>;
  /** Opens a channel again that has ended. */
  open(channel: Target): Promise<{ channel: string; id: string }>;
  /** Reconnects at once, beginning with the first transport. Also works after `close`. */
  connect(): void;
  /** Closes the connections and rejects unconfirmed messages. Keeps the subscriptions. */
  close(): void;
}
