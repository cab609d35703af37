import assert from "node:assert/strict";
import { test } from "node:test";
import { inbox, next, start, untilFollowed } from "./context.js";

const isOpen = ({ state }) => state === "open";
/** For a server that hangs, where the test waits until the client gives up. */
const IMPATIENT = { openTimeoutMs: 1_000 };

function holdStreams(request, response) {
  if (!request.url.includes("transport=sse")) return false;
  response.writeHead(200, { "Content-Type": "text/event-stream" }).flushHeaders();
  return true;
}

test("after two refused WebSockets the client falls back to SSE", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  const client = connect();
  const box = inbox();
  client.subscribe("a", box.listen);
  assert.equal((await next(client, "state", isOpen)).transport, "sse");
  const upgrades = server.requests.filter((line) => line.startsWith("UPGRADE"));
  assert.equal(upgrades.length, 2);
  await client.publish("a", "hello");
  assert.deepEqual(await box.until(1), ["hello"]);
});

test("a hanging WebSocket and a buffered stream lead to long-poll", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  server.faults.request = holdStreams;
  const client = connect(IMPATIENT);
  const box = inbox();
  const early = client.publish("a", "before");
  client.subscribe("a", { history: 10 }, box.listen);
  assert.equal((await next(client, "state", isOpen)).transport, "poll");
  await early;
  await client.publish("a", "after");
  assert.deepEqual(await box.until(2), ["before", "after"]);
});

test("a stream with only a time to retry is not a subscription", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  let refusals = 0;
  server.faults.request = (request, response) => {
    if (!request.url.includes("transport=sse") || refusals === 2) return false;
    refusals += 1;
    const headers = { "Content-Type": "text/event-stream", "Retry-After": "0" };
    response.writeHead(200, headers).end(": full: no room\nretry: 1\n\n");
    return true;
  };
  const client = connect(IMPATIENT);
  client.subscribe("a");
  const opened = await next(client, "state", isOpen);
  assert.deepEqual([opened.transport, refusals], ["sse", 2]);
});

test("messages that waited for a WebSocket are posted after the fallback", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  const client = connect(IMPATIENT);
  client.subscribe("a");
  assert.equal((await client.publish("a", "x")).id, "e1-1");
  assert.equal(client.transport, "sse");
});

test("the client waits for a server that is down and does not fall back", async (t) => {
  const { server, connect } = await start(t);
  await server.stop();
  const client = connect();
  client.subscribe("a");
  let waits = 0;
  await next(client, "state", ({ state }) => state === "waiting" && ++waits === 4);
  await server.listen(server.port);
  assert.equal((await next(client, "state", isOpen)).transport, "websocket");
});

test("only connect() returns to the first transport", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  const client = connect();
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  server.faults.upgrade = undefined;
  const recovered = next(chat, "recovered");
  await untilFollowed(server);
  server.cut();
  await recovered;
  assert.equal(client.transport, "sse");
  client.connect();
  assert.equal((await next(client, "state", isOpen)).transport, "websocket");
});

test("without a WebSocket class that transport is skipped", async (t) => {
  const { connect } = await start(t);
  assert.equal(connect({ WebSocket: null }).transport, "sse");
  assert.throws(() => connect({ transports: ["pigeon"] }), TypeError);
  assert.throws(() => connect({ WebSocket: null, transports: ["websocket"] }), TypeError);
});

test("a permanent refusal closes the client", async (t) => {
  const { server, connect } = await start(t);
  server.faults.request = (request, response) => {
    response.writeHead(403).end('{"error":"origin_refused","message":"not for this page"}');
    return true;
  };
  const client = connect({ transports: ["sse", "poll"] });
  client.subscribe("a");
  const { code, status } = await next(client, "error");
  assert.deepEqual([code, status, client.state], ["origin_refused", 403, "closed"]);
});

for (const transport of ["sse", "poll"]) {
  test(`a channel refused on ${transport} does not affect others`, async (t) => {
    const { server, connect } = await start(t);
    server.faults.request = (request, response) => {
      if (!request.url.startsWith("/channels/secret")) return false;
      response.writeHead(403).end('{"error":"forbidden","message":"not for you"}');
      return true;
    };
    const client = connect({ transports: [transport] });
    const box = inbox();
    const refused = next(client.subscribe("secret"), "error");
    assert.equal((await refused).code, "forbidden");
    // The refused channel was the only one, so the link starts its next round now.
    client.subscribe("a", box.listen);
    await next(client, "state", isOpen);
    const again = next(client.subscribe("secret"), "error");
    assert.equal((await again).code, "forbidden");
    await client.publish("a", "hello");
    assert.deepEqual(await box.until(1), ["hello"]);
    assert.equal(client.state, "open");
  });
}

test("a poll closed by a stopping server reconnects after the retry time", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ transports: ["poll"] });
  client.subscribe("a");
  server.faults.request = (request, response) => {
    if (!request.url.includes("wait=25")) return false;
    response.writeHead(204, { "Throng-Id": "e1-0", "Retry-After": "7" }).end();
    return true;
  };
  const { delayMs } = await next(client, "state", ({ state }) => state === "waiting");
  assert.equal(delayMs, 7_000);
});
