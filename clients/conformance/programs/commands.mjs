/** What the programs of the JavaScript client do, in Node and in a page. */

const TIMES = { heartbeat_ms: "heartbeatMs", open_timeout_ms: "openTimeoutMs",
  request_timeout_ms: "requestTimeoutMs", publish_timeout_ms: "publishTimeoutMs" };

/** An event as a line. Data may be nested more deeply than `JSON.stringify` goes. */
export function toLine(event) {
  try {
    return JSON.stringify(event);
  } catch {
    return JSON.stringify({ ...event, data: "nested too deeply to print" });
  }
}

/** The commands by name. `print` takes an event; `base` are the options of each client. */
export function commands(Throng, print, base) {
  const clients = new Map();
  /** The last subscription of each. */
  const last = new Map();
  const tell = (client, event, fields = {}) => print({ client, event, ...fields });

  function open({ client, url, options: given }) {
    const { transports, token, user, params, no_time: noTime } = given;
    const options = { ...base, transports, token, user, params, noTime };
    // In seconds, as the other times among them.
    if (params?.pace) options.params = { ...params, pace: params.pace * 1_000 };
    for (const [name, own] of Object.entries(TIMES)) {
      if (given[name] !== undefined) options[own] = given[name];
    }
    if (given.poll_wait_ms !== undefined) options.pollWaitSeconds = given.poll_wait_ms / 1_000;
    if (given.random !== undefined) options.random = () => given.random;
    const made = new Throng(url, options);
    made.on("state", ({ state, transport, delayMs, reason }) => {
      tell(client, "state", { state, transport, delay_ms: delayMs, reason });
    });
    made.on("unread", ({ channel, read = null, unread }) => tell(client, "unread", { channel, read, unread }));
    made.on("error", ({ code, message }) => tell(client, "error", { code, message }));
    clients.set(client, made);
  }

  function subscribe({ client, channels, history, since, presence, state, info, pace_ms: pace }) {
    for (const channel of channels) {
      const from = { history, since, presence, state, info, pace };
      let subscription;
      try {
        subscription = clients.get(client).subscribe(channel, from);
      } catch ({ code, name }) {
        tell(client, "error", { code: code ?? name });
        continue;
      }
      last.set(client, subscription);
      subscription.on("message", (message) => {
        const { id = null, time = null, replayed, contentType: content_type } = message;
        const { event: name = null, tags = {}, from: sender = null, replaces = null } = message;
        const isBinary = message.data instanceof Uint8Array;
        const data = isBinary ? new TextDecoder().decode(message.data) : message.data;
        const { stateKey: state_key = null, tombstone = false } = message;
        const labels = { name, tags, from: sender, replaces, state_key, tombstone };
        tell(client, "message", { channel, id, time, data, replayed, content_type, ...labels });
      });
      subscription.on("erased", ({ id, erased, erasedUpTo }) =>
        tell(client, "erased", { channel, id, erased: erased ?? null, erased_up_to: erasedUpTo ?? null }),
      );
      subscription.on("ended", ({ id }) => tell(client, "ended", { channel, id }));
      subscription.on("state", ({ id }) => tell(client, "complete", { channel, id }));
      subscription.on("conflated", ({ count }) => tell(client, "conflated", { channel, count }));
      subscription.on("gap", ({ id, missed }) => tell(client, "gap", { channel, id, missed }));
      subscription.on("unreadable", ({ id, reason }) => {
        tell(client, "unreadable", { channel, id, reason });
      });
      subscription.on("presence", ({ connections, users, joined = [], left = [], ...more }) => {
        const gone = left.map((each) => each.user);
        const { updated = [], partial = false } = more;
        const shown = [...(more.members ?? [])].map(([key, { info = null }]) => [key, info]);
        const of = { members: Object.fromEntries(shown), updated, partial };
        tell(client, "presence", { channel, connections, users, joined, left: gone, ...of });
      });
      subscription.on("error", ({ code, message }) => tell(client, "error", { code, message }));
    }
  }

  function update({ client, info }) {
    last.get(client).update(info);
  }

  /** Prints the state of a channel after each change. */
  function keep({ client, channel }) {
    const state = clients.get(client).stateOf(channel);
    const print = () => {
      const values = Object.fromEntries(state.entries());
      tell(client, "kept", { values, is_complete: state.isComplete });
    };
    state.on("change", print);
    state.on("complete", print);
  }

  async function set({ client, channel, key, data, if_match: ifMatch }) {
    await change(client, data, (made) => made.set(channel, key, data, { ifMatch }));
  }

  async function remove({ client, channel, key, if_match: ifMatch }) {
    await change(client, null, (made) => made.remove(channel, key, { ifMatch }));
  }

  async function end({ client, channel, data }) {
    await change(client, data, (made) => made.end(channel, data));
  }

  async function reopen({ client, channel }) {
    await change(client, null, (made) => made.open(channel));
  }

  async function read({ client, id, channel }) {
    const { read = null, unread } = await clients.get(client).read(id, { channel });
    tell(client, "read", { read, unread });
  }

  async function change(client, data, begin) {
    try {
      const { id, ended = id } = await begin(clients.get(client));
      tell(client, "published", { data, id: ended });
    } catch ({ code, outcome = null, key = null }) {
      tell(client, "unpublished", { data, code, outcome, key });
    }
  }

  async function history({ client, channel, limit, since_time: sinceTime, order }) {
    const { messages } = await clients.get(client).history(channel, { limit, sinceTime, order });
    tell(client, "history", { data: messages.map(({ data }) => data) });
  }

  async function publish({ client, channel, data, volatile, name: event, tags }) {
    try {
      const published = await clients.get(client).publish(channel, data, { volatile, event, tags });
      const { id = null, duplicate } = published;
      tell(client, "published", { data, id, duplicate: duplicate ?? false });
    } catch ({ code, outcome, key }) {
      tell(client, "unpublished", { data, code, outcome, key });
    }
  }

  function close({ client }) {
    clients.get(client)?.close();
    clients.delete(client);
  }

  return { open, subscribe, update, publish, keep, set, remove, end, reopen, read, history, close };
}
