// Mistakes of the program, of the platform and of messages: each is told, and none is a lost connection.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Throng } from "@throng-push/client";
import { parse } from "../src/message.js";
import { inbox, next, start } from "./context.js";

const CUT = "party 🎉".slice(0, 7);
const isOpen = ({ state }) => state === "open";

for (const transport of ["websocket", "sse", "poll"]) {
  const options = { transports: [transport] };

  test(`${transport}: an unreadable message is reported, and passed over for good`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect(options);
    const box = inbox();
    const reports = [];
    const chat = client.subscribe("a", box.listen);
    chat.on("unreadable", (report) => reports.push(report));
    client.on("unreadable", (report) => reports.push(report));
    await next(chat, "subscribed");
    server.publish("channel a", { data: "%", encoding: "base64" });
    server.publish("channel a", { data: "QUJ", encoding: "base64" });
    server.publish("channel a", { data: undefined });
    server.publish("channel a", { data: "x", encoding: "of-tomorrow" });
    const { id } = server.publish("channel a", { data: "next" });
    assert.deepEqual(await box.until(1), ["next"]);
    const ids = reports.map((report) => `${report.channel} ${report.id}`);
    assert.deepEqual(ids, [1, 1, 2, 2, 3, 3, 4, 4].map((offset) => `a e1-${offset}`));
    assert.ok(reports.every(({ reason }) => reason.length > 5), JSON.stringify(reports));
    const recovered = next(chat, "recovered");
    server.cut();
    await recovered;
    assert.deepEqual([reports.length, id], [8, "e1-5"]);
    const { messages } = await client.history("a");
    assert.deepEqual(messages.map(({ data }) => data), ["next"]);
  });

  test(`${transport}: text that UTF-8 cannot hold, and names, are refused at the call`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect(options);
    await assert.rejects(client.publish("a", CUT), { code: "bad_utf8" });
    await assert.rejects(client.publish("a", { text: [CUT] }), { code: "bad_utf8" });
    await assert.rejects(client.publish(CUT, "x"), { code: "bad_utf8" });
    await assert.rejects(client.history({ user: CUT }), { code: "bad_utf8" });
    assert.throws(() => client.subscribe(CUT), { code: "bad_utf8" });
    for (const name of ["", "a//b", "../a", "a\nb", "rooms/*", "ü".repeat(128)]) {
      assert.throws(() => client.subscribe(name), { code: "bad_name" });
      await assert.rejects(client.publish(name, "x"), { code: "bad_name" });
      await assert.rejects(client.presence({ user: name }), { code: "bad_name" });
    }
    assert.throws(() => connect({ user: "a/" }), { code: "bad_name" });
    const deep = JSON.parse("[".repeat(129) + "]".repeat(129));
    await assert.rejects(client.publish("a", deep), { code: "bad_json" });
    assert.deepEqual(server.requests, []);
    const fine = ["\\ud83c", "🎉", deep[0], { "ü": "\\ud83c🎉" }];
    for (const data of fine) await client.publish("a", data);
  });

  test(`${transport}: a message that the server would not take is refused at the call`, async (t) => {
    const { server, connect } = await start(t);
    server.messageBytesMax = 100;
    const client = connect(options);
    const isSocket = transport === "websocket";
    await next(client.subscribe("a"), "subscribed");
    if (isSocket) {
      const refused = [{ x: "ü".repeat(50) }, "ü".repeat(51), new Uint8Array(101)];
      for (const data of refused) {
        await assert.rejects(client.publish("a", data), { code: "too_large", outcome: "unpublished" });
      }
    }
    await client.publish("a", "ü".repeat(50));
    assert.equal(client.state === "open" || !isSocket, true);
  });

  test(`${transport}: a message takes an event and tags along`, async (t) => {
    const { server, connect } = await start(t);
    const heads = [];
    server.faults.answer = ({ headers }) => {
      heads.push(headers);
    };
    const client = connect(options);
    const chat = client.subscribe("a");
    await next(chat, "subscribed");
    if (client.state !== "open") await next(client, "state", isOpen);
    const labels = { event: "Größe", tags: { symbol: "ACMÉ 😀", n: 2 } };
    const published = client.publish("a", "x", labels);
    labels.tags.n = 3;
    await published;
    const frame = server.requests.find((line) => line.includes('"type":"publish"'));
    const ofHead = (name) => Buffer.from(heads.find((head) => head[name])[name], "latin1").toString();
    const { event, tags } = frame
      ? JSON.parse(frame.slice(6))
      : { event: ofHead("throng-event"), tags: JSON.parse(ofHead("throng-tags")) };
    assert.deepEqual([event, tags], ["Größe", { symbol: "ACMÉ 😀", n: 2 }]);
    await assert.rejects(client.publish("a", "x", { event: "a\nb" }), TypeError);
  });

  test(`${transport}: a message that expires says when`, async (t) => {
    const { server, connect } = await start(t);
    const lives = [];
    server.faults.answer = ({ headers }) => lives.push(headers["throng-expires-in"]);
    const client = connect(options);
    const chat = client.subscribe("a");
    await next(chat, "subscribed");
    if (client.state !== "open") await next(client, "state", isOpen);
    await client.publish("a", "typing", { expiresInSeconds: 60 });
    const frame = server.requests.find((line) => line.includes('"type":"publish"'));
    const life = frame ? JSON.parse(frame.slice(6)).expires_in : Number(lives[0]);
    assert.ok(life > 0 && life <= 60, String(life));
    for (const expiresInSeconds of [0, 0.5, 31_536_001, "1"]) {
      await assert.rejects(client.publish("a", "x", { expiresInSeconds }), TypeError);
    }
  });
}

