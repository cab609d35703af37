// Follows a channel over all transports, publishes to it, and waits until each has the message; exit code
// 0 means success. With Node's own `https`, and the packages `ws` and `eventsource`.
// Usage: node transports.mjs URL CHANNEL
import assert from "node:assert/strict";
import https from "node:https";
import { EventSource } from "eventsource";
import WebSocket from "ws";

const [url, channel] = process.argv.slice(2);
const path = `/channels/${channel}`;
const TEXT = "from node ✓";

const get = (path, headers = {}) =>
  new Promise((resolve, reject) => {
    https.get(url + path, { headers }, resolve).on("error", reject);
  });
const all = async (response) => {
  let text = "";
  for await (const part of response.setEncoding("utf8")) text += part;
  return text;
};
const publish = (body) =>
  new Promise((resolve, reject) => {
    const request = https.request(url + path, { method: "POST" }, (response) =>
      all(response).then((text) => resolve({ ...JSON.parse(text), status: response.statusCode })),
    );
    request.on("error", reject).end(body);
  });

// Each resolves once it follows the channel, to a function that waits for the message.
const FOLLOW = {
  async stream() {
    const response = (await get(path)).setEncoding("utf8");
    return async () => {
      let text = "";
      for await (const part of response) {
        text += part;
        if (text.includes("\n")) return text.trim();
      }
    };
  },

  async sse() {
    const source = new EventSource(url + path);
    const message = new Promise((resolve) => {
      source.onmessage = ({ data }) => resolve(data);
    });
    await new Promise((resolve, reject) => {
      source.onopen = resolve;
      source.onerror = ({ message }) => reject(new Error(message));
    });
    return () => message;
  },

  async websocket() {
    const socket = new WebSocket(url.replace("https", "wss") + path);
    const message = new Promise((resolve) => {
      socket.on("message", (data) => resolve(data.toString()));
    });
    await new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject));
    return () => message;
  },
};

const { id, status } = await publish("before");
assert.equal(status, 201);
const followers = {};
for (const [transport, follow] of Object.entries(FOLLOW)) followers[transport] = await follow();
// The answer of a long poll begins with the message.
const polled = get(`${path}?wait=25&since=${id}`).then(all);
assert.equal((await publish(TEXT)).status, 201);
for (const [transport, next] of Object.entries(followers)) {
  assert.equal(await next(), TEXT, transport);
}
assert.equal(await polled, TEXT, "poll");
process.exit(0);
