// What of shared tabs needs no browser. tests/e2e/test_tabs.py has them in Chromium.
import assert from "node:assert/strict";
import { test } from "node:test";
import WebSocket from "ws";
import { SharedThrong } from "@throng-push/client/tabs";
import { Hub } from "../tabs/hub.js";
import { Room } from "../tabs/room.js";
import { TabSocket } from "../tabs/socket.js";
import { emit } from "../src/emitter.js";
import { Subscription } from "../src/subscription.js";
import { inbox, next, start } from "./context.js";

test("where tabs cannot share, a client has a connection of its own", async (t) => {
  const { server } = await start(t);
  const client = new SharedThrong(server.url, { WebSocket, user: "ann", group: "team" });
  t.after(() => client.close());
  assert.equal(client.isShared, false);
  assert.equal(client.isLeader, true);
  const { data, listen, until } = inbox();
  await next(client.subscribe("a", listen), "subscribed");
  await client.publish("a", "to myself");
  await until(1);
  assert.deepEqual(data, ["to myself"]);
  client.logout();
  assert.equal(client.state, "closed");
});

test("a token without a user or a group is refused", () => {
  const name = "TypeError";
  const message = /give "user" or "group"/;
  assert.throws(() => new SharedThrong("http://a", { token: "x" }), { name, message });
  assert.throws(() => new SharedThrong("http://a", { getToken: () => "x" }), { name, message });
  assert.throws(() => new SharedThrong("http://a", { grop: "x" }), { name, message: /"grop"/ });
});

/** A hub, and what it posts. `until(condition)` resolves with the first post for which it holds. */
function lead(client) {
  const posts = [];
  let look = () => {};
  const hub = new Hub(
    client,
    (post) => {
      posts.push(...(post.texts ?? [""]).map((text) => ({ ...post, ...(text && JSON.parse(text)) })));
      look();
    },
    () => new Promise(() => {}),
  );
  const until = (condition) =>
    new Promise((resolve) => {
      look = () => {
        const found = posts.find(condition);
        if (found) resolve(found);
      };
      look();
    });
  const send = (socket, frame) => hub.receive({ type: "frame", socket, text: JSON.stringify(frame) });
  const open = (socket) => {
    hub.receive({ type: "open", tab: `of ${socket}`, socket });
    return until(({ type, to }) => type === "welcome" && to === socket);
  };
  return { hub, posts, until, send, open };
}

test("a tab that was at another leader gets what it lacks, also more than the leader keeps", async (t) => {
  const { server, connect } = await start(t);
  const ids = Array.from({ length: 50 }, (_, n) => server.publish("channel a", { data: n }).id);
  const { posts, until, send, open } = lead(connect());
  for (const socket of ["s1", "s2"]) await open(socket);
  send("s1", { type: "subscribe", channel: "a", since: ids[44], ref: 1 });
  send("s2", { type: "subscribe", channel: "a", since: ids[9], ref: 2 });
  const first = await until(({ type, ref }) => type === "subscribed" && ref === 1);
  const second = await until(({ type, ref }) => type === "subscribed" && ref === 2);
  assert.equal(first.recovered, true);
  assert.equal(second.recovered, true);
  server.publish("channel a", { data: "live" });
  await until(({ data }) => data === "live");
  /** What a tab gets, as its client takes it: nothing before "subscribed", nothing twice. */
  const takenBy = (socket, ref, since) => {
    const begin = posts.findIndex((post) => post.ref === ref && post.type === "subscribed");
    const taken = new Map();
    for (const post of posts.slice(begin)) {
      const isFor = post.to === socket || post.to === undefined;
      if (post.type === "message" && isFor) taken.set(post.id, post.data);
    }
    assert.ok(since);
    return [...taken.values()];
  };
  const all = [...ids.keys(), "live"];
  assert.deepEqual(takenBy("s1", 1, ids[44]), all.slice(45));
  assert.deepEqual(takenBy("s2", 2, ids[9]), all.slice(10));
});

test("the end of a channel is told to all of its tabs", async (t) => {
  const { server, connect } = await start(t);
  const { id } = server.publish("channel a", { data: 1 });
  const { until, send, open } = lead(connect());
  for (const socket of ["s1", "s2"]) {
    await open(socket);
    send(socket, { type: "subscribe", channel: "a", since: id, ref: socket });
    await until(({ type, ref }) => type === "subscribed" && ref === socket);
  }
  server.send({ type: "ended", channel: "a", id: "e1-2" });
  const { key, to } = await until(({ type }) => type === "ended");
  assert.deepEqual([key, to], ["channel a", undefined]);
});

