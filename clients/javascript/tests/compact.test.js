// Compact messages in frames with many, acknowledgements, lists of channels, and paces.
import assert from "node:assert/strict";
import { test } from "node:test";
import { parse } from "../src/message.js";
import { inbox, next, start } from "./context.js";

const options = { transports: ["websocket"] };
const frames = (server, type) => {
  const sent = server.requests.filter((line) => line.startsWith("FRAME ")).map((line) => JSON.parse(line.slice(6)));
  return sent.filter((frame) => frame.type === type);
};
const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
};

test("a frame with many has the messages of envelopes, and what was skipped in its place", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ ...options, user: "ann" });
  const seen = [];
  const chat = client.subscribe("a", (message) => seen.push(message));
  chat.on("conflated", (event) => seen.push(event));
  chat.on("gap", () => assert.fail("it is no gap"));
  const own = client.subscribe({ user: "ann" }, (message) => seen.push(message));
  await Promise.all([chat, own].map((each) => next(each, "subscribed")));
  server.frameMessages = 5;
  server.publish("channel a", { data: { n: 1 } });
  server.publish("user ann", { data: "QUI=", encoding: "base64", content_type: "image/png" });
  server.sendItem("channel a", null, "typing");
  server.sendItem("channel a", -3);
  server.publish("channel a", { data: "last" });
  await until(() => seen.length === 5);
  const times = seen.splice(0, 2).map(({ time, ...rest }) => [time > 0, rest]);
  const bytes = new Uint8Array([65, 66]);
  assert.deepEqual(times, [
    [true, { channel: "a", id: "e1-1", data: { n: 1 }, contentType: "application/json", replayed: false }],
    [true, { user: "ann", id: "e1-1", data: bytes, contentType: "image/png", replayed: false }],
  ]);
  const [volatile, skipped, last] = seen;
  assert.deepEqual([volatile.id, volatile.data, volatile.replayed], [undefined, "typing", false]);
  assert.deepEqual(skipped, { channel: "a", count: 3 });
  assert.equal(last.id, "e1-2");
  const recovered = next(chat, "recovered");
  server.cut();
  await recovered;
  const { channels } = frames(server, "subscribe").at(-1);
  assert.deepEqual(channels.map(({ since }) => since), ["e1-2", "e1-1"], "they moved no position");
});

test("a notice of erasure is an event in its place, and moves the position", async (t) => {
  const { server, connect } = await start(t);
  const seen = [];
  const chat = connect(options).subscribe("a", ({ id }) => seen.push(id));
  chat.on("erased", (event) => seen.push(event));
  await next(chat, "subscribed");
  server.publish("channel a", { data: "1" });
  server.sendItem("channel a", 2, null, { erased: "e1-1" });
  server.send({ type: "erased", channel: "a", id: "e1-3", time: 1, erased_up_to: "e1-2" });
  server.sendItem("channel a", 3, null, { erased_up_to: "e1-2" });
  await until(() => seen.length === 3);
  const [, first, second] = seen;
  assert.deepEqual(first, { channel: "a", id: "e1-2", erased: "e1-1", erasedUpTo: undefined });
  assert.deepEqual(second, { channel: "a", id: "e1-3", erased: undefined, erasedUpTo: "e1-2" });
  const asked = frames(server, "subscribe").length;
  server.cut();
  await until(() => frames(server, "subscribe").length > asked);
  assert.equal(frames(server, "subscribe").at(-1).since, "e1-3");
});

