/**
 * Throng in React: a provider with a client, and hooks that follow channels.
 *
 * Invariants:
 * - A component shows the messages of the channel that it names now, never those of the one before.
 * - A hook ends what it has begun when its component goes, or names another channel. So React may run
 *   effects twice, as in strict mode: subscriptions of a client are counted.
 */

import {
  createContext,
  createElement,
  useCallback,
  useContext,
  useEffect,
  useRef,
  useState,
  useSyncExternalStore,
} from "react";

const Context = createContext(undefined);

/** The status of a client on a server. */
const NOT_CONNECTED = { state: "idle" };

/** Lets the hooks below it use `client`, a `Throng`. */
export const ThrongProvider = ({ client, children }) =>
  createElement(Context.Provider, { value: client }, children);

/** The client of the provider. */
export function useThrong() {
  const client = useContext(Context);
  if (!client) throw new Error("Throng's hooks need a <ThrongProvider client={…}> around them");
  return client;
}

/** The state of the client: "idle", "connecting", "open", "waiting" or "closed". */
export function useThrongState() {
  const client = useThrong();
  const subscribe = useCallback((changed) => client.on("state", changed), [client]);
  return useSyncExternalStore(subscribe, () => client.state, () => "idle");
}

/** The state with its transport, and while the client waits, for how long and why. */
export function useThrongStatus() {
  const client = useThrong();
  const subscribe = useCallback((changed) => client.on("state", changed), [client]);
  return useSyncExternalStore(subscribe, () => client.status, () => NOT_CONNECTED);
}

/**
 * How many messages of the inbox, or of a `channel`, are unread, as the server has told last; undefined
 * until it has. About a channel it is asked each time that the client is connected.
 */
export function useUnread({ channel } = {}) {
  const client = useThrong();
  const subscribe = useCallback((changed) => client.on("unread", changed), [client]);
  const known = () => (channel === undefined ? client.unread : client.unreadOf(channel));
  const told = useSyncExternalStore(subscribe, known, () => undefined);
  const isAway = /^(connecting|waiting)$/.test(useThrongState());
  useEffect(() => {
    // What the server refuses stays unknown.
    if (channel !== undefined && !isAway) client.read(undefined, { channel }).catch(() => {});
  }, [client, channel, isAway]);
  const markRead = useCallback((id) => client.read(id, { channel }), [client, channel]);
  return { ...told, markRead };
}

/** Names a target as text, which stays equal when an object with the same names is made anew. */
const keyOf = (target) =>
  target && JSON.stringify(typeof target === "string" ? { channel: target } : target);

/** The newest value, for what runs later. */
function useLatest(value) {
  const latest = useRef(value);
  useEffect(() => {
    latest.current = value;
  });
  return latest;
}

/**
 * State that belongs to a client and a target, and is `empty` for any other. `begin` follows the
 * target; it is called with a function that changes the state, and returns what ends it.
 */
function useFollowed(target, empty, begin) {
  const client = useThrong();
  const key = keyOf(target);
  const [held, hold] = useState();
  const latest = useLatest(begin);
  useEffect(() => {
    if (!key) return undefined;
    const own = { client, key };
    hold({ own, client, key, state: empty });
    const change = (to) =>
      hold((before) => (before?.own === own ? { ...before, state: to(before.state) } : before));
    try {
      return latest.current(client, JSON.parse(key), change);
    } catch (error) {
      // A name that no server takes, say: the component shows it, as it does refusals.
      if (!error.code) throw error;
      change((to) => ({ ...to, error }));
      return undefined;
    }
  }, [client, key]);
  return held && held.client === client && held.key === key ? held.state : empty;
}

/** Whether a notice tells that the message with this id is erased. */
function isErased(id, { erased, erasedUpTo = "" }) {
  const [[epoch, offset], [last, lastOffset]] = [id.split("-"), erasedUpTo.split("-")];
  return id === erased || (epoch === last && Number(offset) <= Number(lastOffset));
}

/** `older` is the number of messages that were loaded, which are kept beside the newest ones. */
const NO_MESSAGES = { messages: [], isSubscribed: false, ended: false, gaps: 0, older: 0 };

/**
 * Follows a channel or an inbox while the component is there; nothing while `target` is null.
 * `messages` has the newest `keep`, oldest first, and what `loadOlder` has put before them.
 */
