import assert from "node:assert/strict";
import { test } from "node:test";
import { inbox, next, start } from "./context.js";

const isOpen = ({ state }) => state === "open";

test("websocket: messages published while offline are sent in order and once", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  const box = inbox();
  const chat = client.subscribe("a", box.listen);
  await next(chat, "subscribed");
  await server.stop();
  const answers = ["1", "2", "3"].map((data) => client.publish("a", data));
  await server.listen(server.port);
  const ids = (await Promise.all(answers)).map(({ id }) => id);
  assert.deepEqual(ids, ["e1-1", "e1-2", "e1-3"]);
  assert.deepEqual(await box.until(3), ["1", "2", "3"]);
});

for (const transport of ["websocket", "sse"]) {
  test(`${transport}: the data is copied when publish() is called`, async (t) => {
    const { connect } = await start(t);
    const client = connect({ transports: [transport] });
    const box = inbox();
    client.subscribe("a", box.listen);
    const [state, bytes] = [{ n: 1 }, Uint8Array.of(1)];
    const answers = [client.publish("a", state), client.publish("a", bytes)];
    state.self = state;
    bytes[0] = 2;
    await Promise.all(answers);
    assert.deepEqual(await box.until(2), [{ n: 1 }, Uint8Array.of(1)]);
  });
}

test("websocket: a lost response leads to a retry that publishes nothing again", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  const box = inbox();
  const chat = client.subscribe("a", box.listen);
  await next(chat, "subscribed");
  let cuts = 1;
  server.faults.published = () => cuts-- <= 0;
  const answer = await client.publish("a", "once");
  assert.equal(answer.duplicate, true);
  await client.publish("a", "after");
  assert.deepEqual(await box.until(2), ["once", "after"]);
});

test("websocket: echo: false suppresses a retried message in the backlog", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  const box = inbox();
  const chat = client.subscribe("a", box.listen);
  await next(chat, "subscribed");
  let cuts = 1;
  server.faults.published = () => cuts-- <= 0;
  await client.publish("a", "quiet", { echo: false });
  await client.publish("a", "loud");
  assert.deepEqual(await box.until(1), ["loud"]);
});

test("post: retried with the same key after lost responses and temporary refusals", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ transports: ["sse"] });
  let refusals = 2;
  server.faults.request = (request, response) => {
    if (request.method !== "POST" || refusals-- <= 0) return false;
    response.writeHead(503, { "Retry-After": "0" }).end('{"error":"busy","message":"busy"}');
    return true;
  };
  let cuts = 2;
  server.faults.answer = () => cuts-- <= 0;
  const answers = await Promise.all([client.publish("a", "1"), client.publish("a", "2")]);
  assert.deepEqual(answers.map(({ id }) => id), ["e1-1", "e1-2"]);
  const { messages } = await client.history("a");
  assert.deepEqual(messages.map(({ data }) => data), ["1", "2"]);
});

test("post: a delay too long for a timer does not cause an immediate retry", async (t) => {
  const { server, connect } = await start(t);
  // The refusal has to come before that.
  const client = connect({ publishTimeoutMs: 3_000 });
  let requests = 0;
  server.faults.request = (_, response) => {
    requests += 1;
    const headers = { "Retry-After": String(2 ** 31) };
    response.writeHead(503, headers).end('{"error":"busy","message":"busy"}');
    return true;
  };
  const error = await client.publish("a", "1").catch((failed) => failed);
  assert.deepEqual([error.code, error.outcome, requests], ["timeout", "unpublished", 1]);
});

test("post: a permanent refusal rejects at once", async (t) => {
  const { server, connect } = await start(t);
  server.faults.request = (request, response) => {
    response.writeHead(413).end('{"error":"too_large","message":"64 KiB at most"}');
    return true;
  };
  const answer = connect({ transports: ["poll"] }).publish("a", "x");
  await assert.rejects(answer, { code: "too_large", status: 413, message: "64 KiB at most" });
});

test("the queue is bounded, each message has a deadline, close() rejects", async (t) => {
  const { server, connect } = await start(t);
  server.faults.upgrade = "hang";
  const options = { transports: ["websocket"], queueMax: 2 };
  const client = connect({ ...options, publishTimeoutMs: 50 });
  client.subscribe("a");
  const waiting = [client.publish("a", "1"), client.publish("a", "2")];
  await assert.rejects(client.publish("a", "3"), { code: "queue_full" });
  for (const answer of waiting) await assert.rejects(answer, { code: "timeout" });
  const last = client.publish("a", "4");
  client.close();
  await assert.rejects(last, { code: "closed" });
  await assert.rejects(client.publish("a", "5"), { code: "closed" });
});

