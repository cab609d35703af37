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

test("after three refused WebSockets the client falls back to SSE", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  const client = connect();
  const box = inbox();
  client.subscribe("a", box.listen);
  assert.equal((await next(client, "state", isOpen)).transport, "sse");
  const upgrades = server.requests.filter((line) => line.startsWith("UPGRADE"));
  // The third one began when the server had answered a request.
  assert.equal(upgrades.length, 3);
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

test("a WebSocket that opens and ends soon leads to SSE, one after a request that was answered", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  const box = inbox();
  client.subscribe("a", box.listen);
  const opened = [];
  await next(client, "state", ({ state, transport }) => {
    if (state !== "open") return false;
    opened.push(transport);
    if (transport === "websocket") setImmediate(() => server.cut());
    return transport === "sse";
  });
  assert.deepEqual(opened, ["websocket", "websocket", "websocket", "sse"]);
  assert.ok(server.requests.includes("GET /health"));
  await client.publish("a", "hello");
  assert.deepEqual(await box.until(1), ["hello"]);
});

test("after a reconnect the first transport is tried beside a lesser one, and takes over", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  const client = connect();
  const box = inbox();
  const chat = client.subscribe("a", box.listen);
  chat.on("gap", () => assert.fail("there is no gap"));
  await next(chat, "subscribed");
  await untilFollowed(server);
  server.faults.upgrade = undefined;
  const isBack = next(client, "state", (event) => isOpen(event) && event.transport === "websocket");
  server.publish("channel a", { data: "1" });
  server.cut();
  server.publish("channel a", { data: "2" });
  await isBack;
  server.publish("channel a", { data: "3" });
  await client.publish("a", "4");
  assert.deepEqual(await box.until(4), ["1", "2", "3", "4"]);
  assert.equal(server.sockets, 1);
});

test("connect() begins with the first transport", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  const client = connect();
  await next(client.subscribe("a"), "subscribed");
  server.faults.upgrade = undefined;
  client.connect();
  assert.equal((await next(client, "state", isOpen)).transport, "websocket");
});

test("one late WebSocket is no reason to fall back", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  const client = connect({ openTimeoutMs: 100 });
  client.subscribe("a");
  server.faults.request = ({ url }) => {
    if (url === "/health") server.faults.upgrade = undefined;
    return false;
  };
  assert.equal((await next(client, "state", isOpen)).transport, "websocket");
});

const FOREIGN = [
  [403, "<html>no</html>"],
  [401, ""],
  [400, '{"error":"Bad Request","message":"no","path":"/"}'],
  [403, '{"error":"forbidden","message":"no","trace":"1"}'],
  [404, '{"error":"forbidden","message":"no"}'],
];
for (const [status, body] of FOREIGN) {
  test(`a refusal of a proxy leads to another transport: ${status} ${body}`, async (t) => {
    const warn = t.mock.method(console, "warn", () => {});
    const { server, connect } = await start(t);
    server.faults.request = (request, response) => {
      if (!request.url.includes("transport=sse")) return false;
      response.writeHead(status).end(body);
      return true;
    };
    const client = connect({ transports: ["sse", "poll"], token: "t" });
    client.subscribe("a");
    assert.equal((await next(client, "state", isOpen)).transport, "poll");
    server.faults.request = (request, response) => {
      response.writeHead(status).end(body);
      return true;
    };
    const { reason } = await next(client, "state", ({ state }) => state === "waiting");
    const said = `a proxy or another server answered ${status}`;
    assert.ok(reason.startsWith(said) || reason.startsWith("is this the URL of a Throng"), reason);
    const texts = warn.mock.calls.map(({ arguments: [text] }) => text);
    assert.equal(new Set(texts).size, texts.length);
    server.faults.request = undefined;
    await next(client, "state", isOpen);
  });
}

test("a close that is not the server's own word is no end", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ transports: ["websocket"] });
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  for (const code of [1002, 1003, 1008]) {
    const recovered = next(chat, "recovered");
    server.closeSockets(code, "policy: no WebSockets here");
    await recovered;
  }
});

test("a browser that keeps its deflate context goes on without compression", async (t) => {
  const { server, connect } = await start(t);
  for (const [code, reason] of [[1007, ""], [4007, "bad_compression: connect with ?compression=none"]]) {
    const client = connect({ transports: ["websocket"], random: () => 1 });
    const chat = client.subscribe("a");
    await next(chat, "subscribed");
    client.on("state", ({ state }) => assert.notEqual(state, "waiting"));
    const recovered = next(chat, "recovered");
    server.closeSockets(code, reason);
    await recovered;
    const asked = server.requests.findLast((line) => line.startsWith("UPGRADE"));
    assert.ok(asked.startsWith("UPGRADE /subscribe?compression=none"), asked);
    client.close();
  }
});

test("the reason of a refusal that a page cannot read is asked for", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  server.faults.request = (request, response) => {
    if (!/^\/subscribe\b/.test(request.url)) return false;
    response.writeHead(403).end('{"error":"origin_refused","message":"not for this page"}');
    return true;
  };
  const client = connect({ transports: ["websocket"] });
  client.subscribe("a");
  const { code, message } = await next(client, "error");
  assert.deepEqual([code, message], ["origin_refused", "not for this page"]);
});

test("a server that is none of Throng is named as such", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "refuse";
  server.faults.request = (request, response) => {
    response.writeHead(404).end("<html>not found</html>");
    return true;
  };
  t.mock.method(console, "warn", () => {});
  const client = connect();
  client.subscribe("a");
  const isNamed = ({ reason = "" }) => reason.startsWith("is this the URL of a Throng server?");
  const { reason } = await next(client, "state", isNamed);
  assert.ok(reason.endsWith("/health answered 404"), reason);
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

for (const transport of ["sse", "poll"]) {
  for (const page of ['{"login":"/sso"}', "[]", "null", "<html>"]) {
    test(`${transport}: ${page} with the status 200 is not the server's, and does not stay`, async (t) => {
      const { server, connect } = await start(t);
      let left = 2;
      server.faults.request = (request, response) => {
        if (left === 0) return false;
        left -= 1;
        response.writeHead(200, { "Content-Type": "application/json" }).end(page);
        return true;
      };
      const client = connect({ transports: [transport] });
      const box = inbox();
      const states = [];
      client.on("state", ({ state }) => states.push(state));
      const chat = client.subscribe("a", box.listen);
      await next(chat, "subscribed");
      assert.equal(left, 0);
      assert.ok(states.includes("waiting"), states.join());
      await client.publish("a", "hello");
      assert.deepEqual(await box.until(1), ["hello"]);
    });
  }
}
