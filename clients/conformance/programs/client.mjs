/** The JavaScript client, driven by JSON on its standard input: see clients/conformance/README.md. */

import { createInterface } from "node:readline";
import WebSocket from "../../javascript/node_modules/ws/wrapper.mjs";
import { Throng } from "../../javascript/dist/throng.js";

const clients = new Map();
const print = (client, event, fields = {}) => console.log(JSON.stringify({ client, event, ...fields }));

const TIMES = { heartbeat_ms: "heartbeatMs", open_timeout_ms: "openTimeoutMs",
  request_timeout_ms: "requestTimeoutMs", publish_timeout_ms: "publishTimeoutMs" };

function open({ client, url, options: given }) {
  const options = { transports: given.transports, WebSocket, token: given.token };
  for (const [name, own] of Object.entries(TIMES)) {
    if (given[name] !== undefined) options[own] = given[name];
  }
  if (given.poll_wait_ms !== undefined) options.pollWaitSeconds = given.poll_wait_ms / 1_000;
  if (given.random !== undefined) options.random = () => given.random;
  const made = new Throng(url, options);
  made.on("state", ({ state, transport, delayMs, reason }) => {
    print(client, "state", { state, transport, delay_ms: delayMs, reason });
  });
  made.on("error", ({ code }) => print(client, "error", { code }));
  clients.set(client, made);
}

function subscribe({ client, channels, history, since }) {
  for (const channel of channels) {
    const subscription = clients.get(client).subscribe(channel, { history, since }, (message) => {
      const { id, data, replayed } = message;
      print(client, "message", { channel, id, data, replayed });
    });
    subscription.on("gap", ({ id, missed }) => print(client, "gap", { channel, id, missed }));
    subscription.on("error", ({ code }) => print(client, "error", { code }));
  }
}

async function publish({ client, channel, data }) {
  try {
    const { id, duplicate } = await clients.get(client).publish(channel, data);
    print(client, "published", { id, duplicate: duplicate ?? false });
  } catch ({ code, outcome, key }) {
    print(client, "unpublished", { code, outcome, key });
  }
}

function close({ client }) {
  clients.get(client).close();
  clients.delete(client);
}

const WORK = { open, subscribe, publish, close };
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  WORK[command.command](command);
}
process.exit(0);