export function useChannel(target, options = {}) {
  const client = useThrong();
  const latest = useLatest(options);
  const begun = useRef();
  const state = useFollowed(target, NO_MESSAGES, (client, target, change) => {
    begun.current = { target, change };
    const { history, since } = latest.current;
    const subscription = client.subscribe(target, { history, since }, (message) => {
      const { keep = 100, onMessage } = latest.current;
      onMessage?.(message);
      // A volatile message is an event of this moment, and not one of the channel's messages.
      if (message.id === undefined) return;
      const isLeft = ({ id }) => id !== message.replaces;
      change((to) => ({
        ...to,
        messages: [...to.messages.filter(isLeft), message].slice(keep ? -keep - to.older : 0),
      }));
    });
    subscription.on("subscribed", () => change((to) => ({ ...to, isSubscribed: true })));
    subscription.on("erased", (notice) => {
      const isLeft = ({ id }) => !isErased(id, notice);
      change((to) => ({ ...to, messages: to.messages.filter(isLeft) }));
    });
    subscription.on("gap", (gap) => {
      latest.current.onGap?.(gap);
      change((to) => ({ ...to, gaps: to.gaps + 1 }));
    });
    subscription.on("ended", () => change((to) => ({ ...to, isSubscribed: false, ended: true })));
    subscription.on("error", (error) => change((to) => ({ ...to, isSubscribed: false, error })));
    return () => subscription.unsubscribe();
  });
  const key = keyOf(target);
  const publish = useCallback(
    (data, options) => client.publish(JSON.parse(key), data, options),
    [client, key],
  );
  const { older, ...shown } = state;
  const shows = useLatest(shown.messages);
  const loadOlder = useCallback(
    async (limit) => {
      const { target, change } = begun.current;
      const page = await client.history(target, { before: shows.current[0]?.id, limit });
      change((to) => {
        const known = new Set(to.messages.map(({ id }) => id));
        const more = page.messages.filter(({ id }) => !known.has(id));
        return { ...to, older: to.older + more.length, messages: [...more, ...to.messages] };
      });
      return page.more;
    },
    [client, key],
  );
  return { ...shown, publish, loadOlder };
}

const NO_STATE = { values: new Map(), isComplete: false };

/**
 * The state of a channel, as `useState` gives it: with a key, its value and what sets it; without one,
 * all values in a map, and what sets one by its key. The third element has the rest.
 */
export function useChannelState(target, key) {
  const client = useThrong();
  const latest = useLatest(key);
  const state = useFollowed(target, NO_STATE, (client, target, change) => {
    const state = client.stateOf(target);
    const show = () =>
      change((to) => ({ ...to, values: new Map(state.entries()), isComplete: state.isComplete }));
    state.on("change", (changed) => {
      // A component of one key is not rendered for others.
      if (latest.current === undefined || latest.current === changed.key) show();
    });
    state.on("complete", show);
    state.on("error", (error) => change((to) => ({ ...to, error })));
    return () => state.close();
  });
  const name = keyOf(target);
  const set = useCallback(
    (...given) => {
      const [own, value, options] = key === undefined ? given : [key, ...given];
      return client.set(JSON.parse(name), own, value, options);
    },
    [client, name, key],
  );
  const remove = useCallback(
    (own = key, options) => client.remove(JSON.parse(name), own, options),
    [client, name, key],
  );
  const { values, ...rest } = state;
  return [key === undefined ? values : values.get(key), set, { ...rest, remove }];
}

const NOBODY = { connections: 0, users: [], members: new Map(), more: false, isLoading: true };

/** Who follows a channel, as the server tells; the component follows it, too. */
export function usePresence(target, options = {}) {
  const latest = useLatest(options);
  const own = useRef();
  const info = options.info && JSON.stringify(options.info);
  const state = useFollowed(target, NOBODY, (client, target, change) => {
    const { info } = latest.current;
    const subscription = client.subscribe(target, { presence: true, info });
    own.current = { subscription, info: info && JSON.stringify(info) };
    subscription.on("presence", (event) => {
      latest.current.onPresence?.(event);
      const { connections, users, members = NOBODY.members, more, partial, error } = event;
      change(() => ({ connections, users, members, more, partial, error, isLoading: false }));
    });
    subscription.on("error", (error) => change((to) => ({ ...to, error, isLoading: false })));
    return () => subscription.unsubscribe();
  });
  useEffect(() => {
    if (!info || info === own.current?.info) return;
    own.current.info = info;
    own.current.subscription.update(JSON.parse(info));
  }, [info]);
  return state;
}
