// More channels than the limit of one connection, and several subscriptions of one channel.
import assert from "node:assert/strict";
import { test } from "node:test";
import { inbox, next, start, untilFollowed } from "./context.js";

const isOpen = ({ state }) => state === "open";
const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

for (const transport of ["websocket", "sse", "poll"]) {
  const options = { transports: [transport] };

  test(`${transport}: channels beyond the limit get further connections`, async (t) => {
    const { server, connect } = await start(t);
    server.channelsMax = 4;
    const client = connect(options);
    client.on("error", (error) => assert.fail(error));
    const names = Array.from({ length: 11 }, (_, n) => `c${n}`);
    const boxes = names.map(() => inbox());
    const all = names.map((name, n) => client.subscribe(name, boxes[n].listen));
    await Promise.all(all.map((each) => next(each, "subscribed")));
    for (const name of names) await client.publish(name, name);
    for (const [n, box] of boxes.entries()) assert.deepEqual(await box.until(1), [names[n]]);
    // The next channel fits: the limit still holds on every connection.
    const late = inbox();
    await next(client.subscribe("late", late.listen), "subscribed");
    server.cut();
    names.forEach((name) => server.publish(`channel ${name}`, { data: "after the cut" }));
    server.publish("channel late", { data: "after the cut" });
    await Promise.all([...boxes.map((box) => box.until(2)), late.until(1)]);
    all.forEach((each) => each.unsubscribe());
  });
}

test("the limit is learned from a refusal if `welcome` does not name it", async (t) => {
  const { server, connect } = await start(t);
  server.channelsMax = 3;
  server.faults.silentLimits = true;
  const client = connect({ user: "ann" });
  const names = Array.from({ length: 8 }, (_, n) => `c${n}`);
  const all = names.map((name) => client.subscribe(name));
  all.forEach((each) => each.on("error", (error) => assert.fail(error)));
  await Promise.all(all.map((each) => next(each, "subscribed")));
  assert.deepEqual([...new Set(server.followed)].sort(), [
    ...names.map((name) => `channel ${name}`),
    "user ann",
  ]);
});

test("connections without channels are closed", async (t) => {
  const { server, connect } = await start(t);
  server.channelsMax = 2;
  const client = connect();
  const all = ["a", "b", "c", "d", "e"].map((name) => client.subscribe(name));
  await Promise.all(all.map((each) => next(each, "subscribed")));
  assert.equal(server.sockets, 3);
  const idle = next(client, "state", ({ state }) => state === "idle");
  all.forEach((each) => each.unsubscribe());
  await idle;
  while (server.sockets > 0) await new Promise((resolve) => setImmediate(resolve));
});

test("an error without a listener is written to the console", async (t) => {
  const { connect } = await start(t);
  const written = [];
  t.mock.method(console, "error", (...words) => written.push(words));
  const client = connect();
  client.subscribe("forbidden");
  await next(client.subscribe("a"), "subscribed");
  assert.deepEqual(written.map(([, { code }]) => code), ["forbidden"]);
  // With a listener it is the listener's.
  await next(client.subscribe("forbidden"), "error");
  assert.equal(written.length, 1);
});