test("the end of a channel comes behind its messages, also behind older ones that are still read", async (t) => {
  const { server, connect } = await start(t);
  server.publish("channel a", { data: "old" });
  const client = connect(options);
  const seen = [];
  const take = (name) => ({ data }) => seen.push(`${name} ${data}`);
  const first = client.subscribe("a", take("first"));
  client.subscribe("b");
  await next(first, "subscribed");
  const late = client.subscribe("a", { history: 9 }, take("late"));
  const ends = [];
  for (const each of [first, late]) each.on("ended", (event) => ends.push([seen.length, event]));
  await next(late, "subscribed");
  server.publish("channel a", { data: "last" });
  server.send({ type: "ended", channel: "a", id: "e1-3" });
  await until(() => ends.length === 2);
  assert.deepEqual(seen, ["first last", "late old", "late last"]);
  const ended = { channel: "a", id: "e1-3" };
  assert.deepEqual(ends, [[1, ended], [3, ended]]);
  server.send({ type: "ended", channel: "a", id: "e1-3" });
  const asked = frames(server, "subscribe").length;
  server.cut();
  await until(() => frames(server, "subscribe").length > asked);
  const { channels, channel } = frames(server, "subscribe").at(-1);
  assert.deepEqual([channels, channel], [undefined, "b"], "the other one goes on alone");
  assert.equal(frames(server, "unsubscribe").length, 0);
  assert.equal(ends.length, 2);
  // A new subscription goes to the server again.
  const again = client.subscribe("a");
  await next(again, "subscribed");
  late.unsubscribe();
  assert.equal(frames(server, "unsubscribe").length, 0, "that was of the one before");
});

test("a message or a history can be erased", async (t) => {
  const { server, connect } = await start(t);
  const answers = { "/messages": { erased: "e1-1", id: "e1-2" }, "/history": { erased_up_to: "e1-2" } };
  server.faults.request = ({ method, url }, response) => {
    if (method !== "DELETE") return false;
    response.end(JSON.stringify(answers[url.split("?")[0]] ?? answers["/history"]));
    return true;
  };
  const client = connect(options);
  assert.deepEqual(await client.erase("a/b", "e1-1"), { erased: "e1-1", id: "e1-2" });
  assert.deepEqual(await client.eraseHistory({ user: "ann" }), { erasedUpTo: "e1-2" });
  await assert.rejects(client.erase("a", undefined), TypeError);
  const asked = server.requests.filter((line) => line.startsWith("DELETE "));
  assert.deepEqual(asked, ["DELETE /messages?channel=a%2Fb&id=e1-1", "DELETE /users/ann/history"]);
});

test("a message can be replaced", async (t) => {
  const { server, connect } = await start(t);
  let sent;
  server.faults.request = (request, response) => {
    if (request.method !== "PUT") return false;
    request.on("data", (data) => {
      sent = [request.url, request.headers["content-type"], request.headers["throng-event"], String(data)];
      response.end(JSON.stringify({ replaces: "e1-1", id: "e1-2" }));
    });
    return true;
  };
  const client = connect(options);
  const answer = await client.edit("a", "e1-1", { n: 1 }, { event: "fixed" });
  assert.deepEqual(answer, { replaces: "e1-1", id: "e1-2" });
  assert.deepEqual(sent, ["/messages?channel=a&id=e1-1", "application/json", "fixed", '{"n":1}']);
  await assert.rejects(client.edit("a", undefined, "x"), TypeError);
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  const arrived = next(chat, "message");
  server.sendItem("channel a", 2, "new", { replaces: "e1-1" });
  assert.equal((await arrived).replaces, "e1-1");
});

test("time is left out on request", async (t) => {
  const { server, connect } = await start(t);
  const chat = connect({ ...options, noTime: true }).subscribe("a");
  await next(chat, "subscribed");
  const arrived = next(chat, "message");
  server.publish("channel a", { data: "x", content_type: "text/markdown" });
  const { time, contentType } = await arrived;
  assert.deepEqual([time, contentType], [undefined, "text/markdown"]);
  assert.ok(!server.requests.some((line) => line.includes("time=")));
});

test("a client that is closed in the middle of a frame resumes behind the last message", async (t) => {
  const { server, connect } = await start(t);
  const client = connect(options);
  const box = inbox();
  const chat = client.subscribe("a", (message) => {
    box.listen(message);
    if (message.data === "2") client.close();
  });
  await next(chat, "subscribed");
  server.frameMessages = 4;
  for (const data of ["1", "2", "3", "4"]) server.publish("channel a", { data });
  await box.until(2);
  server.frameMessages = 1;
  client.connect();
  assert.deepEqual(await box.until(4), ["1", "2", "3", "4"]);
});

