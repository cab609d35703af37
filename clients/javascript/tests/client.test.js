import assert from "node:assert/strict";
import { test } from "node:test";
import { inbox, next, start, untilFollowed } from "./context.js";

const isOpen = ({ state }) => state === "open";

for (const transport of ["websocket", "sse", "poll"]) {
  const options = { transports: [transport] };

  test(`${transport}: messages arrive decoded and in order`, async (t) => {
    const { connect } = await start(t);
    const client = connect(options);
    const messages = [];
    const box = inbox();
    const chat = client.subscribe("chat:a/b ü", (message) => {
      messages.push(message);
      box.listen(message);
    });
    await next(chat, "subscribed");
    const text = await client.publish("chat:a/b ü", "hello\nthere");
    await client.publish("chat:a/b ü", { n: [1] });
    await client.publish("chat:a/b ü", new Uint8Array([0, 255]));
    await box.until(3);
    assert.deepEqual(box.data, ["hello\nthere", { n: [1] }, new Uint8Array([0, 255])]);
    assert.equal(messages[0].channel, "chat:a/b ü");
    assert.equal(messages[0].id, text.id);
    assert.equal(messages[1].contentType, "application/json");
    assert.equal(messages[2].contentType, "application/octet-stream");
    assert.ok(messages[0].time > 0);
  });

  test(`${transport}: history comes first, and once`, async (t) => {
    const { server, connect } = await start(t);
    for (const data of ["1", "2", "3"]) server.publish("channel a", { data });
    const box = inbox();
    const chat = connect(options).subscribe("a", { history: 2 }, box.listen);
    await next(chat, "subscribed");
    server.publish("channel a", { data: "4" });
    assert.deepEqual(await box.until(3), ["2", "3", "4"]);
  });

  test(`${transport}: a lost connection neither loses nor repeats messages`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect(options);
    const [box, quiet] = [inbox(), inbox()];
    const chat = client.subscribe("a", { history: 10 }, box.listen);
    chat.on("gap", () => assert.fail("there is no gap"));
    const all = [chat, client.subscribe("b", quiet.listen), client.subscribe("c")];
    await Promise.all(all.map((each) => next(each, "subscribed")));
    for (let round = 0; round < 5; round += 1) {
      server.publish("channel a", { data: `${round} before` });
      server.cut();
      server.publish("channel a", { data: `${round} while away` });
      server.publish("channel b", { data: `${round} b` });
      await box.until(3 * round + 2);
      server.publish("channel a", { data: `${round} after` });
    }
    const kinds = ["before", "while away", "after"];
    const expected = [0, 1, 2, 3, 4].flatMap((n) => kinds.map((kind) => `${n} ${kind}`));
    assert.deepEqual(await box.until(15), expected);
    assert.deepEqual(await quiet.until(5), [0, 1, 2, 3, 4].map((n) => `${n} b`));
  });

  test(`${transport}: a gap is reported to its channel only, before later messages`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect(options);
    const seen = [];
    const box = inbox();
    const chat = client.subscribe("a", (message) => {
      seen.push(message.data);
      box.listen(message);
    });
    chat.on("gap", () => seen.push("gap"));
    const other = client.subscribe("b");
    other.on("gap", () => seen.push("gap in b"));
    await Promise.all([chat, other].map((each) => next(each, "subscribed")));
    const whole = next(other, "recovered");
    await untilFollowed(server);
    await server.stop();
    // Older than the history of the channel.
    for (let n = 0; n < 101; n += 1) server.publish("channel a", { data: n });
    await server.listen(server.port);
    await Promise.all([whole, box.until(100)]);
    assert.deepEqual(seen.slice(0, 2), ["gap", 1]);
    assert.equal(seen.length, 101);
  });

  test(`${transport}: a server that lost its logs causes one gap`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect(options);
    const box = inbox();
    const chat = client.subscribe("a", box.listen);
    await next(chat, "subscribed");
    server.publish("channel a", { data: "old" });
    await box.until(1);
    const gap = next(chat, "gap");
    await untilFollowed(server);
    server.loseLogs();
    server.cut();
    await gap;
    chat.on("gap", () => assert.fail("it was told already"));
    server.cut();
    server.publish("channel a", { data: "new" });
    assert.deepEqual(await box.until(2), ["old", "new"]);
  });

  test(`${transport}: channels can be added and removed on one connection`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect(options);
    const [a, b] = [inbox(), inbox()];
    const first = client.subscribe("a", a.listen);
    await next(first, "subscribed");
    server.publish("channel a", { data: "1" });
    await a.until(1);
    await next(client.subscribe("b", b.listen), "subscribed");
    first.unsubscribe();
    server.publish("channel a", { data: "2" });
    server.publish("channel b", { data: "3" });
    assert.deepEqual(await b.until(1), ["3"]);
    assert.deepEqual(a.data, ["1"]);
    // A new subscription begins with history, without messages of the first.
    const again = inbox();
    client.subscribe("a", { history: 10 }, again.listen);
    assert.deepEqual(await again.until(2), ["1", "2"]);
    await client.publish("a", "4");
    assert.deepEqual(await again.until(3), ["1", "2", "4"]);
  });

  test(`${transport}: echo: false excludes only the sender`, async (t) => {
    const { connect } = await start(t);
    const [ann, bo] = [connect(options), connect(options)];
    const [mine, theirs] = [inbox(), inbox()];
    const subscriptions = [ann.subscribe("a", mine.listen), bo.subscribe("a", theirs.listen)];
    await Promise.all(subscriptions.map((each) => next(each, "subscribed")));
    await ann.publish("a", "quiet", { echo: false });
    await ann.publish("a", "loud");
    assert.deepEqual(await mine.until(1), ["loud"]);
    assert.deepEqual(await theirs.until(2), ["quiet", "loud"]);
  });

  test(`${transport}: the inbox of the own user, and presence`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect({ ...options, user: "ann" });
    const box = inbox();
    await next(client.subscribe("a"), "subscribed");
    await next(client.subscribe({ user: "ann" }, box.listen), "subscribed");
    await client.publish({ user: "ann" }, "psst");
    assert.deepEqual(await box.until(1), ["psst"]);
    server.publish("user ann", { data: "again" });
    await box.until(2);
    assert.throws(() => client.subscribe({ user: "bo" }), { code: "forbidden" });
    const { messages, more } = await client.history({ user: "ann" }, { limit: 1 });
    assert.deepEqual([messages[0].data, messages[0].user, more], ["again", "ann", true]);
    assert.deepEqual((await client.presence("a")).users, ["ann"]);
  });
}