for (const transports of [["websocket"], ["sse"]]) {
  test(`${transports}: a volatile message has one attempt and no key`, async (t) => {
    const { server, connect } = await start(t);
    const client = connect({ transports });
    const chat = client.subscribe("a/b");
    await next(chat, "subscribed");
    if (client.state !== "open") await next(client, "state", isOpen);
    const answer = await client.publish("a/b", "typing", { volatile: true });
    assert.deepEqual(answer, { volatile: true, subscribers: 1 });
    const keyed = client.publish("a/b", "x", { volatile: true, key: "k" });
    await assert.rejects(keyed, { code: "bad_request", outcome: "unpublished" });
    server.faults.request = ({ method }, response) => {
      if (method !== "POST") return false;
      response.writeHead(503).end('{"error":"busy","message":"later"}');
      return true;
    };
    if (client.transport === "sse") {
      const refused = client.publish("a/b", "x", { volatile: true });
      await assert.rejects(refused, { code: "busy", outcome: "unpublished" });
    }
    server.faults.request = undefined;
    const late = { code: "timeout", key: undefined };
    server.faults.published = server.faults.answer = () => false;
    server.requests.length = 0;
    const lost = client.publish("a/b", "x", { volatile: true });
    await assert.rejects(lost, { ...late, outcome: "unknown" });
    server.faults = {};
    if (client.state !== "open") await next(client, "state", isOpen);
    await client.publish("a/b", "kept");
    const attempts = server.requests.filter((line) => /"type":"publish"|^POST/.test(line));
    assert.equal(attempts.length, 2, String(attempts));
    const closed = next(client, "state", ({ state }) => state !== "open");
    await server.stop();
    await closed;
    const gone = client.publish("a/b", "x", { volatile: true });
    await assert.rejects(gone, { ...late, outcome: "unpublished" });
  });
}

test("a message that waits for the first welcome is refused if it is too large", async (t) => {
  const { server, connect } = await start(t);
  server.messageBytesMax = 100;
  const client = connect();
  client.subscribe("a");
  await assert.rejects(client.publish("a", "x".repeat(101)), { code: "too_large" });
});

test("of an envelope that cannot be parsed, the head is enough", () => {
  const head = '{"type":"message","channel":"a \\"b\\"","id":"e-1","time":1,"data":';
  const { channel, id, encoding } = parse(`${head}[[`);
  assert.deepEqual([channel, id, encoding], ['a "b"', "e-1", "unreadable"]);
  assert.throws(() => parse('{"type":"message","channel":"a","data":'), SyntaxError);
});

test("the console tells each cause once, if nobody listens to the state", async (t) => {
  const warn = t.mock.method(console, "warn", () => {});
  const { server, connect } = await start(t);
  const client = connect({ transports: ["websocket"] });
  const chat = client.subscribe("a");
  await next(chat, "subscribed");
  for (const [code, reason] of [[4000, "lagged"], [4000, "lagged"], [1012, "reconnect in 1 ms"], [1012, "reconnect in 2 ms"]]) {
    const recovered = next(chat, "recovered");
    server.closeSockets(code, reason);
    await recovered;
  }
  server.publish("channel a", { data: "%", encoding: "base64" });
  server.publish("channel a", { data: "%", encoding: "base64" });
  server.publish("channel a", { data: "end" });
  await next(chat, "message");
  const texts = warn.mock.calls.map(({ arguments: [text] }) => text);
  assert.equal(texts.length, 3, texts.join());
  assert.match(texts[0], /^throng: not connected: .*4000: lagged; tries again$/);
  assert.match(texts[2], /unreadable/);
  client.on("state", () => {});
  const recovered = next(chat, "recovered");
  server.closeSockets(4001, "other");
  await recovered;
  assert.equal(warn.mock.callCount(), 3);
});

