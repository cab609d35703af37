// A server that falls silent: detected after a request timeout, or after a missed heartbeat.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Throng } from "@throng-push/client";
import { inbox, next, start } from "./context.js";

const isWaiting = ({ state }) => state === "waiting";

/** Leaves requests unanswered while it is on. */
function freeze(server, isOn) {
  server.faults.deaf = isOn;
  server.faults.request = isOn ? () => true : undefined;
}

for (const transport of ["websocket", "sse", "poll"]) {
  test(`${transport}: an unanswered publish ends the link and is sent once`, async (t) => {
    const { server, connect } = await start(t);
    const options = { transports: [transport], requestTimeoutMs: 200 };
    const client = connect(options);
    const box = inbox();
    const chat = client.subscribe("a", box.listen);
    await next(client, "state", ({ state }) => state === "open");
    const waiting = next(client, "state", isWaiting);
    freeze(server, true);
    const answers = ["1", "2", "3"].map((data) => client.publish("a", data));
    await waiting;
    freeze(server, false);
    const ids = (await Promise.all(answers)).map(({ id }) => id);
    assert.deepEqual(ids, ["e1-1", "e1-2", "e1-3"]);
    assert.deepEqual(await box.until(3), ["1", "2", "3"]);
    chat.unsubscribe();
  });

  test(`${transport}: a publish that timed out has the outcome unknown`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect({ transports: [transport], publishTimeoutMs: 60 });
    client.subscribe("a");
    await next(client, "state", ({ state }) => state === "open");
    freeze(server, true);
    const error = await client.publish("a", "lost?", { key: "k" }).catch((failed) => failed);
    assert.deepEqual([error.code, error.outcome, error.key], ["timeout", "unknown", "k"]);
    assert.match(error.message, /did not confirm .* ms; outcome: unknown$/);
    freeze(server, false);
  });
}

/** A browser's WebSocket, with a buffer that the test drains. */
class Socket {
  bufferedAmount = 0;
  static last;

  constructor() {
    Socket.last = this;
  }

  send(text) {
    this.bufferedAmount += text.length;
  }

  close() {}

  receive(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }
}

async function startOnSocket(t, options = {}) {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const client = new Throng("http://127.0.0.1:1", { WebSocket: Socket, ...options });
  t.after(() => client.close());
  client.subscribe("a");
  await Promise.resolve();
  Socket.last.receive({ type: "welcome", connection: "c", heartbeat: 25, channels_max: 128 });
  Socket.last.receive({ type: "subscribed", channel: "a", id: "e-0", ref: 1 });
  assert.equal(client.state, "open");
  return client;
}

test("a publish that was sent and is not answered ends the connection after 10 s", async (t) => {
  const client = await startOnSocket(t);
  client.publish("a", "x").catch(() => {});
  Socket.last.bufferedAmount = 0;
  t.mock.timers.tick(9_999);
  assert.equal(client.state, "open");
  t.mock.timers.tick(1);
  assert.equal(client.state, "waiting");
});

test("neither heartbeats nor messages of others hide that", async (t) => {
  const client = await startOnSocket(t);
  client.publish("a", "x").catch(() => {});
  Socket.last.bufferedAmount = 0;
  for (let second = 1; second < 10; second += 1) {
    t.mock.timers.tick(1_000);
    const message = { type: "message", channel: "a", id: `e-${second}`, time: 1, data: "live" };
    Socket.last.receive(second % 2 ? { type: "heartbeat" } : message);
  }
  assert.equal(client.state, "open");
  t.mock.timers.tick(1_000);
  assert.equal(client.state, "waiting");
});

test("who is there may be told before an answer, and is none", async (t) => {
  const client = await startOnSocket(t);
  const here = next(client.subscribe("b", { presence: true }), "presence");
  await Promise.resolve();
  Socket.last.receive({ type: "subscribed", channel: "b", id: "e-0", ref: 2 });
  client.publish("a", "x").catch(() => {});
  Socket.last.bufferedAmount = 0;
  t.mock.timers.tick(9_000);
  const event = { channel: "b", time: 1, connections: 1, users: ["ann"], more: false };
  Socket.last.receive({ type: "presence", ...event });
  assert.deepEqual((await here).users, ["ann"]);
  assert.equal(client.state, "open");
  t.mock.timers.tick(1_000);
  assert.equal(client.state, "waiting");
});

test("an answer may be behind the answer to another command, or behind a backlog", async (t) => {
  const client = await startOnSocket(t);
  const published = client.publish("a", "x");
  const subscribed = next(client.subscribe("b"), "subscribed");
  await Promise.resolve();
  Socket.last.bufferedAmount = 0;
  t.mock.timers.tick(9_000);
  Socket.last.receive({ type: "subscribed", channel: "b", id: "e-0", head: "e-5", ref: 3 });
  await subscribed;
  for (let number = 1; number <= 5; number += 1) {
    t.mock.timers.tick(9_000);
    const message = { type: "message", channel: "b", id: `e-${number}`, time: 1, data: "old" };
    Socket.last.receive(message);
  }
  assert.equal(client.state, "open");
  t.mock.timers.tick(9_999);
  Socket.last.receive({ type: "published", channel: "a", id: "e-1", subscribers: 1, ref: 2 });
  assert.equal((await published.catch(({ code }) => code)), "timeout");
  t.mock.timers.tick(1);
  assert.equal(client.state, "open");
});

