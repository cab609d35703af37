// Compiled, but never run: code that the types must accept or reject.

import { Throng, ThrongError, type Message, type PresenceEvent } from "@throng-push/client";
import { SharedThrong } from "@throng-push/client/tabs";
import { makeToken, Publisher, Webhook } from "@throng-push/client/server";
import { ThrongProvider, useChannel, useChannelState, usePresence, useThrong, useUnread } from "@throng-push/client/react";

interface Say {
  kind: "say";
  text: string;
}

const throng = new Throng("http://127.0.0.1:8080", { user: "ann", transports: ["sse", "poll"] });
new Throng();
new Throng({ user: "ann" });
new Throng({ token: "eyJ" });
new Throng({ getToken: async () => (Math.random() > 0.5 ? "eyJ" : null) });
new Throng({ getToken: () => "eyJ" });

const chat = throng.subscribe<Say>("chat:lobby", { history: 50 }, (message) => {
  const text: string = message.data.text;
  const time: number = message.time;
  void [text, time];
});
throng.subscribe({ user: "ann" }, (message: Message) => void message.id);
throng.subscribe("news", ({ replayed }) => void (replayed === true));
const prices = throng.subscribe<number>(["a", { channel: "b", since: "k-1" }], { pace: 250 }, ({ id = "" }) => void id);
prices.forEach((each) => each.on("conflated", ({ channel, count = 0 }) => void [channel, count.toFixed()]));
throng.on("unread", ({ user, read = "", unread }) => void [user, read, unread.toFixed()]);
void throng.unread?.unread.toFixed();
new Throng({ noTime: true, params: { heartbeat: 60, pace: 100 } });
// @ts-expect-error: an entry has no such option
throng.subscribe([{ channel: "b", sinse: "k-1" }]);
chat.once("message", ({ data }) => void data.text);
chat.onEvent("price", ({ data, event = "", tags = {}, from }) => void [data.text, event, tags.n, from])();
void throng.publish("a", 1, { event: "price", tags: { symbol: "ACME", n: 2 } });
// @ts-expect-error: tags are flat
void throng.publish("a", 1, { tags: { a: { b: 1 } } });
throng.subscribe("room", { presence: true }).on("presence", ({ users, left = [] }) => {
  const times: number[] = left.map(({ last_seen }) => last_seen);
  void [users.join(), times];
});
const off: () => void = chat.on("gap", ({ missed }) => void (missed ?? 0).toFixed());
off();
throng.on("state", ({ state, transport }) => state === "open" && transport === "poll");

const { receipt } = await throng.publish("chat:lobby", "hi", { receipt: 5 });
receipt?.dropped_by.lagging.toFixed();
const typing = await throng.publish("chat:lobby", "typing", { volatile: true });
typing.volatile satisfies true;
const { id, subscribers } = await throng.publish("chat:lobby", { n: 1 }, { echo: false, key: "k" });
const page = await throng.history<Say>("chat:lobby", { limit: 10, before: id });
page.messages.map(({ data }) => data.text);
(await throng.presence("chat:lobby")).users.join();
const count: number = subscribers;
const kept = throng.stateOf<number>("prices");
kept.on("change", ({ key, value = 0 }) => void [key, value.toFixed(), kept.get("ACME")?.toFixed()]);
throng.subscribe("prices", { state: true }, ({ stateKey = "", tombstone }) => void [stateKey, tombstone]);
void throng.set("prices", "ACME", 1, { ifMatch: null }).then(({ id }) => throng.remove("prices", "ACME", { ifMatch: id }));
void throng.history("prices", { sinceTime: 1, order: "newest" });
// @ts-expect-error: no such order
void throng.history("prices", { order: "up" });
chat.on("ended", ({ channel = "", id }) => void [channel, id]);
void throng.end("match", { winner: "ann" }, { event: "won" }).then(({ ended, id = ended }) => id);
const { unread, read = "" } = await throng.read("k-1");
void [unread.toFixed(), read];
void throng.read("k-1", { channel: "news" }).then(({ channel = "" }) => channel);
void throng.unreadOf("news")?.unread.toFixed();
void throng.end("match").then(() => throng.open("match"));
const late = new ThrongError("timeout", "late");
void [count, late.code, late.outcome === "unknown", late.key];

// @ts-expect-error: no such transport
new Throng("http://127.0.0.1:8080", { transports: ["pigeon"] });
// @ts-expect-error: a token is a string
new Throng({ getToken: async () => 1 });
// @ts-expect-error: no such event
chat.on("message!", () => {});
// @ts-expect-error: the data's type is kept
chat.on("message", ({ data }) => data.number);
// @ts-expect-error: a target is a name, a channel or a user
throng.subscribe({ room: "lobby" });

chat.unsubscribe();
throng.close();

export function Room(): string {
  const chat = useChannel<Say>("chat:lobby", { history: 50, keep: 10, onGap: ({ missed }) => void missed });
  void chat.publish({ kind: "say", text: "hello" }, { echo: false });
  void useChannel({ user: "ann" }).messages.length;
  void chat.loadOlder(20).then((more: boolean) => more);
  void useChannel(null).isSubscribed;
  const onPresence = ({ joined = [] }: PresenceEvent) => void joined.join();
  const { unread = 0, markRead } = useUnread();
  void useUnread({ channel: "news" }).read?.length;
  void [unread.toFixed(), markRead("k-1").then(({ unread }) => unread)];
  const { users, connections } = usePresence("chat:lobby", { onPresence });
  // @ts-expect-error there is no such option
  useChannel("chat:lobby", { histroy: 50 });
  // @ts-expect-error messages are not for changing
  chat.messages.push();
  const [price = 0, setPrice, { remove, isComplete }] = useChannelState<number>("prices", "ACME");
  const [prices] = useChannelState<number>("prices");
  void [setPrice(price + 1), prices.get("ACME")?.toFixed(), isComplete && remove()];
  return `${chat.messages.at(-1)?.data.text} ${users.join()} ${connections} ${useThrong().state}`;
}
void ThrongProvider({ client: throng });
// @ts-expect-error the client is missing
void ThrongProvider({});

const shared: Throng = new SharedThrong({ user: "ann", getToken: () => "eyJ" });
new SharedThrong("https://push.example.org", { group: "team" }).logout();
// @ts-expect-error: a group is a name
new SharedThrong({ group: 1 });
void ThrongProvider({ client: shared });

const publisher = new Publisher("http://127.0.0.1:8080", { key: "throng_…" });
void publisher.publish({ user: "ann" }, "hello", { expiresInSeconds: 60 }).then(({ id }) => id);
void publisher.publish("a", 1, { event: "price", tags: { symbol: "ACME", n: 2 } });
void publisher
  .publishBatch([{ channel: "a", data: 1 }, { user: "ann", data: "x", key: "k" }])
  .then((results) => results.filter((result) => result instanceof ThrongError));
// @ts-expect-error a message has a channel or a user
void publisher.publishBatch([{ data: 1 }]);
const signed: string = makeToken("secret", { user: "ann", subscribe: ["rooms/*"], claims: { jti: "1" } });
// @ts-expect-error a list of channels
makeToken("secret", { subscribe: "rooms/*" });
void new Webhook(["whsec_a"]).verify(signed, new Headers());