const NO_TOKENS = [
  ["<!DOCTYPE html><title>Log in</title>", /returned an HTML page: is the user logged in\?/],
  [{ token: "t" }, /returned a object, and not a string/],
  ["two words", /no token: no header may have it/],
];
for (const [token, message] of NO_TOKENS) {
  test(`a getToken that returns ${JSON.stringify(token)} is told so`, async (t) => {
    const { server, connect } = await start(t);
    server.tokens = new Set(["t"]);
    const answers = [token, "t\n"];
    const client = connect({ getToken: async () => answers.shift() });
    const chat = client.subscribe("a");
    assert.match((await next(client, "state", ({ state }) => state === "waiting")).reason, message);
    await next(chat, "subscribed");
    assert.equal(client.transport, "websocket");
  });
}

test("an unknown event is refused with the nearest name", async (t) => {
  const { connect } = await start(t);
  const client = connect();
  const name = "TypeError";
  assert.throws(() => client.on("stat", () => {}), { name, message: /did you mean "state"/ });
  const chat = client.subscribe("a");
  assert.throws(() => chat.once("mesage", () => {}), { name, message: /did you mean "message"/ });
});

/** Runs without a global, as on a platform that does not have it. */
async function without(name, work) {
  const own = Object.getOwnPropertyDescriptor(globalThis, name);
  Object.defineProperty(globalThis, name, { value: undefined, configurable: true });
  try {
    return await work();
  } finally {
    Object.defineProperty(globalThis, name, own);
  }
}

test("a platform says what it lacks when the client is made, or the client does without", async (t) => {
  const { server, connect } = await start(t);
  for (const name of ["AbortController", "Headers", "fetch"]) {
    await without(name, () => assert.throws(() => new Throng(server.url), new RegExp(`no ${name}`)));
  }
  await without("TextDecoder", () => {
    assert.equal(new Throng(server.url, { WebSocket: null }).transport, "poll");
    assert.throws(() => new Throng(server.url, { transports: ["sse"] }), /no transport of sse/);
  });
  const body = Object.getOwnPropertyDescriptor(Response.prototype, "body");
  delete Response.prototype.body;
  assert.equal(new Throng(server.url, { WebSocket: null }).transport, "poll");
  Object.defineProperty(Response.prototype, "body", body);
  const client = connect();
  const keys = await without("crypto", () => Promise.all([client.publish("a", "1"), client.publish("a", "2")]));
  assert.deepEqual(keys.map(({ id }) => id), ["e1-1", "e1-2"]);
});

test("signals without reasons and throwIfAborted, and no URLSearchParams.set, are enough", async (t) => {
  const { server, connect } = await start(t);
  const { throwIfAborted } = AbortSignal.prototype;
  const reason = Object.getOwnPropertyDescriptor(AbortSignal.prototype, "reason");
  const { set } = URLSearchParams.prototype;
  delete AbortSignal.prototype.throwIfAborted;
  URLSearchParams.prototype.set = () => {
    throw new Error("not implemented");
  };
  t.after(() => {
    Object.assign(AbortSignal.prototype, { throwIfAborted });
    Object.assign(URLSearchParams.prototype, { set });
    Object.defineProperty(AbortSignal.prototype, "reason", reason);
  });
  delete AbortSignal.prototype.reason;
  for (const transport of ["websocket", "sse", "poll"]) {
    const client = connect({ transports: [transport], user: "ann b" });
    const box = inbox();
    const chats = ["a b", "c"].map((name) => client.subscribe(`${name} ${transport}`, box.listen));
    await Promise.all(chats.map((chat) => next(chat, "subscribed")));
    await client.publish(`c ${transport}`, transport);
    assert.deepEqual(await box.until(1), [transport]);
    chats[0].unsubscribe();
    client.close();
  }
  assert.ok(server.requests.length > 0);
});
