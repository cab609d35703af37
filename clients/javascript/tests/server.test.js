// What applications use on their servers, against a server that misbehaves by plan.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { makeToken, Publisher, ThrongError, Webhook, WebhookError } from "../server/index.js";

/**
 * Answers each request by the next step of `plan`, which gets its messages and the response. The last
 * step repeats: how often a message is sent again depends on the machine.
 */
async function start(t, ...plan) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const lines = body.trim().split("\n").map((line) => JSON.parse(line));
    requests.push({ lines, headers: request.headers });
    const step = plan.length > 1 ? plan.shift() : plan[0];
    step(lines, response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${server.address().port}`;
  const connect = (options) => new Publisher(url, { key: "k", random: () => 0, ...options });
  return { requests, connect };
}

const answer = (toAnswer) => (lines, response) =>
  response.end(lines.map((line, at) => `${JSON.stringify(toAnswer(line, at))}\n`).join(""));
const accept = answer(({ key }, at) => ({ id: `e-${key}`, subscribers: at }));
const refuse = (status, error) => (_, response) =>
  response.writeHead(status, { "Retry-After": "0" }).end(JSON.stringify({ error, message: error }));
const lose = (_, response) => response.destroy();

test("a message is sent again with its key until the server has it", async (t) => {
  const { requests, connect } = await start(t, lose, refuse(503, "busy"), accept);
  const published = await connect().publish({ user: "ann" }, { n: 1 }, { key: "k1" });
  assert.deepEqual(published, { id: "e-k1", subscribers: 0 });
  assert.equal(requests.length, 3);
  for (const { lines, headers } of requests) {
    assert.deepEqual(lines, [{ user: "ann", data: { n: 1 }, key: "k1" }]);
    assert.equal(headers.authorization, "Bearer k");
  }
});

test("of a batch, only what was refused for now is sent again", async (t) => {
  const busyFirst = answer(({ data }) =>
    data === "busy" ? { error: "busy", message: "m" } : { id: `e-${data}`, subscribers: 0 },
  );
  const never = answer(() => ({ error: "forbidden", message: "not here" }));
  const { requests, connect } = await start(t, busyFirst, never);
  const drafts = ["a", "busy", "b"].map((data) => ({ channel: "c", data }));
  const [first, second, third] = await connect().publishBatch(drafts);
  assert.deepEqual([first, third], [{ id: "e-a", subscribers: 0 }, { id: "e-b", subscribers: 0 }]);
  assert.ok(second instanceof ThrongError);
  const { code, outcome, key } = second;
  assert.deepEqual({ code, outcome, key }, {
    ...{ code: "forbidden", outcome: "unpublished" },
    key: requests[0].lines[1].key,
  });
  assert.deepEqual(requests[1].lines.map(({ key }) => key), [key]);
});

test("large batches become several requests, in order", async (t) => {
  const { requests, connect } = await start(t, accept, accept, accept);
  const text = "x".repeat(400_000);
  const drafts = Array.from({ length: 1003 }, (_, n) => ({ channel: "c", data: n < 1000 ? n : text }));
  const results = await connect().publishBatch(drafts);
  assert.deepEqual(requests.map(({ lines }) => lines.length), [1000, 2, 1]);
  assert.ok(results.length === 1003 && results.every(({ id }) => id));
});

test("an error says whether the message may have been published", async (t) => {
  const fail = async (options, ...plan) => {
    const { connect } = await start(t, ...plan);
    return connect(options).publish("c", "x").catch(({ code, outcome }) => `${code} ${outcome}`);
  };
  const keep = () => {};
  const isOfProxy = (_, response) => response.writeHead(404).end("not JSON");
  assert.equal(await fail({ publishTimeoutMs: 60 }, keep), "timeout unknown");
  assert.equal(await fail({}, refuse(401, "unauthorized")), "unauthorized unpublished");
  assert.equal(await fail({ publishTimeoutMs: 60 }, isOfProxy), "timeout unknown");
  assert.equal(await fail({}, lose, refuse(403, "forbidden")), "forbidden unknown");
  // As `fetch` in Node fails without a server.
  const cause = Object.assign(new Error("connect ECONNREFUSED"), { syscall: "connect" });
  const fetch = async () => {
    throw new TypeError("fetch failed", { cause });
  };
  const publisher = new Publisher("http://127.0.0.1:1", { fetch, publishTimeoutMs: 60 });
  const refused = await publisher.publish("c", "x").catch((error) => error);
  assert.equal(`${refused.code} ${refused.outcome}`, "timeout unpublished");
  assert.match(refused.message, /in 0.06 s: connect ECONNREFUSED/);
});

test("binary data and options travel in the fields of the protocol", async (t) => {
  const { requests, connect } = await start(t, accept);
  const labels = { event: "price", tags: { n: 2 } };
  const options = { contentType: "image/x", exclude: "c1", expiresInSeconds: 9, key: "k", ...labels };
  await connect().publish("c", new Uint8Array([0, 255]), options);
  assert.deepEqual(requests[0].lines, [
    {
      ...{ channel: "c", data: "AP8=", encoding: "base64", key: "k" },
      ...{ content_type: "image/x", exclude: "c1", expires_in: 9, ...labels },
    },
  ]);
});

test("what cannot be right is refused before it is sent", async () => {
  const publisher = new Publisher("http://127.0.0.1:1");
  await assert.rejects(publisher.publish("c", undefined), TypeError);
  await assert.rejects(publisher.publish("c", 1, { keys: "k" }), /did you mean "key"/);
  assert.throws(() => new Publisher("127.0.0.1:8080"), /did you mean "http/);
  assert.throws(() => new Publisher("http://a", { token: "k" }), /no option/);
  assert.throws(() => new Publisher("http://a", { publishTimeoutMs: 600_000 }), /240000/);
  assert.throws(() => makeToken("short"), /32/);
  assert.throws(() => makeToken("s".repeat(32), { subscribe: "a" }), /array/);
  assert.throws(() => new Webhook([]), TypeError);
  assert.throws(() => new Webhook("whsec_!"), TypeError);
});

test("in the background, messages are published in order, and each end is told", async (t) => {
  const gate = {};
  const hold = (lines, response) => {
    gate.open = () => accept(lines, response);
    gate.reached();
  };
  const reached = new Promise((resolve) => (gate.reached = resolve));
  const never = answer(() => ({ error: "forbidden", message: "not here" }));
  const { requests, connect } = await start(t, hold, never);
  const errors = [];
  const publisher = connect({ queueMax: 2, onError: (error) => errors.push(error) });
  const key = publisher.enqueue("a", "1");
  await reached;
  publisher.enqueue("a", "2", { key: "k2" });
  assert.throws(() => publisher.enqueue("a", "3"), { name: "ThrongError", code: "queue_full" });
  assert.deepEqual(publisher.counts, { queued: 2, published: 0, failed: 0, refused: 1 });
  const flushed = publisher.flush();
  gate.open();
  await flushed;
  assert.deepEqual(publisher.counts, { queued: 0, published: 1, failed: 1, refused: 1 });
  assert.deepEqual(errors.map((error) => [error.code, error.key]), [["forbidden", "k2"]]);
  assert.deepEqual(requests.map(({ lines }) => lines[0].key), [key, "k2"]);
  await publisher.close();
  assert.throws(() => publisher.enqueue("a", "4"), { code: "closed" });
});

test("background publishing is by choice, and what cannot be right is not taken", async () => {
  const url = "http://127.0.0.1:1";
  assert.throws(() => new Publisher(url).enqueue("a", 1), /needs the option "queueMax"/);
  assert.throws(() => new Publisher(url, { queueMax: 0 }), /1 or more/);
  const publisher = new Publisher(url, { queueMax: 1 });
  assert.throws(() => publisher.enqueue("a/../b", 1), { code: "bad_name" });
  assert.throws(() => publisher.enqueue("a", ["\ud83c"]), { code: "bad_utf8" });
  assert.equal(publisher.counts.queued, 0);
  await publisher.close();
});

test("users may be numbers", async (t) => {
  const { requests, connect } = await start(t, accept);
  await connect().publish({ user: 7 }, "x");
  assert.equal(requests[0].lines[0].user, "7");
  const token = makeToken("s".repeat(32), { user: 2n ** 64n });
  assert.equal(JSON.parse(atob(token.split(".")[1])).sub, "18446744073709551616");
});

test("a webhook that nobody has signed, or long ago, is refused", () => {
  const webhook = new Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
  // The example of the Standard Webhooks specification.
  const body = '{"test": 2432232314}';
  const headers = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
  };
  const at = { nowMs: 1614265330_000 };
  assert.deepEqual(webhook.verify(body, headers, at), { test: 2432232314 });
  assert.deepEqual(webhook.verify(Buffer.from(body), new Headers(headers), at), { test: 2432232314 });
  const wrong = [
    [body + " ", headers, at],
    [body, { ...headers, "webhook-id": "x" }, at],
    [body, { ...headers, "webhook-signature": "v1,AAAA" }, at],
    [body, { ...headers, "webhook-timestamp": "1e9" }, at],
    [body, {}, at],
    [body, headers, { nowMs: 1614265330_000 + 301_000 }],
  ];
  for (const [changed, given, when] of wrong) {
    assert.throws(() => webhook.verify(changed, given, when), WebhookError);
  }
});

test("a channel is created with its first messages", async (t) => {
  const created = { channel: "a", created: 7, ttl: 60, ids: ["e-1"] };
  const create = (_, response) => response.writeHead(201).end(JSON.stringify(created));
  const { requests, connect } = await start(t, create, refuse(409, "already_created"));
  const messages = [{ data: { n: 1 }, event: "first" }];
  const options = { contentType: "application/json", ttlSeconds: 60, messages };
  const made = await connect().create("a", options);
  assert.deepEqual(made, { channel: "a", created: 7, ttlSeconds: 60, ids: ["e-1"] });
  assert.deepEqual(requests[0].lines, [{ content_type: "application/json", ttl: 60, messages }]);
  assert.equal(requests[0].headers.authorization, "Bearer k");
  await assert.rejects(connect().create("a"), { code: "already_created" });
  assert.deepEqual(requests[1].lines, [{}]);
  await assert.rejects(connect().create("a", { ttl: 60 }), TypeError);
  const first = (more) => connect().create("a", { messages: [{ data: 1, ...more }] });
  await assert.rejects(first({ channel: "a" }), TypeError);
});
