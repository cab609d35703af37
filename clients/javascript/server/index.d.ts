/** The types of what an application uses on its own servers. Needs `node:crypto`. */

import type { Published, Tags, Target, ThrongError } from "@throng-push/client";

export { ThrongError } from "@throng-push/client";

/** An unknown option throws a `TypeError`. */
export interface PublisherOptions {
  /** A server key, as `throng key` prints it. A server without keys needs none. */
  key?: string;
  /** Time for a message with all its attempts; at most 240,000. Default: 30,000. */
  publishTimeoutMs?: number;
  /** Time after which a request counts as unanswered. Default: 10,000. */
  requestTimeoutMs?: number;
  fetch?: typeof globalThis.fetch;
  /** Returns numbers from 0 to 1, for the jitter. */
  random?: () => number;
  /** How many messages may wait to be published by `enqueue`, which needs this option. */
  queueMax?: number;
  /** Called for each message of `enqueue` that was not published. Default: `console.error`. */
  onError?: (error: ThrongError) => void;
}

/** What became of the messages of `enqueue`. */
export interface QueueCounts {
  /** They wait, or are on their way. */
  queued: number;
  published: number;
  /** Not published, or not known to be: `onError` was called for each. */
  failed: number;
  /** Not taken: `enqueue` has thrown. */
  refused: number;
}

export interface DraftOptions {
  /** Idempotency key: repeated within five minutes, it publishes nothing. Default: random. */
  key?: string;
  contentType?: string;
  /** The value of a `Throng-Connection`, which does not get the message. */
  exclude?: string;
  /** Time after which the message is not delivered any more. */
  expiresInSeconds?: number;
  /** The name of the message's event: 1 to 128 bytes, and none of the server's own events. */
  event?: string;
  tags?: Tags;
}

/** The properties of a channel, which do not change once it is created, and its first messages. */
export interface CreationOptions {
  /** The content type of all messages. Default: any. */
  contentType?: string;
  /** For how many seconds the channel stays after its creation and each message. */
  ttlSeconds?: number;
  /** Until when it stays, in milliseconds since 1970. */
  expiresAt?: number;
  /** Published together with the creation, all or none. */
  messages?: Iterable<Omit<DraftOptions, "key"> & { data: unknown }>;
}

/** A channel that somebody has created. */
export interface Creation {
  channel: string;
  /** When, in milliseconds since 1970. */
  created: number;
  contentType?: string;
  ttlSeconds?: number;
  expiresAt?: number;
  /** The ids of the messages with which this call of `create` has created it. */
  ids?: string[];
}

/** A message of a batch. */
export type Draft = DraftOptions & { data: unknown } & (
  | { channel: string }
  | { user: string | number | bigint }
);

/**
 * Publishes with a server key. A message has one idempotency key for all attempts. Errors have an
 * `outcome` and the `key`, as those of `Throng.publish`.
 */
export declare class Publisher {
  /** Throws a `TypeError` for a URL without a scheme or an unknown option. */
  constructor(url: string | URL, options?: PublisherOptions);
  /** Resolves once the server has the message. */
  publish(target: Target, data: unknown, options?: DraftOptions): Promise<Published>;
  /**
   * Publishes messages in order, any number; resolves with the result of each, at its place. Rejects
   * only before anything is published: with a `TypeError` for data that JSON cannot represent, and
   * with a `ThrongError` for a name or a text that cannot be (`bad_name`, `bad_utf8`, `bad_json`).
   */
  publishBatch(drafts: Iterable<Draft>): Promise<(Published | ThrongError)[]>;
  /**
   * Creates a channel, which needs the right `create`. May be repeated; with other properties it
   * rejects with `already_created`. A channel that was created before gets no messages.
   */
  create(channel: string, options?: CreationOptions): Promise<Creation>;
  /** Rejects with `not_created` if nobody has created the channel. */
  creation(channel: string): Promise<Creation>;
  /**
   * Publishes in the background, in the order of the calls; needs the option `queueMax`. Returns the
   * key of the message at once. Throws what `publish` rejects with at once, and a `ThrongError`
   * with the code `queue_full` if `queueMax` messages wait, or `closed`; the message is not taken then.
   */
  enqueue(target: Target, data: unknown, options?: DraftOptions): string;
  /** What became of the messages of `enqueue`. */
  readonly counts: QueueCounts;
  /** Resolves when all messages that were given to `enqueue` until now are published or have failed. */
  flush(): Promise<void>;
  /** The same, and takes no more. Await it before the process ends. */
  close(): Promise<void>;
}

export interface TokenOptions {
  /** Who the client is. It may always follow this user's inbox. A number becomes its digits. */
  user?: string | number | bigint;
  /** The channels that the token grants: `*` stands for any text, and `{user}` for the user. */
  subscribe?: readonly string[];
  publish?: readonly string[];
  history?: readonly string[];
  presence?: readonly string[];
  /** Where the client may show something of itself to the other members. */
  update?: readonly string[];
  /** Default: 900. */
  expiresInSeconds?: number;
  /** Further claims, such as `jti` or `aud`, which override the others. */
  claims?: Record<string, unknown>;
}

/** Signs a token (HS256) with the secret of the server's `[[token-keys]]`, at least 32 bytes. */
export declare function makeToken(secret: string | Uint8Array, options?: TokenOptions): string;

/** Throng has not signed the request. */
export declare class WebhookError extends Error {}

/** Verifies the requests that Throng makes to your application. */
export declare class Webhook {
  /** The callout's secret (`whsec_…`), or several while you change it. */
  constructor(secrets: string | readonly string[]);
  /**
   * The JSON of a request. Throws a `WebhookError` if Throng has not signed it. `body` is as it was
   * received, before any parser; `headers` are those of Node or of `fetch`.
   */
  verify(
    body: string | Uint8Array,
    headers: Headers | Record<string, string | readonly string[] | undefined>,
    options?: { nowMs?: number },
  ): unknown;
}