for (const transport of ["websocket", "sse", "poll"]) {
  test(`${transport}: several subscriptions of a channel share it`, async (t) => {
    const { server, connect } = await start(t);
    for (const data of ["1", "2", "3"]) server.publish("channel a", { data });
    const client = connect({ transports: [transport] });
    const [first, second, third] = [inbox(), inbox(), inbox()];
    const one = client.subscribe("a", { history: 1 }, first.listen);
    const two = client.subscribe("a", { history: 2 }, second.listen);
    const three = client.subscribe("a", third.listen);
    await Promise.all([one, two, three].map((each) => next(each, "subscribed")));
    await Promise.all([first.until(1), second.until(2)]);
    await client.publish("a", "4");
    assert.deepEqual(await first.until(2), ["3", "4"]);
    assert.deepEqual(await second.until(3), ["2", "3", "4"]);
    assert.deepEqual(await third.until(1), ["4"]);
    const fourth = inbox();
    const four = client.subscribe("a", { since: "e1-1" }, fourth.listen);
    assert.deepEqual(await fourth.until(3), ["2", "3", "4"]);
    one.unsubscribe();
    one.unsubscribe();
    await client.publish("a", "5");
    assert.deepEqual(await second.until(4), ["2", "3", "4", "5"]);
    assert.deepEqual(first.data, ["3", "4"]);
    assert.ok(server.followed.length <= 1, "one subscription on the wire");
    for (const each of [two, three, four]) each.unsubscribe();
    await next(client, "state", ({ state }) => state === "idle");
  });

  test(`${transport}: messages of the history are replayed, missed messages are not`, async (t) => {
    const { server, connect } = await start(t);
    for (const data of ["1", "2"]) server.publish("channel a", { data });
    const client = connect({ transports: [transport] });
    const seen = [];
    const box = inbox();
    const chat = client.subscribe("a", { history: 2 }, (message) => {
      seen.push([message.data, message.replayed]);
      box.listen(message);
    });
    await box.until(2);
    server.publish("channel a", { data: "live" });
    await box.until(3);
    const recovered = next(chat, "recovered");
    await untilFollowed(server);
    await server.stop();
    server.publish("channel a", { data: "missed" });
    await server.listen(server.port);
    await Promise.all([recovered, box.until(4)]);
    const flags = [["1", true], ["2", true], ["live", false], ["missed", false]];
    assert.deepEqual(seen, flags);
    const late = [];
    const again = inbox();
    client.subscribe("a", { since: "e1-3" }, (message) => {
      late.push([message.data, message.replayed]);
      again.listen(message);
    });
    await again.until(1);
    assert.deepEqual(late, [["missed", true]]);
  });

  test(`${transport}: a message does not overtake its sender's subscription`, async (t) => {
    const { connect } = await start(t);
    const client = connect({ transports: [transport] });
    const box = inbox();
    client.subscribe("a", box.listen);
    const { subscribers } = await client.publish("a", "1");
    // Between two polls the server does not count the client.
    if (transport !== "poll") assert.equal(subscribers, 1);
    client.subscribe("b", box.listen);
    const second = await client.publish("b", "2");
    if (transport !== "poll") assert.equal(second.subscribers, 1);
    assert.deepEqual(await box.until(2), ["1", "2"]);
  });
}

test("all subscriptions of a refused channel hear of it, also one that waits for its history", async (t) => {
  const { connect } = await start(t);
  const client = connect();
  const all = [{}, { history: 5 }].map((options) => client.subscribe("forbidden", options));
  const errors = await Promise.all(all.map((each) => next(each, "error")));
  assert.deepEqual(errors.map(({ code }) => code), ["forbidden", "forbidden"]);
});

test("a late subscription reports a gap, or an error if its history is refused", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  await next(client.subscribe("a"), "subscribed");
  server.publish("channel a", { data: "1" });
  const seen = [];
  const late = client.subscribe("a", { since: "e0-9" }, ({ data }) => seen.push(data));
  late.on("gap", () => seen.push("gap"));
  while (seen.length < 2) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(seen, ["gap", "1"]);
  server.faults.request = (request, response) => {
    response.writeHead(403).end('{"error":"forbidden","message":"no history for you"}');
    return true;
  };
  const refused = client.subscribe("a", { history: 5 });
  assert.equal((await next(refused, "error")).code, "forbidden");
});

test("once: receives one event only", async (t) => {
  const { server, connect } = await start(t);
  const [single, all] = [inbox(), inbox()];
  const chat = connect().subscribe("a", all.listen);
  chat.once("message", single.listen);
  chat.once("message", () => assert.fail("it was taken back"))();
  await next(chat, "subscribed");
  server.publish("channel a", { data: "1" });
  server.publish("channel a", { data: "2" });
  await all.until(2);
  assert.deepEqual(single.data, ["1"]);
});

test("state: successive events differ", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  const client = connect({ openTimeoutMs: 1_000 });
  const told = [];
  client.on("state", ({ state, transport }) => told.push(`${state} ${transport}`));
  client.subscribe("a");
  await next(client, "state", isOpen);
  assert.deepEqual(told, ["connecting websocket", "connecting sse", "open sse"]);
  assert.equal(sum(told.map((each, n) => Number(each === told[n - 1]))), 0);
});
