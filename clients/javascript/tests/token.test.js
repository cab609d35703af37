import assert from "node:assert/strict";
import { test } from "node:test";
import { Tokens } from "../src/token.js";
import { inbox, next, start } from "./context.js";

/** Resolves once the client is open: over HTTP it knows where a channel starts before it follows. */
async function opened(client) {
  if (client.state !== "open") await next(client, "state", ({ state }) => state === "open");
}

const isWaiting = ({ state }) => state === "waiting";

/** A `getToken` that gives "t1", "t2" and so on, each valid on this server. */
function issuer(server) {
  server.tokens = new Set();
  const issued = [];
  const getToken = async () => {
    issued.push(`t${issued.length + 1}`);
    server.tokens.add(issued.at(-1));
    return issued.at(-1);
  };
  return { issued, getToken };
}

for (const transport of ["websocket", "sse", "poll"]) {
  const options = { transports: [transport] };

  test(`${transport}: one token serves connections and requests`, async (t) => {
    const { server, connect } = await start(t);
    const { issued, getToken } = issuer(server);
    const client = connect({ ...options, getToken });
    const box = inbox();
    const first = client.publish("a", "before");
    const page = client.history("a");
    client.subscribe("a", { history: 1 }, box.listen);
    await Promise.all([first, page]);
    await client.publish("a", "after");
    assert.deepEqual(await box.until(2), ["before", "after"]);
    assert.deepEqual(issued, ["t1"]);
  });

  test(`${transport}: an expired token loses and repeats nothing`, async (t) => {
    const { server, connect } = await start(t);
    const { issued, getToken } = issuer(server);
    const client = connect({ ...options, getToken });
    const box = inbox();
    const chat = client.subscribe("a", box.listen);
    chat.on("gap", () => assert.fail("there is no gap"));
    await next(chat, "subscribed");
    await opened(client);
    for (let round = 1; round <= 3; round += 1) {
      server.publish("channel a", { data: `${round} before` });
      server.expire(`t${round}`);
      server.publish("channel a", { data: `${round} after` });
      await box.until(2 * round);
    }
    const expected = [1, 2, 3].flatMap((round) => [`${round} before`, `${round} after`]);
    assert.deepEqual(box.data, expected);
    await client.publish("a", "last");
    assert.equal((await box.until(7)).at(-1), "last");
    assert.deepEqual(issued, ["t1", "t2", "t3", "t4"]);
  });

  test(`${transport}: a static token is sent, and its end closes the client`, async (t) => {
    const { server, connect } = await start(t);
    server.tokens = new Set(["t"]);
    const client = connect({ ...options, token: "t" });
    await next(client.subscribe("a"), "subscribed");
    await opened(client);
    const failed = next(client, "error");
    server.expire("t");
    server.publish("channel a", { data: "wakes a poll" });
    const { code } = await failed;
    assert.ok(["token_expired", "invalid_token"].includes(code), code);
    assert.equal(client.state, "closed");
  });

  test(`${transport}: no token closes the client, and connect() asks again`, async (t) => {
    const { server, connect } = await start(t);
    server.tokens = new Set(["t"]);
    const answers = [null, "t"];
    const client = connect({ ...options, getToken: () => answers.shift() });
    const chat = client.subscribe("a");
    const failed = next(client, "error");
    const publish = assert.rejects(client.publish("a", "x"), { code: "no_token" });
    assert.equal((await failed).code, "no_token");
    await publish;
    assert.deepEqual([client.state, server.requests], ["closed", []]);
    client.connect();
    await next(chat, "subscribed");
  });

  test(`${transport}: a failing getToken is tried again, on the same transport`, async (t) => {
    const { server, connect } = await start(t);
    server.tokens = new Set(["t"]);
    let calls = 0;
    const getToken = async () => {
      calls += 1;
      if (calls < 4) throw new Error("the login is down");
      return "t";
    };
    const client = connect({ transports: [transport, "poll"], getToken });
    const chat = client.subscribe("a");
    const { reason } = await next(client, "state", isWaiting);
    assert.equal(reason, "getToken failed: the login is down");
    await next(chat, "subscribed");
    assert.deepEqual([client.transport, calls], [transport, 4]);
  });

  test(`${transport}: a server that refuses each token is not asked without pause`, async (t) => {
    const { server, connect } = await start(t);
    server.tokens = new Set();
    let calls = 0;
    const getToken = () => `bad${++calls}`;
    const bounds = [];
    const random = () => {
      bounds.push(calls);
      return 0;
    };
    const client = connect({ transports: [transport, "poll"], getToken, random });
    client.subscribe("a");
    let waits = 0;
    await next(client, "state", (event) => isWaiting(event) && ++waits === 3);
    assert.equal(client.transport, transport);
    assert.ok(bounds.length >= 3, "each attempt has a backoff");
  });

  test(`${transport}: a channel that a token does not grant ends alone`, async (t) => {
    const { server, connect } = await start(t);
    const { getToken } = issuer(server);
    server.denied.add("channel secret");
    const client = connect({ ...options, getToken });
    const box = inbox();
    const refused = next(client.subscribe("secret"), "error");
    client.subscribe("a", box.listen);
    assert.equal((await refused).code, "forbidden");
    await client.publish("a", "hello");
    assert.deepEqual(await box.until(1), ["hello"]);
  });

  test(`${transport}: narrower grants end only what they do not cover`, async (t) => {
    const { server, connect } = await start(t);
    const { getToken } = issuer(server);
    const client = connect({ ...options, getToken });
    const box = inbox();
    const chats = ["a", "b"].map((name) => client.subscribe(name, box.listen));
    await Promise.all(chats.map((chat) => next(chat, "subscribed")));
    await opened(client);
    const ended = next(chats[0], "error");
    server.denied.add("channel a");
    server.expire("t1");
    server.publish("channel b", { data: "wakes a poll" });
    assert.equal((await ended).code, "forbidden");
    server.publish("channel b", { data: "on" });
    assert.deepEqual(await box.until(2), ["wakes a poll", "on"]);
    assert.equal(client.state, "open");
  });
}