test("websocket: the server's time to retry is used", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ random: () => 1 });
  client.subscribe("a");
  await next(client, "state", isOpen);
  const waiting = next(client, "state", ({ state }) => state === "waiting");
  server.closeSockets(1012, "reconnect in 7 ms");
  assert.equal((await waiting).delayMs, 7);
  await next(client, "state", isOpen);
});

test("sse: `retry:` and `Retry-After` are used", async (t) => {
  const { server, connect } = await start(t);
  const answers = [
    (response) => {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.end("retry: 7\n\n");
    },
    (response) => response.writeHead(503, { "Retry-After": "0" }).end("{}"),
  ];
  server.faults.request = ({ url }, response) => {
    if (!url.startsWith("/subscribe") || answers.length === 0) return false;
    answers.shift()(response);
    return true;
  };
  const client = connect({ transports: ["sse"], random: () => 0.002 });
  const delays = [];
  client.on("state", ({ state, delayMs }) => state === "waiting" && delays.push(delayMs));
  const chat = client.subscribe("a");
  await next(chat, "recovered");
  assert.deepEqual(delays, [7, 2]);
});

const DAY_MS = 86_400_000;

/** Resolves with the delay before the next attempt. */
const nextDelay = async (client) =>
  (await next(client, "state", ({ state }) => state === "waiting")).delayMs;

test("a delay longer than a timer takes is limited to a day", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ transports: ["websocket"] });
  client.subscribe("a");
  await next(client, "state", isOpen);
  const delayMs = nextDelay(client);
  server.closeSockets(1013, `reconnect in ${2 ** 31} ms`);
  assert.equal(await delayMs, DAY_MS);
});

const ENDLESS = "9".repeat(400);
for (const [transport, status, header, body] of [
  ["sse", 200, {}, `retry: ${2 ** 31}\n\n`],
  ["sse", 200, {}, `retry: ${ENDLESS}\n\n`],
  ["sse", 503, { "Retry-After": String(2 ** 31) }, "{}"],
  ["poll", 503, { "Retry-After": ENDLESS }, "{}"],
]) {
  test(`${transport}: ${status} with an endless delay: a day`, async (t) => {
    const { server, connect } = await start(t);
    server.faults.request = ({ url }, response) => {
      if (!url.startsWith("/subscribe")) return false;
      response.writeHead(status, { "Content-Type": "text/event-stream", ...header }).end(body);
      return true;
    };
    const client = connect({ transports: [transport] });
    client.subscribe("a");
    assert.equal(await nextDelay(client), DAY_MS);
  });
}

test("a final close code closes the client, connect() starts over", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  const error = next(client, "error");
  server.closeSockets(1008, "forbidden: not allowed");
  assert.equal((await error).code, "forbidden");
  assert.equal(client.state, "closed");
  assert.throws(() => client.subscribe("b"), { code: "closed" });
  client.connect();
  await next(chat, "recovered");
});

test("a refused subscription does not affect others", async (t) => {
  const { connect } = await start(t);
  const client = connect();
  const refused = next(client.subscribe("forbidden"), "error");
  await next(client.subscribe("a"), "subscribed");
  assert.equal((await refused).code, "forbidden");
  assert.equal(client.state, "open");
});

test("a connection without subscriptions is closed", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  chat.unsubscribe();
  await next(client, "state", ({ state }) => state === "idle");
  await client.publish("a", "still possible");
  assert.ok(server.requests.at(-1).startsWith("POST /channels/a"));
});

test("a listener that throws does not stop delivery", async (t) => {
  const { server, connect } = await start(t);
  const box = inbox();
  const chat = connect().subscribe("a", () => {
    throw new Error("the listener's own");
  });
  chat.on("message", box.listen);
  await next(chat, "subscribed");
  const thrown = [];
  const others = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  process.on("uncaughtException", (error) => thrown.push(error.message));
  server.publish("channel a", { data: "1" });
  server.publish("channel a", { data: "2" });
  await box.until(2);
  await new Promise((resolve) => setImmediate(resolve));
  process.removeAllListeners("uncaughtException");
  for (const other of others) process.on("uncaughtException", other);
  assert.deepEqual(thrown, ["the listener's own", "the listener's own"]);
});
