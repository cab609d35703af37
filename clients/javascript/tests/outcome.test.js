// A server that stops answering at any point: every request ends in time, and the error of a
// publish says whether the message may have been sent.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Throng } from "@throng-push/client";
import { start } from "./context.js";

const BASE = "http://127.0.0.1:1";
/** More exchanges than a subscription and a publish need on any transport. */
const EXCHANGES_MAX = 5;

/** Lets all pending promises settle. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

/** A server that answers a number of exchanges, and then accepts bytes without answering. */
class Freezing {
  /** Whether the bytes of a publish have come. */
  hasMessage = false;
  #left;

  constructor(exchanges) {
    this.#left = exchanges;
  }

  answers() {
    this.#left -= 1;
    return this.#left >= 0;
  }

  fetch = async (url, { method = "GET", signal }) => {
    if (method === "POST") this.hasMessage = true;
    if (!this.answers() || url.includes("wait=25")) {
      return new Promise((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
      });
    }
    if (method === "POST") return Response.json({ id: "e-1", subscribers: 1 });
    const headers = { "Throng-Id": "e-0" };
    if (url.includes("transport=poll")) return new Response("", { headers });
    if (!url.includes("transport=sse")) {
      return Response.json({ id: "e-0", messages: [], more: false });
    }
    const stream = new ReadableStream({
      start(body) {
        const text = 'event: resumed\ndata: {"recovered":true}\n\n';
        body.enqueue(new TextEncoder().encode(text));
        signal.addEventListener("abort", () => body.error(signal.reason));
      },
    });
    return new Response(stream, { headers: { ...headers, "Content-Type": "text/event-stream" } });
  };

  /** The class of its WebSockets. */
  get WebSocket() {
    const server = this;
    return class {
      bufferedAmount = 0;

      constructor() {
        this.#hear({ type: "welcome", connection: "c", heartbeat: 25 });
      }

      send(text) {
        const { type, channel, ref } = JSON.parse(text);
        if (type === "publish") server.hasMessage = true;
        const answers = { subscribe: "subscribed", publish: "published", ping: "pong" };
        this.#hear({ type: answers[type], channel, id: "e-0", subscribers: 1, ref });
      }

      close() {}

      #hear(frame) {
        if (!server.answers()) return;
        queueMicrotask(() => this.onmessage?.({ data: JSON.stringify(frame) }));
      }
    };
  }
}

function connect(t, server, transport) {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { fetch, WebSocket } = server;
  const options = { transports: [transport], fetch, WebSocket, random: () => 0.5 };
  const client = new Throng(BASE, options);
  t.after(() => client.close());
  return client;
}

/** The outcome of a promise after a time; undefined if it is pending. */
async function after(t, delayMs, promise) {
  let end;
  promise.then((value) => (end = value), (error) => (end = error));
  await settled();
  for (let passedMs = 0; passedMs < delayMs; passedMs += 500) {
    t.mock.timers.tick(500);
    await settled();
  }
  return end;
}

for (const transport of ["websocket", "sse", "poll"]) {
  for (let exchanges = 0; exchanges <= EXCHANGES_MAX; exchanges += 1) {
    test(`${transport}: a publish ends if the server froze at ${exchanges}`, async (t) => {
      const server = new Freezing(exchanges);
      const client = connect(t, server, transport);
      client.subscribe("a");
      const end = await after(t, 30_000, client.publish("a", "x"));
      if (exchanges === EXCHANGES_MAX) assert.equal(end?.subscribers, 1);
      if (end?.subscribers === 1) return;
      const outcome = server.hasMessage ? "unknown" : "unpublished";
      assert.deepEqual([end?.code, end?.outcome], ["timeout", outcome]);
    });
  }

  test(`${transport}: close() ends pending requests, with the known outcome`, async (t) => {
    const server = new Freezing(0);
    const client = connect(t, server, transport);
    client.subscribe("a");
    const held = client.publish("a", "x");
    const posted = client.publish("b", "x", { keepalive: true });
    await settled();
    client.close();
    const [first, second] = await Promise.all([held, posted].map((each) => after(t, 0, each)));
    assert.deepEqual([first?.code, first?.outcome], ["closed", "unpublished"]);
    assert.deepEqual([second?.code, second?.outcome], ["closed", "unknown"]);
  });

  test(`${transport}: connect() without subscriptions sends waiting messages`, async (t) => {
    const server = new Freezing(0);
    const client = connect(t, server, transport);
    const chat = client.subscribe("a");
    const answer = client.publish("a", "x");
    await settled();
    chat.unsubscribe();
    client.connect();
    await after(t, 0, answer);
    assert.ok(server.hasMessage);
  });
}