for (const transport of ["sse", "poll"]) {
  test(`${transport}: a token without histories still follows`, async (t) => {
    const { server, connect } = await start(t);
    const { getToken } = issuer(server);
    server.grantsHistory = false;
    server.publish("channel a", { data: "older" });
    const box = inbox();
    const chat = connect({ transports: [transport], getToken }).subscribe("a", box.listen);
    await next(chat, "subscribed");
    server.publish("channel a", { data: "newer" });
    assert.deepEqual(await box.until(1), ["newer"]);
  });
}

for (const transport of ["websocket", "sse"]) {
  for (const [closeCode, code] of [
    [4004, "token_revoked"],
    [4500, "disconnected"],
  ]) {
    test(`${transport}: ${code} closes the client`, async (t) => {
      const { server, connect } = await start(t);
      const { issued, getToken } = issuer(server);
      const client = connect({ transports: [transport], getToken });
      client.subscribe("a");
      await opened(client);
      const failed = next(client, "error");
      server.end(closeCode, code, "go away");
      const error = await failed;
      assert.equal(error.code, code);
      assert.match(error.message, /go away/);
      assert.deepEqual([client.state, issued.length], ["closed", 1]);
    });
  }

  test(`${transport}: a client that may come back does, without a new token`, async (t) => {
    const { server, connect } = await start(t);
    const { issued, getToken } = issuer(server);
    const client = connect({ transports: [transport], getToken });
    const chat = client.subscribe("a");
    await next(chat, "subscribed");
    await opened(client);
    const recovered = next(chat, "recovered");
    server.end(4100, "disconnected", "come back");
    await recovered;
    assert.deepEqual(issued, ["t1"]);
  });
}

for (const transport of ["websocket", "sse"]) {
  test(`${transport}: a newer token is asked for and used at once; only one refused again waits`, async (t) => {
    const { server, connect } = await start(t);
    const { issued, getToken } = issuer(server);
    // The longest backoff, so that the test shows each.
    const client = connect({ transports: [transport], getToken, random: () => 1 });
    const chat = client.subscribe("a");
    await next(chat, "subscribed");
    await opened(client);
    const off = client.on("state", ({ state }) => assert.notEqual(state, "waiting"));
    const recovered = next(chat, "recovered");
    server.expire("t1");
    await recovered;
    assert.deepEqual(issued, ["t1", "t2"]);
    off();
    await opened(client);
    const waiting = next(client, "state", isWaiting);
    server.expire("t2");
    await waiting;
  });
}

test("a token is renewed before it is sent if its time is over, by a right clock", async (t) => {
  t.mock.timers.enable({ apis: ["Date"], now: 1_000_000 });
  const jwt = (exp) => `e30.${btoa(JSON.stringify({ exp })).replace(/=/g, "")}.s`;
  const answers = [jwt(1_010), jwt(1_020), jwt(1_005), "opaque"];
  let calls = 0;
  const getToken = () => answers[calls++];
  const tokens = new Tokens({ getToken, requestTimeoutMs: 1_000 }, assert.fail);
  assert.equal(await tokens.get(), jwt(1_010));
  t.mock.timers.setTime(1_009_999);
  assert.equal(await tokens.get(), jwt(1_010));
  t.mock.timers.setTime(1_010_000);
  assert.equal(await tokens.get(), jwt(1_020));
  t.mock.timers.setTime(1_020_000);
  // Of a token that comes expired the server says whether it is, and not this clock.
  for (let times = 0; times < 3; times += 1) assert.equal(await tokens.get(), jwt(1_005));
  tokens.refuse(jwt(1_005));
  assert.deepEqual([await tokens.get(), calls], ["opaque", 4]);
});

test("a revoked token closes a polling client", async (t) => {
  const { server, connect } = await start(t);
  server.faults.request = (request, response) => {
    response.writeHead(401).end('{"error":"token_revoked","message":"the token is revoked"}');
    return true;
  };
  let calls = 0;
  const client = connect({ transports: ["poll"], getToken: () => `t${++calls}` });
  client.subscribe("a");
  assert.deepEqual([(await next(client, "error")).code, calls], ["token_revoked", 1]);
});