test("a channel that is left in the middle of a frame gets nothing more", async (t) => {
  const { server, connect } = await start(t);
  const client = connect(options);
  const [left, stays] = [inbox(), inbox()];
  const chat = client.subscribe("a", (message) => {
    left.listen(message);
    chat.unsubscribe();
  });
  const other = client.subscribe("b", stays.listen);
  await Promise.all([chat, other].map((each) => next(each, "subscribed")));
  server.frameMessages = 3;
  for (const key of ["channel a", "channel a", "channel b"]) server.publish(key, { data: key });
  await stays.until(1);
  assert.deepEqual([left.data, stays.data], [["channel a"], ["channel b"]]);
});

test("a frame is acknowledged once its listeners and their promises are done", async (t) => {
  const { server, connect } = await start(t);
  const client = connect(options);
  const ends = [];
  const box = inbox();
  const chat = client.subscribe("a", async (message) => {
    box.listen(message);
    if (message.data === "slow") await new Promise((resolve) => ends.push(resolve));
  });
  await next(chat, "subscribed");
  const acks = () => frames(server, "ack").map((each) => each.frames);
  server.publish("channel a", { data: "nobody asks" });
  server.asks = true;
  for (const data of ["quick", "slow", "slow"]) server.publish("channel a", { data });
  await box.until(4);
  await client.publish("b", "so that the server has heard it");
  assert.deepEqual(acks(), [1], "the slow ones are not handled");
  for (const end of ends) end();
  await until(() => acks().length === 2);
  assert.deepEqual(acks(), [1, 2], "frames that are done together are told together");
  assert.deepEqual(frames(server, "ack")[0], { type: "ack", frames: 1 });
});

test("a listener whose promise fails has handled its message, and its error is reported", async (t) => {
  const { server, connect } = await start(t);
  const client = connect(options);
  const chat = client.subscribe("a", async () => {
    throw new Error("of the listener");
  });
  await next(chat, "subscribed");
  const thrown = new Promise((resolve) => {
    t.mock.method(globalThis, "queueMicrotask", (work) => {
      Promise.resolve().then(work).catch(({ message }) => resolve(message));
    });
  });
  server.asks = true;
  server.publish("channel a", { data: "x" });
  assert.equal(await thrown, "of the listener");
  await until(() => frames(server, "ack").length === 1);
});

test("numbers may change, and be another channel's", async (t) => {
  const { server, connect } = await start(t);
  const client = connect(options);
  const ids = [];
  const all = client.subscribe(["a", "b"], ({ channel, id }) => ids.push(`${channel} ${id}`));
  await Promise.all(all.map((each) => next(each, "subscribed")));
  server.send({ type: "numbers", channels: [["b", 10, "f"], ["a", 30, "g"]], users: [["eve", 40, "h"]] });
  server.send([0, [10, 1, "x"], [40, 1, "of nobody"], [30, 7, "x"]]);
  await until(() => ids.length === 2);
  assert.deepEqual(ids, ["b f-1", "a g-7"]);
});

test("what is followed and left in one turn takes one command each", async (t) => {
  const { server, connect } = await start(t);
  server.channelsMax = 3_000;
  const client = connect(options);
  await next(client.subscribe("first"), "subscribed");
  const names = Array.from({ length: 2_000 }, (_, n) => `price:${n}`);
  const entries = names.map((channel, n) => (n === 7 ? { channel, since: "e1-0" } : channel));
  const box = inbox();
  const all = client.subscribe(entries, { history: 1 }, box.listen);
  await Promise.all(all.map((each) => next(each, "subscribed")));
  assert.deepEqual(frames(server, "subscribe").map(({ channels }) => channels?.length), [undefined, 2_000]);
  assert.deepEqual(frames(server, "subscribe")[1].channels.slice(6, 8), [
    { channel: "price:6", history: 1 },
    { channel: "price:7", since: "e1-0" },
  ]);
  for (const name of names.slice(0, 3)) server.publish(`channel ${name}`, { data: name });
  assert.deepEqual(await box.until(3), names.slice(0, 3));
  const recovered = Promise.all(all.map((each) => next(each, "recovered")));
  server.cut();
  await recovered;
  const again = frames(server, "subscribe").slice(2);
  assert.deepEqual(again.map(({ channels }) => channels.length), [2_001]);
  for (const each of all) each.unsubscribe();
  await until(() => server.followed.length === 1);
  assert.deepEqual(frames(server, "unsubscribe").map(({ channels }) => channels.length), [2_000]);
});

