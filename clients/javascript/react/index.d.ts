/** The types of Throng's hooks for React. */

import type { FunctionComponent, ReactNode } from "react";
import type {
  Member,
  Message,
  PresenceEvent,
  Published,
  PublishOptions,
  ReadMarker,
  SetOptions,
  State,
  StateEvent,
  SubscribeOptions,
  SubscriptionEvents,
  Target,
  Throng,
  ThrongError,
} from "@throng-push/client";

/** Lets the hooks below it use `client`. Make the client once, outside of components. */
export declare const ThrongProvider: FunctionComponent<{ client: Throng; children?: ReactNode }>;

/** The client of the provider. Throws without one. */
export declare function useThrong(): Throng;

/** The state of the client. */
export declare function useThrongState(): State;

/**
 * The last "state" event: the state with its transport, and while the client waits, the delay and the
 * reason. When rendered on a server, only the state.
 */
export declare function useThrongStatus(): Pick<StateEvent, "state"> & Partial<StateEvent>;

/**
 * How many messages of the inbox of the client's `user`, or of a `channel`, are unread, as the event "unread"
 * has told last, and what moves the read marker. `unread` is missing until the client is connected.
 */
export declare function useUnread(options?: { channel?: string }): Partial<ReadMarker> & {
  markRead(id: string): Promise<ReadMarker>;
};

/** `history` and `since` are read when the subscription begins; later changes do nothing. */
export interface ChannelOptions<Data = unknown> extends SubscribeOptions {
  /** How many of the newest messages `messages` has; 0 for all. Default: 100. */
  keep?: number;
  /** Called with each message; also with volatile ones, which `messages` does not have. */
  onMessage?: (message: Message<Data>) => void;
  /** Messages are missing; the next one comes after this call. */
  onGap?: (gap: SubscriptionEvents["gap"]) => void;
}

export interface Channel<Data = unknown> {
  /** Oldest first. Empty after `target` has changed. */
  messages: readonly (Message<Data> & { readonly id: string })[];
  /** The subscription was active once, and has not ended. */
  isSubscribed: boolean;
  /** The channel has ended: no more messages come. */
  ended: boolean;
  /** How often messages were missing. */
  gaps: number;
  /** The server refused the subscription; it has ended. */
  error?: ThrongError;
  /** Publishes to the channel, as `Throng.publish` does. The same function until `target` changes. */
  publish(data: unknown, options?: PublishOptions): Promise<Published>;
  /**
   * Puts so many messages of the history before those that are shown, 100 unless given: they stay, whatever
   * `keep` is. Resolves with whether there are more of them. Must not be called without a target.
   */
  loadOlder(limit?: number): Promise<boolean>;
}

/**
 * Follows a channel, or the client's own inbox, while the component is there. Components may follow
 * the same channel. With null it follows nothing, and `publish` must not be called.
 */
export declare function useChannel<Data = unknown>(
  target: Target | null | undefined,
  options?: ChannelOptions<Data>,
): Channel<Data>;

export interface ChannelStateRest {
  /** Until it is true, values may be missing. */
  isComplete: boolean;
  /** The server refused the subscription; it has ended. */
  error?: ThrongError;
  /** Removes a key: without an argument, the component's own. */
  remove(key?: string, options?: { ifMatch?: string }): Promise<Published>;
}

/**
 * The value of one key of a channel's state, and the function that sets it, while the component is
 * there. With null as the target it follows nothing.
 */
export declare function useChannelState<Data = unknown>(
  target: Target | null | undefined,
  key: string,
): [
  value: Data | undefined,
  set: (value: Data, options?: SetOptions) => Promise<Published>,
  rest: ChannelStateRest,
];
/** The values of all keys, and a function that sets one. */
export declare function useChannelState<Data = unknown>(
  target: Target | null | undefined,
): [
  values: ReadonlyMap<string, Data>,
  set: (key: string, value: Data, options?: SetOptions) => Promise<Published>,
  rest: ChannelStateRest,
];

export interface PresenceOptions {
  /** Called with each event, such as to tell who has `joined` and `left`. */
  onPresence?: (event: PresenceEvent) => void;
  /** What the user shows to the other members, in a channel with a list of them. Needs the right `update`. */
  info?: object;
}

export interface ChannelPresence {
  connections: number;
  users: readonly string[];
  /** The members with what they show, in a channel with a list of them; empty in others. */
  members: ReadonlyMap<string, Member>;
  /** Whether there are more users than listed. */
  more: boolean;
  /** True if some may be missing, because a node of several cannot be reached. */
  partial?: true;
  /** Nothing is known yet. */
  isLoading: boolean;
  /** Why nobody is known: the server refused the channel, or does not show this client who is there. */
  error?: unknown;
}

/**
 * Who follows a channel, from the server's presence events. The component follows the channel, too,
 * so this client is among them. With null it follows nothing.
 */
export declare function usePresence(
  target: Target | null | undefined,
  options?: PresenceOptions,
): ChannelPresence;
