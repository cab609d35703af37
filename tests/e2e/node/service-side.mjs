// An application that publishes with a key, signs a token, and decides who subscribes. Prints the URL
// of its receiver, reads the server's from its input, and ends once a client has got what it should.
// Usage: KEY=… TOKEN_SECRET=… WEBHOOK_SECRET=… node service-side.mjs
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import WebSocket from "ws";
import { makeToken, Publisher, ThrongError, Webhook } from "../../../clients/javascript/server/index.js";
import { Throng } from "../../../clients/javascript/src/throng.js";

const { KEY, TOKEN_SECRET, WEBHOOK_SECRET } = process.env;
const webhook = new Webhook(WEBHOOK_SECRET);
const asked = [];

const receiver = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const call = webhook.verify(Buffer.concat(chunks), request.headers);
  asked.push([call.type, call.data.channel, call.data.user]);
  response.end(JSON.stringify({ allow: call.data.user === "ann" }));
});
await new Promise((resolve) => receiver.listen(0, "127.0.0.1", resolve));
console.log(`http://127.0.0.1:${receiver.address().port}/`);
const { value: url } = await createInterface({ input: process.stdin })[Symbol.asyncIterator]().next();

const publisher = new Publisher(url, { key: KEY });
const token = makeToken(TOKEN_SECRET, { user: "ann", subscribe: ["rooms/*"], history: ["rooms/*"] });
const client = new Throng(url, { token, WebSocket });
const received = [];
const hears = new Promise((resolve, reject) => {
  client.on("error", reject);
  for (const target of ["rooms/a", { user: "ann" }]) {
    const subscription = client.subscribe(target, { history: 10 }, ({ data }) => {
      received.push(data);
      if (received.length === 3) resolve();
    });
    subscription.on("error", reject);
  }
});

const one = await publisher.publish({ user: "ann" }, "psst", { key: "k1" });
assert.deepEqual(await publisher.publish({ user: "ann" }, "psst", { key: "k1" }), {
  ...{ id: one.id, subscribers: 0, duplicate: true },
});
const results = await publisher.publishBatch([
  { channel: "rooms/a", data: { n: 1 } },
  { channel: "", data: "nowhere" },
  { channel: "rooms/a", data: new Uint8Array([1, 2]) },
]);
assert.ok(results[1] instanceof ThrongError && results[1].code === "bad_name", results[1]);
assert.ok(results[0].id && results[2].id);
await hears;
const inRoom = received.filter((data) => data !== "psst");
assert.deepEqual(inRoom, [{ n: 1 }, new Uint8Array([1, 2])]);
assert.equal(received.length - inRoom.length, 1);
// Asked again if it had to connect again.
assert.deepEqual([...new Set(asked.map(String))], ["subscribe,rooms/a,ann"]);

const other = new Publisher(url, { key: `${KEY}x` });
const error = await other.publish("rooms/a", 1).catch((refused) => refused);
assert.deepEqual([error.status, error.outcome], [401, "unpublished"]);
client.close();
receiver.close();