test("a publish that is still being sent does not", async (t) => {
  const client = await startOnSocket(t);
  client.publish("a", "x".repeat(60_000)).catch(() => {});
  Socket.last.bufferedAmount -= 30_000;
  t.mock.timers.tick(10_000);
  assert.equal(client.state, "open");
  t.mock.timers.tick(10_000);
  assert.equal(client.state, "waiting");
});

test("an idle connection is pinged after 28 s of silence and ends after 30 s", async (t) => {
  const client = await startOnSocket(t);
  const sent = t.mock.method(Socket.last, "send");
  t.mock.timers.tick(27_999);
  assert.equal(sent.mock.callCount(), 0);
  t.mock.timers.tick(1);
  const pings = sent.mock.calls.map(({ arguments: [text] }) => JSON.parse(text));
  assert.deepEqual(pings, [{ type: "ping", ref: 2 }]);
  Socket.last.receive({ type: "pong", ref: 2 });
  t.mock.timers.tick(28_000);
  assert.equal(sent.mock.callCount(), 2);
  t.mock.timers.tick(1_999);
  assert.equal(client.state, "open");
  t.mock.timers.tick(1);
  assert.equal(client.state, "waiting");
});

for (const hasPong of [true, false]) {
  test(`an unanswered request asks for a sign of life, which comes: ${hasPong}`, async (t) => {
    let asked;
    const isAsked = new Promise((resolve) => (asked = resolve));
    const client = await startOnSocket(t, { fetch: () => new Promise(asked) });
    const sent = t.mock.method(Socket.last, "send");
    t.mock.timers.tick(1_000);
    const failed = client.history("a").catch(({ code }) => code);
    await isAsked;
    t.mock.timers.tick(4_999);
    assert.equal(sent.mock.callCount(), 0);
    t.mock.timers.tick(1);
    const pings = sent.mock.calls.map(({ arguments: [text] }) => JSON.parse(text));
    assert.deepEqual(pings, [{ type: "ping", ref: 2 }]);
    t.mock.timers.tick(4_000);
    Socket.last.receive(hasPong ? { type: "pong", ref: 2 } : { type: "heartbeat" });
    t.mock.timers.tick(1_000);
    assert.equal(client.state, hasPong ? "open" : "waiting");
    assert.equal(await failed, "timeout");
  });
}

test("heartbeats make pings unnecessary", async (t) => {
  const client = await startOnSocket(t);
  const sent = t.mock.method(Socket.last, "send");
  for (let beats = 0; beats < 20; beats += 1) {
    t.mock.timers.tick(26_000);
    Socket.last.receive({ type: "heartbeat" });
  }
  assert.equal(sent.mock.callCount(), 0);
  assert.equal(client.state, "open");
});

test("the outcome of a message that was never sent is unpublished", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  const client = connect({ transports: ["websocket"], publishTimeoutMs: 20 });
  client.subscribe("a");
  const error = await client.publish("a", "x").catch((failed) => failed);
  assert.deepEqual([error.code, error.outcome], ["timeout", "unpublished"]);
});

test("history and presence have a deadline, and an error for an unreachable server", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ requestTimeoutMs: 30 });
  freeze(server, true);
  await assert.rejects(client.history("a"), { code: "timeout" });
  await assert.rejects(client.presence("a"), { code: "timeout" });
  freeze(server, false);
  await server.stop();
  await assert.rejects(client.history("a"), { code: "unreachable" });
  await server.listen(server.port);
});

test("the time to open grows while attempts are too slow", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const opens = [];
  const startedAt = Date.now();
  class Hanging {
    constructor() {
      opens.push(Date.now() - startedAt);
    }

    close() {}
  }
  const asked = [];
  const fetch = (url, { signal }) => {
    asked.push(Date.now() - startedAt);
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  const client = new Throng("http://127.0.0.1:1", { WebSocket: Hanging, fetch, random: () => 0 });
  t.after(() => client.close());
  client.on("state", () => {});
  client.subscribe("a");
  for (let seconds = 0; seconds < 60; seconds += 1) {
    await new Promise((resolve) => setImmediate(resolve));
    t.mock.timers.tick(1_000);
  }
  // Each attempt goes on while the server is asked, twice as long as before.
  const health = asked.filter((at, index) => asked.indexOf(at) === index);
  assert.deepEqual(health.slice(0, 3).map((at, index) => at - opens[index]), [3_000, 6_000, 12_000]);
  assert.ok(opens[1] - opens[0] >= 9_000 && opens[2] - opens[1] >= 18_000, String(opens));
});

