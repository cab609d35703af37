// Presence events: from the server where it has them, and read from time to time elsewhere.
import assert from "node:assert/strict";
import { test } from "node:test";
import { inbox, next, start, untilFollowed } from "./context.js";

/** Collects presence events. `until(condition)` resolves with the first for which it holds. */
function watch(subscription) {
  const seen = [];
  let look = () => {};
  subscription.on("presence", (event) => {
    seen.push(event);
    look();
  });
  const until = (condition) =>
    new Promise((resolve) => {
      look = () => {
        const found = seen.find(condition);
        if (found) resolve(found);
      };
      look();
    });
  return { seen, until };
}

const TRANSPORTS = [["websocket"], ["sse"], ["poll"]];

for (const transports of TRANSPORTS) {
  test(`who is there is told at once, and when it changes: ${transports}`, async (t) => {
    const { server, connect } = await start(t);
    server.hasPresenceEvents = true;
    const ann = connect({ user: "ann", transports });
    const here = watch(ann.subscribe("room", { presence: true }));
    const first = await here.until(({ users }) => users.includes("ann"));
    assert.deepEqual(first.users, ["ann"]);
    assert.equal(first.channel, "room");
    assert.equal(first.connections, 1);
    assert.equal(first.type, undefined);
    const bo = connect({ user: "bo" });
    bo.subscribe("room");
    const second = await here.until(({ connections }) => connections === 2);
    assert.deepEqual(second.users, ["ann", "bo"]);
    // A change between two polls is told as a state.
    assert.ok(second.joined?.includes("bo") ?? transports[0] === "poll");
    bo.close();
    const count = here.seen.length;
    await here.until((event) => event.connections === 1 && here.seen.indexOf(event) >= count);
    const reads = server.requests.filter((request) => request.includes("/presence"));
    assert.deepEqual(reads, [], "nothing is read where there are events");
  });

  test(`a subscription that comes later may want presence: ${transports}`, async (t) => {
    const { server, connect } = await start(t);
    server.hasPresenceEvents = true;
    const ann = connect({ user: "ann", transports });
    const { data, listen, until } = inbox();
    const plain = ann.subscribe("room", listen);
    plain.on("gap", () => assert.fail("a gap"));
    plain.on("recovered", () => assert.fail("nothing was lost"));
    await next(plain, "subscribed");
    server.publish("channel room", { data: "before" });
    const here = watch(ann.subscribe("room", { presence: true }));
    server.publish("channel room", { data: "meanwhile" });
    await here.until(({ users }) => users.includes("ann"));
    server.publish("channel room", { data: "after" });
    await until(3);
    assert.deepEqual(data, ["before", "meanwhile", "after"]);
    // A third one is told what is known, without the changes of before.
    const third = await next(ann.subscribe("room", { presence: true }), "presence");
    assert.deepEqual(third.users, ["ann"]);
    assert.equal("joined" in third, false);
    // Asked for at the same time: the first subscription is not active yet.
    const both = inbox();
    ann.subscribe("both", both.listen);
    const there = watch(ann.subscribe("both", { presence: true }));
    await there.until(({ channel }) => channel === "both");
    server.publish("channel both", { data: 1 });
    await both.until(1);
  });

  test(`after a reconnect presence goes on: ${transports}`, async (t) => {
    const { server, connect } = await start(t);
    server.hasPresenceEvents = true;
    const ann = connect({ user: "ann", transports });
    const room = ann.subscribe("room", { presence: true });
    const here = watch(room);
    await here.until(({ users }) => users.includes("ann"));
    const count = here.seen.length;
    const recovered = next(room, "recovered");
    await untilFollowed(server);
    server.cut();
    await recovered;
    await here.until((event) => here.seen.indexOf(event) >= count && event.users.includes("ann"));
  });
}

test("over SSE, only the channels ask whose subscriptions want presence", async (t) => {
  const { server, connect } = await start(t);
  server.hasPresenceEvents = true;
  const ann = connect({ user: "ann", transports: ["sse"] });
  ann.subscribe("plain");
  const { connections } = await next(ann.subscribe("room", { presence: true }), "presence");
  assert.equal(connections, 1);
  const asked = server.requests.map((request) => /presence=([^&]*)/.exec(request)?.[1]);
  assert.equal(decodeURIComponent(asked.findLast(Boolean)), "false,true");
});

for (const transports of [["sse"], ["poll"]]) {
  test(`where events are one channel too many, presence is read: ${transports}`, async (t) => {
    const { server, connect } = await start(t);
    server.hasPresenceEvents = true;
    server.channelsMax = 2;
    const { data, listen, until } = inbox();
    const ann = connect({ user: "ann", transports });
    const { users } = await next(ann.subscribe("room", { presence: true }, listen), "presence");
    assert.ok(Array.isArray(users));
    server.publish("channel room", { data: "and messages come" });
    await until(1);
    assert.deepEqual(data, ["and messages come"]);
    const asked = server.requests.filter((request) => request.includes("presence="));
    assert.equal(asked.length, 1, asked.join());
  });
}

test("a connection that never has room for its channel ends the client, and not in a circle", async (t) => {
  const { server, connect } = await start(t);
  server.channelsMax = 1;
  const ann = connect({ user: "ann", transports: ["sse"] });
  ann.subscribe("room").on("error", () => {});
  const { code } = await next(ann, "error");
  assert.equal(code, "too_many_channels");
  assert.ok(server.requests.length < 10, server.requests.join());
});

for (const transports of TRANSPORTS) {
  test(`without presence events it is read: ${transports}`, async (t) => {
    const { server, connect } = await start(t);
    const ann = connect({ user: "ann", transports });
    const { data, listen, until } = inbox();
    const room = ann.subscribe("room", { presence: true }, listen);
    const here = watch(room);
    await next(room, "subscribed");
    const { users } = await here.until(() => true);
    assert.ok(Array.isArray(users));
    server.publish("channel room", { data: "and messages come" });
    await until(1);
    assert.deepEqual(data, ["and messages come"]);
    const reads = server.requests.filter((request) => request.includes("/presence"));
    assert.equal(reads.length, 1, reads.join());
  });
}

test("who may not see presence is told, and gets messages", async (t) => {
  const { server, connect } = await start(t);
  server.faults.request = ({ url }, response) => {
    if (!url.includes("/presence")) return false;
    response.writeHead(403, { "Content-Type": "application/json" });
    response.end(JSON.stringify({ error: "forbidden", message: "not for you" }));
    return true;
  };
  const { data, listen, until } = inbox();
  const room = connect().subscribe("room", { presence: true }, listen);
  const { error, users } = await next(room, "presence");
  assert.equal(error.code, "forbidden");
  assert.deepEqual(users, []);
  server.publish("channel room", { data: "still" });
  await until(1);
  assert.deepEqual(data, ["still"]);
});