test("all tabs hear that the user has read on, also one that comes later", async (t) => {
  const { server, connect } = await start(t);
  const { until, send, open } = lead(connect({ user: "ann" }));
  await open("s1");
  send("s1", { type: "subscribe", channel: "a", ref: 1 });
  await until(({ type, ref }) => type === "subscribed" && ref === 1);
  server.send({ type: "unread", user: "ann", read: "e1-2", unread: 3 });
  const { to, user, read, unread } = await until(({ type }) => type === "unread");
  assert.deepEqual([to, user, read, unread], [undefined, "ann", "e1-2", 3]);
  await open("s2");
  assert.equal((await until(({ type, to }) => type === "unread" && to === "s2")).unread, 3);
});

test("what is lost is a gap for the tab that lacks it", async (t) => {
  const { server, connect } = await start(t);
  const { id } = server.publish("channel a", { data: 1 });
  server.loseLogs();
  server.publish("channel a", { data: 2 });
  const { until, send, open } = lead(connect());
  await open("s1");
  send("s1", { type: "subscribe", channel: "a", since: id, ref: 1 });
  const { recovered } = await until(({ type, ref }) => type === "subscribed" && ref === 1);
  assert.equal(recovered, false);
});

test("a deep message reaches all tabs, also those that come later", async () => {
  const levels = 20_000;
  const data = JSON.parse('{"a":'.repeat(levels) + '[1,"x\\"y",null]' + "}".repeat(levels));
  let take;
  const subscribe = (_target, _options, listen) => {
    take = listen;
    return { on: (name, heard) => name === "subscribed" && heard({ id: "e-0" }), unsubscribe: () => {} };
  };
  const { posts, until, send, open } = lead({ state: "open", on: () => {}, subscribe });
  await open("s1");
  send("s1", { type: "subscribe", channel: "a", ref: 1 });
  await until(({ ref }) => ref === 1);
  take({ channel: "a", id: "e-1", time: 1, data, contentType: "application/json" });
  await open("s2");
  send("s2", { type: "subscribe", channel: "a", since: "e-0", ref: 2 });
  assert.equal((await until(({ ref }) => ref === 2)).type, "subscribed");
  const received = posts.filter(({ type }) => type === "message");
  assert.deepEqual(received.map(({ to }) => to), [undefined, "s2"]);
  for (const message of received) {
    let inner = message.data;
    for (let level = 0; level < levels; level += 1) inner = inner.a;
    assert.deepEqual(inner, [1, 'x"y', null]);
  }
});

test("an unreadable message is so in each tab, and the next one comes", async (t) => {
  const { server, connect } = await start(t);
  const { until, send, open } = lead(connect());
  await open("s1");
  send("s1", { type: "subscribe", channel: "a", ref: 1 });
  await until(({ ref }) => ref === 1);
  server.publish("channel a", { data: "%", encoding: "base64" });
  server.publish("channel a", { data: "next" });
  const { encoding } = await until(({ type }) => type === "message");
  assert.equal(encoding, "unreadable");
  await until(({ data }) => data === "next");
});

test("a refusal reaches the tab that asked", async (t) => {
  const { connect } = await start(t);
  const { until, send, open } = lead(connect());
  await open("s1");
  send("s1", { type: "subscribe", channel: "forbidden", ref: 1 });
  const { code } = await until(({ ref }) => ref === 1);
  assert.equal(code, "forbidden");
});

test("a room reads on where more came than it keeps while it read", async () => {
  const frame = (offset) => ({ id: `e-${offset}`, channel: "a", data: offset });
  const listeners = new Map();
  let take;
  let head = 250;
  const client = {
    subscribe: (_target, _options, listen) => {
      take = listen;
      return { on: (name, heard) => listeners.set(name, heard) };
    },
    history: async (_target, { after }) => {
      const from = Number(after.split("-")[1]);
      const page = Array.from({ length: head - from }, (_, index) => frame(from + 1 + index));
      // Of what comes while the first answer is on its way, the room keeps the end.
      for (; head < 550; ) take(frame(++head));
      return { id: `e-${from + page.length}`, messages: page, more: false };
    },
  };
  const room = new Room(client, { channel: "a" }, undefined, { tell: () => {}, end: () => {} });
  listeners.get("subscribed")({ id: "e-0" });
  for (let offset = 1; offset <= head; offset += 1) take(frame(offset));
  const [frames, recovered] = await new Promise((resolve) => {
    room.join({ since: "e-10" }, (...begun) => resolve(begun));
  });
  assert.deepEqual(
    frames.map(({ text }) => JSON.parse(text).data),
    Array.from({ length: 540 }, (_, index) => index + 11),
  );
  assert.equal(recovered, true);
});

/** A tab's socket, and the types and ids of the frames that its client has. */
function socketOf() {
  const heard = [];
  const socket = new TabSocket({ post: () => {} });
  socket.onmessage = ({ data }) => {
    const { type, id, ref } = JSON.parse(data);
    heard.push(`${type} ${id ?? ref}`);
  };
  const send = (frame) => socket.send(JSON.stringify(frame));
  const receive = (...frames) => socket.receive(undefined, frames.map((frame) => JSON.stringify(frame)));
  return { heard, send, receive };
}

const message = (id) => ({ type: "message", id });