test("lists are cut to what the server takes", async (t) => {
  const { server, connect } = await start(t);
  server.channelsMax = 3_000;
  server.messageBytesMax = 1_000;
  const all = connect(options).subscribe(Array.from({ length: 200 }, (_, n) => `channel-${n}`));
  await Promise.all(all.map((each) => next(each, "subscribed")));
  const sizes = frames(server, "subscribe").map((frame) => JSON.stringify(frame).length);
  assert.ok(sizes.length > 1 && Math.max(...sizes) < 6_000, sizes.join());
});

test("a refused channel of a list has its error, and does not stop the others", async (t) => {
  const { server, connect } = await start(t);
  const client = connect(options);
  const [good, bad] = client.subscribe(["a", "forbidden"]);
  const [{ code }] = await Promise.all([next(bad, "error"), next(good, "subscribed")]);
  assert.equal(code, "forbidden");
  assert.throws(() => client.subscribe(["c", "rooms/*"]), { code: "bad_name" });
  await client.publish("a", "x");
  assert.deepEqual(server.followed, ["channel a"], "nothing of a list with a bad name");
});

test("a pace is the connection's, or the fastest of a channel's subscriptions", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ ...options, params: { pace: 500 } });
  const slow = client.subscribe("a", { pace: 1_000 });
  await next(slow, "subscribed");
  const paces = () => frames(server, "subscribe").map(({ pace }) => pace);
  await next(client.subscribe("a", { pace: 2_000 }), "subscribed");
  client.subscribe("a");
  client.subscribe("a", { pace: 250 });
  await until(() => paces().at(-1) === 250);
  client.subscribe("a");
  await next(client.subscribe("c"), "subscribed");
  assert.deepEqual(paces(), [1_000, 250, 500], "what is wanted in one turn takes one command");
  const { name, message } = { name: "TypeError", message: /"pace" must be a number, 10 to 60000/ };
  assert.throws(() => client.subscribe("b", { pace: 5 }), { name, message });
  assert.throws(() => connect({ params: { pace: 100_000 } }), { name, message });
});

test("over SSE the pace is that of the fastest channel", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ transports: ["sse"] });
  const all = [client.subscribe("a", { pace: 1_000 }), client.subscribe("b", { pace: 300 })];
  await Promise.all(all.map((each) => next(each, "subscribed")));
  const asked = () => server.requests.findLast((line) => line.includes("transport=sse"));
  await until(() => asked()?.includes("pace=300"));
  client.subscribe("b");
  await until(() => !asked().includes("pace="));
});

test("an older server, which refuses compact messages, gets no more of it", async (t) => {
  const { server, connect } = await start(t);
  server.isOld = true;
  const client = connect({ transports: ["websocket", "sse"] });
  const box = inbox();
  const all = client.subscribe(["a", "b"], box.listen);
  await Promise.all(all.map((each) => next(each, "subscribed")));
  assert.equal(client.transport, "websocket");
  server.publish("channel a", { data: "x" });
  assert.deepEqual(await box.until(1), ["x"]);
  const count = server.requests.filter((line) => line.includes("envelope=compact")).length;
  const recovered = next(all[0], "recovered");
  server.cut();
  await recovered;
  assert.equal(server.requests.filter((line) => line.includes("envelope=compact")).length, count);
});

test("what a parser refuses in a frame hides nothing else", () => {
  const deep = '[8,2,{"text":"]\\"["},1]';
  const text = `[1,[7,1,"a"],[7,5,[1,,2],3],${deep},[7,null,{"b":}]]`;
  const [asks, first, bad, last, volatile] = parse(text);
  assert.deepEqual([asks, first, last], [1, [7, 1, "a"], [8, 2, { text: ']"[' }, 1]]);
  assert.deepEqual([bad[0], bad[1], bad[3]], [7, 5, { encoding: "unreadable" }]);
  assert.deepEqual([volatile[0], volatile[1]], [7, null]);
  for (const cut of ["[0,[7,1,2]", "[0,[7,1,[", '[0,["x",1,}]]']) assert.throws(() => parse(cut));
});
