/** The types of clients that share a connection. */

import { Throng, type ThrongOptions } from "@throng-push/client";

export interface SharedOptions extends ThrongOptions {
  /**
   * Names what the tabs share: those of the same origin, server and group have one connection.
   * Default: the `user`. Needed with a token and without a `user`.
   */
  group?: string;
}

/**
 * A `Throng` whose connection is shared by all tabs of the browser with the same origin, server and
 * group. Options should be the same in all tabs: those of the tab that has the connection count.
 */
export declare class SharedThrong extends Throng {
  /** Throws a `TypeError` as `Throng` does, and for a token without `user` and `group`. */
  constructor(url?: string | URL, options?: SharedOptions);
  constructor(options: SharedOptions);
  /**
   * Whether this browser can share a connection: it has Web Locks, which need TLS or a page of this
   * machine, and BroadcastChannel. If not, this client has a connection of its own.
   */
  readonly isShared: boolean;
  /** Whether the connection is this tab's. */
  readonly isLeader: boolean;
  /** Closes this tab's client. If it has the connection, another tab takes over. */
  close(): void;
  /** Closes the connection and the clients of all tabs, for a user who logs out. */
  logout(): void;
}
