// Validates webhooks as an application does, with the library: one JSON object a line, `{headers, rawBody}`.
//
// node pusher-webhook.mjs APP
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(import.meta.url);
const { id, key, secret } = JSON.parse(process.argv[2]);
const Pusher = require("pusher");
const library = new Pusher({ appId: id, key, secret, host: "127.0.0.1", port: "1", useTLS: false });

for await (const line of createInterface({ input: process.stdin })) {
  const webhook = library.webhook(JSON.parse(line));
  const events = webhook.isValid() ? webhook.getEvents() : null;
  console.log(JSON.stringify({ events, time: webhook.isValid() ? webhook.getTime() : null }));
}