test("a key or type that no header may have rejects at once", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  for (const options of [{ key: "a\nb" }, { contentType: "a\r\nb: c" }]) {
    await assert.rejects(client.publish("a", "x", options), TypeError);
  }
  assert.deepEqual(server.requests, []);
});

test("data that JSON cannot represent rejects", async (t) => {
  const { connect } = await start(t);
  await assert.rejects(connect().publish("a", undefined), TypeError);
  await assert.rejects(connect().publish("a", { n: 1n }), TypeError);
});

test("a message too large for the WebSocket is refused, the others are sent", async (t) => {
  const { server, connect } = await start(t);
  const client = connect();
  client.subscribe("a");
  await next(client, "state", isOpen);
  server.faults.deaf = true;
  const [small, large] = [client.publish("a", "small"), client.publish("a", "l".repeat(99))];
  const refused = assert.rejects(large, { code: "too_large" });
  server.closeSockets(1009, "too large");
  server.faults.deaf = false;
  await refused;
  assert.equal((await small).id, "e1-1");
});

/** A `fetch` that ignores its signal. `isDeaf` selects the requests without a response. */
function heedless(isDeaf) {
  return async (url, { signal, ...init }) => {
    const answer = isDeaf(url, init);
    if (answer === true) return new Promise(() => {});
    return answer ?? fetch(url, init);
  };
}

const never = () => new Promise(() => {});
const STUCK = {
  answer: () => true,
  body: () => ({ ok: true, status: 201, headers: new Headers(), json: never }),
  error: () => ({ ok: false, status: 503, headers: new Headers(), json: never }),
};

for (const [part, stuck] of Object.entries(STUCK)) {
  test(`post: a fetch that ignores its signal (${part}) blocks no message`, async (t) => {
    const { connect } = await start(t);
    let posts = 0;
    const deaf = (url, { method }) => {
      if (method === "POST" && posts++ === 0) return stuck();
    };
    const options = { transports: ["sse"], fetch: heedless(deaf), requestTimeoutMs: 50 };
    const client = connect(options);
    const answers = [client.publish("a", "1"), client.publish("a", "2")];
    assert.deepEqual((await Promise.all(answers)).map(({ id }) => id), ["e1-1", "e1-2"]);
  });
}

test("poll: a new subscription ends the wait for publishes with echo: false", async (t) => {
  const { server, connect } = await start(t);
  let polled;
  const answered = new Promise((resolve) => (polled = resolve));
  const options = {
    transports: ["poll"],
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      if (!url.includes("/subscribe") || response.status === 204) return response;
      const text = await response.text();
      polled();
      return new Response(text, response);
    },
  };
  const client = connect(options);
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  let post;
  const posted = new Promise((resolve) => {
    server.faults.request = (request, response) => {
      if (request.method !== "POST") return false;
      post = response;
      resolve();
      return true;
    };
  });
  const quiet = client.publish("a", "quiet", { echo: false });
  await posted;
  // The poll has its answer, which is kept back until it is known whether the message is its own.
  server.publish("channel a", { data: "other" });
  await answered;
  await next(client.subscribe("b"), "subscribed");
  server.faults.request = undefined;
  post.socket.destroy();
  await quiet;
});

for (const transport of ["websocket", "sse"]) {
  test(`${transport}: a receipt comes by a request of its own, and nothing waits for it`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect({ transports: [transport] });
    const chat = client.subscribe("a");
    await next(chat, "subscribed");
    let give;
    let preference;
    server.receipt = (request) => {
      preference = request.headers.prefer;
      return new Promise((resolve) => (give = resolve));
    };
    const slow = client.publish("a", "1", { receipt: 60 });
    const seen = next(chat, "message");
    assert.equal((await seen).data, "1");
    assert.equal((await client.publish("a", "2")).id, "e1-2");
    assert.equal(preference, "receipt, wait=60");
    const receipt = { outcome: "complete", matched: 1, written: 1, behind: 0, unknown: 0, dropped: 0 };
    give(receipt);
    const answer = await slow;
    assert.deepEqual([answer.id, answer.receipt], ["e1-1", receipt]);
  });
}

test("a receipt has its wait on top of the timeouts", async (t) => {
  const { server, connect } = await start(t);
  const client = connect({ requestTimeoutMs: 0, publishTimeoutMs: 0 });
  const receipt = { outcome: "complete" };
  server.receipt = () => receipt;
  assert.deepEqual((await client.publish("a", "x", { receipt: 60 })).receipt, receipt);
});

test("a receipt that cannot be had is refused at once", async (t) => {
  const { connect } = await start(t);
  const client = connect();
  for (const receipt of [-1, 61, NaN, "a while"]) {
    await assert.rejects(client.publish("a", "x", { receipt }), /"receipt" must be .* 0 to 60/);
  }
  await assert.rejects(client.publish("a", "x", { receipt: 1, echo: false }), /excludes/);
});