/** Lets all pending promises settle. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

for (const slow of ["/subscribe", "/channels/a/history"]) {
  test(`poll: a slow response is read to its end: ${slow}`, async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
    const envelope = { type: "message", channel: "a", id: "e-1", time: 1, data: "x".repeat(400) };
    const bodies = {
      "/subscribe": JSON.stringify(envelope),
      "/channels/a/history": JSON.stringify({ id: "e-1", messages: [envelope], more: false }),
    };
    let trickle;
    const fetch = async (url) => {
      const path = Object.keys(bodies).find((each) => url.includes(each));
      // Later polls wait for messages that never arrive.
      if (url.includes("wait=25")) return new Promise(() => {});
      const headers = { "Throng-Id": "e-1" };
      if (path !== slow) return new Response(bodies[path], { headers });
      return new Response(new ReadableStream({ start: (body) => (trickle = body) }), { headers });
    };
    const client = new Throng("http://127.0.0.1:1", { transports: ["poll"], fetch });
    t.after(() => client.close());
    client.on("state", ({ state, reason }) => assert.notEqual(state, "waiting", reason));
    const heard = [];
    const from = slow === "/subscribe" ? { since: "e-0" } : { history: 1 };
    client.subscribe("a", from, ({ data }) => heard.push(data));
    await settled();
    // Each pause is shorter than the deadline, their sum is much longer.
    const bytes = new TextEncoder().encode(bodies[slow]);
    for (let at = 0; at < bytes.length; at += 100) {
      t.mock.timers.tick(9_000);
      trickle.enqueue(bytes.subarray(at, at + 100));
      await settled();
    }
    trickle.close();
    await settled();
    assert.deepEqual(heard, [envelope.data]);
  });
}

test("a refusal with a time to retry causes no fallback", async (t) => {
  const { server, connect } = await start(t);
  server.faults.full = "reconnect in 3 ms";
  const client = connect();
  const delays = [];
  client.on("state", ({ state, delayMs }) => state === "waiting" && delays.push(delayMs));
  client.subscribe("a");
  while (delays.length < 5) await next(client, "state", isWaiting);
  server.faults.full = undefined;
  const { transport } = await next(client, "state", ({ state }) => state === "open");
  assert.equal(transport, "websocket");
  assert.ok(delays.every((delayMs) => delayMs === 3), String(delays));
});

test("sse: a stream with only a time to retry does not count as open", async (t) => {
  const { server, connect } = await start(t);
  let refusals = 4;
  server.faults.request = ({ url }, response) => {
    if (!url.startsWith("/subscribe") || refusals-- <= 0) return false;
    response.writeHead(200, { "Content-Type": "text/event-stream" }).end("retry: 3\n\n");
    return true;
  };
  const client = connect({ transports: ["sse", "poll"] });
  const states = [];
  client.on("state", ({ state, delayMs }) => states.push(delayMs ?? state));
  await next(client.subscribe("a"), "subscribed");
  const { transport } = await next(client, "state", ({ state }) => state === "open");
  assert.equal(transport, "sse");
  const refused = ["connecting", 3];
  assert.deepEqual(states, [...refused, ...refused, ...refused, ...refused, "connecting", "open"]);
});

test("a poll whose answer lost its body in a cut loses no message", async (t) => {
  const { server, connect } = await start(t);
  let cuts = 0;
  server.faults.request = ({ url }, response) => {
    if (!url.includes("transport=poll") || server.follow("channel a").id.endsWith("-0") || cuts > 0) return false;
    cuts += 1;
    // As Chromium shows an answer that was cut after its head.
    response.writeHead(200, { "Throng-Id": server.follow("channel a").id, "Throng-Recovered": "true" });
    response.end();
    return true;
  };
  const { data, listen, until } = inbox();
  const subscription = connect({ transports: ["poll"], pollWaitSeconds: 1 }).subscribe("a", listen);
  await next(subscription, "subscribed");
  server.publish("channel a", { data: "not lost" });
  await until(1);
  assert.deepEqual([data, cuts], [["not lost"], 1]);
});

for (const transport of ["sse", "poll"]) {
  test(`${transport}: when the page is visible again, a link without data is asked at once`, async (t) => {
    const page = (globalThis.document = new EventTarget());
    t.after(() => delete globalThis.document);
    const { server, connect } = await start(t);
    const client = connect({ transports: [transport] });
    const box = inbox();
    const chat = client.subscribe("a", box.listen);
    await next(chat, "subscribed");
    if (client.state !== "open") await next(client, "state", ({ state }) => state === "open");
    const isFollowing = (line) => line.startsWith("GET /subscribe");
    const begun = server.requests.filter(isFollowing).length;
    page.dispatchEvent(new Event("visibilitychange"));
    const now = Date.now();
    t.mock.method(Date, "now", () => now + 6_000);
    page.dispatchEvent(new Event("visibilitychange"));
    await client.publish("a", "after");
    assert.deepEqual(await box.until(1), ["after"]);
    const after = server.requests.filter(isFollowing).slice(begun);
    assert.ok(after.length > 0 && after[0].includes("since="), after.join());
    if (transport === "poll") assert.ok(after[0].includes("wait=0"), after[0]);
    assert.equal(client.state, "open");
  });
}