test("what a tab asked for stays before what came meanwhile, also behind a publish without echo", () => {
  const { heard, send, receive } = socketOf();
  send({ type: "publish", channel: "b", echo: false, ref: 1 });
  receive(message(2));
  receive({ type: "subscribed", id: 0 }, message(1), message(2));
  receive({ type: "pong", ref: 9 });
  assert.deepEqual(heard, ["pong 9"]);
  receive({ type: "published", ref: 1 });
  const held = ["message 2", "subscribed 0", "message 1", "message 2"];
  assert.deepEqual(heard, ["pong 9", "published 1", ...held]);
});

test("a message waits only for the publishes before it", () => {
  const { heard, send, receive } = socketOf();
  send({ type: "publish", channel: "a", echo: false, ref: 1 });
  receive(message(1));
  for (let ref = 2; ref < 100; ref += 1) {
    send({ type: "publish", channel: "a", echo: false, ref });
    receive({ type: "published", ref: ref - 1 });
    receive(message(ref));
    assert.equal(heard.at(-1), `message ${ref - 1}`);
  }
});

test("a tab follows a list, and hears what is skipped and what is volatile", async (t) => {
  const { server, connect } = await start(t);
  server.publish("channel a", { data: "old" });
  const sockets = new Map();
  const post = ({ type, to, key, texts }) => {
    if (type !== "frames") return;
    for (const [id, socket] of sockets) if (to === undefined || to === id) socket.receive(key, texts);
  };
  const hub = new Hub(connect(), post, () => new Promise(() => {}));
  t.after(() => hub.close());
  const tab = { post: (message) => queueMicrotask(() => hub.receive(message)), leave: () => {} };
  function Socket() {
    const socket = new TabSocket(tab);
    sockets.set(socket.id, socket);
    tab.post({ type: "open", tab: "t", socket: socket.id });
    return socket;
  }
  const client = connect({ transports: ["websocket"], WebSocket: Socket });
  const seen = [];
  const { listen, until } = inbox();
  const all = client.subscribe(["a", "forbidden", "b"], { history: 1, pace: 500 }, (message) => {
    seen.push([message.channel, message.id, message.data]);
    listen(message);
  });
  for (const each of all) each.on("conflated", ({ channel, count }) => seen.push([channel, count]));
  const [error] = await Promise.all([next(all[1], "error"), until(1), next(all[2], "subscribed")]);
  assert.equal(error.code, "forbidden");
  server.sendItem("channel b", null, "typing");
  server.sendItem("channel a", -2);
  server.publish("channel a", { data: "new" });
  await until(3);
  const expected = [["a", "e1-1", "old"], ["b", undefined, "typing"], ["a", 2], ["a", "e1-2", "new"]];
  assert.deepEqual(seen, expected);
  const paces = () => server.requests.filter((line) => line.includes('"subscribe"') && line.includes("pace"));
  assert.ok(paces().every((line) => line.includes('"pace":500')), paces().join());
  // What another subscription wants quicker, the leader asks for.
  await next(client.subscribe("a"), "subscribed");
  while (!server.requests.at(-1).includes("subscribe")) await new Promise((resolve) => setImmediate(resolve));
  assert.ok(!server.requests.at(-1).includes("pace"), server.requests.at(-1));
});

test("a tab that wants a state gets it, and what has come meanwhile", async () => {
  const subscriptions = [];
  const client = {
    subscribe(target, options, listener) {
      const made = new Subscription(target, () => {});
      if (listener) made.on("message", listener);
      subscriptions.push({ made, options });
      return made;
    },
  };
  const room = new Room(client, { channel: "a" }, {}, { tell() {}, end() {} });
  const [{ made: live }] = subscriptions;
  live[emit]("subscribed", { id: "e-3" });
  const value = (id, stateKey, data) => ({ channel: "a", id, time: 1, data, stateKey, contentType: "text/plain" });
  const began = new Promise((resolve) => {
    room.join({ state: true }, (frames, recovered) => resolve({ frames, recovered }));
  });
  while (subscriptions.length < 2) await new Promise((resolve) => setTimeout(resolve, 1));
  const { made: reading, options } = subscriptions[1];
  assert.deepEqual(options, { state: true });
  reading[emit]("message", value("e-2", "k", "1"));
  live[emit]("message", value("e-4", "k", "2"));
  reading[emit]("message", value("e-4", "k", "2"));
  reading[emit]("state", { channel: "a", id: "e-4" });
  live[emit]("message", value("e-5", "k", "3"));
  const { frames, recovered } = await began;
  const shown = frames.map(({ text }) => JSON.parse(text)).map(({ type, id, data }) => [type, id, data]);
  assert.deepEqual(shown, [
    ["message", "e-2", "1"],
    ["message", "e-4", "2"],
    ["state", "e-4", undefined],
    ["message", "e-5", "3"],
  ]);
  assert.equal(JSON.parse(frames[0].text).state_key, "k");
  assert.equal(recovered, undefined);
});