test("a WebSocket gets a newer token before the present one expires", async (t) => {
  const { server, connect } = await start(t);
  const { issued, getToken } = issuer(server);
  const client = connect({ transports: ["websocket"], getToken });
  client.on("state", ({ state }) => assert.notEqual(state, "waiting"));
  const box = inbox();
  const chats = ["a", "b"].map((name) => client.subscribe(name, box.listen));
  await Promise.all(chats.map((chat) => next(chat, "subscribed")));
  const ended = next(chats[0], "error");
  server.denied.add("channel a");
  server.announce("t1");
  server.announce("t1");
  assert.deepEqual([(await ended).code, issued], ["forbidden", ["t1", "t2"]]);
  server.expire("t1");
  server.publish("channel b", { data: "still here" });
  assert.deepEqual(await box.until(1), ["still here"]);
  assert.equal(server.requests.filter((line) => line.startsWith("UPGRADE")).length, 1);
});

test("a refresh that fails is tried again", async (t) => {
  const { server, connect } = await start(t);
  const { getToken: issue } = issuer(server);
  let calls = 0;
  const getToken = async () => {
    calls += 1;
    if (calls === 2) throw new Error("the login is down");
    if (calls === 3) return "unknown";
    return issue();
  };
  const client = connect({ transports: ["websocket"], getToken });
  const box = inbox();
  await next(client.subscribe("a", box.listen), "subscribed");
  server.announce("t1");
  const isRenewed = (line) => line.includes('"token":"t2"');
  while (!server.requests.some(isRenewed)) await client.publish("b", "x");
  assert.equal(calls, 4);
  server.expire("t1");
  server.publish("channel a", { data: "still here" });
  assert.deepEqual(await box.until(1), ["still here"]);
});

test("connections of one client share a token", async (t) => {
  const { server, connect } = await start(t);
  const { issued, getToken } = issuer(server);
  server.channelsMax = 2;
  const client = connect({ transports: ["websocket"], getToken });
  const chats = ["a", "b", "c", "d", "e"].map((name) => client.subscribe(name));
  await Promise.all(chats.map((chat) => next(chat, "subscribed")));
  assert.deepEqual([server.sockets, issued], [3, ["t1"]]);
  const recovered = chats.map((chat) => next(chat, "recovered"));
  server.expire("t1");
  await Promise.all(recovered);
  assert.deepEqual(issued, ["t1", "t2"]);
});

test("a channel over a limit of the user is asked for again; the others stay", async (t) => {
  const { server, connect } = await start(t);
  let refusals = 0;
  server.faults.subscribe = ({ channel }) => channel === "b" && ++refusals < 3;
  const client = connect({ transports: ["websocket"] });
  client.on("state", ({ state }) => assert.notEqual(state, "waiting"));
  const chats = ["a", "b"].map((name) => client.subscribe(name));
  await Promise.all(chats.map((chat) => next(chat, "subscribed")));
  assert.equal(refusals, 3);
});

test("a newer token of another user closes the client", async (t) => {
  const { server, connect } = await start(t);
  server.tokens = new Set(["ann", "bo"]);
  server.faults.auth = (token) => token === "bo";
  const answers = ["ann", "bo"];
  const client = connect({ transports: ["websocket"], getToken: () => answers.shift() });
  await next(client.subscribe("a"), "subscribed");
  const failed = next(client, "error");
  server.announce("ann");
  assert.deepEqual([(await failed).code, client.state], ["forbidden", "closed"]);
});

test("a getToken without an answer is given up in time", async (t) => {
  const { connect } = await start(t);
  const client = connect({ getToken: () => new Promise(() => {}), requestTimeoutMs: 20 });
  client.subscribe("a");
  const { reason } = await next(client, "state", isWaiting);
  assert.match(reason, /^getToken failed: /);
});

test("a message with a bad token is published once, with a newer one", async (t) => {
  const { server, connect } = await start(t);
  const { issued, getToken } = issuer(server);
  const client = connect({ getToken });
  await client.publish("a", "1");
  server.tokens.delete("t1");
  assert.equal((await client.publish("a", "2")).id, "e1-2");
  assert.deepEqual(issued, ["t1", "t2"]);
});

test("a token names the user, so that the option may be missing", async (t) => {
  const { server, connect } = await start(t);
  server.tokens = new Set(["t"]);
  const box = inbox();
  const client = connect({ token: "t" });
  await next(client.subscribe({ user: "ann" }, box.listen), "subscribed");
  await client.publish({ user: "ann" }, "psst");
  assert.deepEqual(await box.until(1), ["psst"]);
});

test("options of the wrong type are refused", async (t) => {
  const { connect } = await start(t);
  for (const options of [{ token: "" }, { token: 1 }, { token: "t\n" }, { getToken: "t" }]) {
    assert.throws(() => connect(options), TypeError);
  }
  assert.throws(() => connect({ token: "t", getToken: () => "t" }), TypeError);
  assert.throws(() => connect({ gettoken: () => "t" }), /did you mean "getToken"/);
});