for (const transport of ["sse", "poll"]) {
  test(`${transport}: a waiting message is sent when its subscription ends`, async (t) => {
    const server = new Freezing(0);
    const client = connect(t, server, transport);
    const chat = client.subscribe("a");
    const answer = client.publish("a", "x");
    await after(t, 0, answer);
    assert.equal(server.hasMessage, false);
    chat.unsubscribe();
    await after(t, 0, answer);
    assert.equal(server.hasMessage, true);
  });
}

test("a message that expires while it waits is not sent any more", async (t) => {
  const server = new Freezing(0);
  const client = connect(t, server, "websocket");
  client.subscribe("a");
  const end = await after(t, 1_000, client.publish("a", "x", { expiresInSeconds: 1 }));
  assert.deepEqual([end?.code, end?.outcome, server.hasMessage], ["timeout", "unpublished", false]);
});

test("a publish without a subscription ends if the server is frozen", async (t) => {
  const client = connect(t, new Freezing(0), "websocket");
  const end = await after(t, 30_000, client.publish("a", "x"));
  assert.deepEqual([end?.code, end?.outcome], ["timeout", "unknown"]);
});

test("history and presence end in time, also after close()", async (t) => {
  const client = connect(t, new Freezing(0), "sse");
  const asked = Promise.allSettled([client.history("a"), client.presence("a")]);
  client.close();
  const ends = await after(t, 10_000, asked);
  assert.deepEqual(ends?.map(({ reason }) => reason.code), ["timeout", "timeout"]);
});

test("post: the outcome of a refused connection is unpublished", async (t) => {
  const { server, connect } = await start(t);
  await server.stop();
  const fetch = (...request) =>
    globalThis.fetch(...request).catch((error) => {
      setImmediate(() => client.close());
      throw error;
    });
  const client = connect({ fetch, random: () => 1 });
  const error = await client.publish("a", "x").catch((failed) => failed);
  await server.listen(server.port);
  assert.deepEqual([error.code, error.outcome], ["closed", "unpublished"]);
});

const FAILURES = [
  { outcome: "unpublished", cause: { errors: [{ syscall: "connect" }, { syscall: "connect" }] } },
  { outcome: "unpublished", cause: { code: "ENOTFOUND", syscall: "getaddrinfo" } },
  { outcome: "unpublished", cause: { code: "UND_ERR_CONNECT_TIMEOUT" } },
  { outcome: "unknown", cause: { errors: [] } },
  { outcome: "unknown", cause: { code: "ECONNRESET", syscall: "read" } },
  { outcome: "unknown", cause: undefined },
];
for (const { outcome, cause } of FAILURES) {
  test(`post: a failure with cause ${JSON.stringify(cause)} is ${outcome}`, async (t) => {
    const server = new Freezing(0);
    server.fetch = async () => {
      throw new TypeError("fetch failed", { cause });
    };
    const end = await after(t, 30_000, connect(t, server, "sse").publish("a", "x"));
    assert.deepEqual([end?.code, end?.outcome], ["timeout", outcome]);
  });
}

test("post: one attempt that may have arrived makes the outcome unknown", async (t) => {
  const server = new Freezing(0);
  let attempts = 0;
  server.fetch = async () => {
    attempts += 1;
    throw new TypeError("fetch failed", { cause: attempts === 1 ? {} : { syscall: "connect" } });
  };
  const end = await after(t, 30_000, connect(t, server, "sse").publish("a", "x"));
  assert.ok(attempts > 1);
  assert.deepEqual([end?.code, end?.outcome], ["timeout", "unknown"]);
});
