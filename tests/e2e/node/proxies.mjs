// A page whose clients reach the server through a proxy, in a real Chromium; driven by lines on stdin.
// Prints the page's origin first. Usage: node proxies.mjs CHROMIUM
//
//   open URL TOKEN   clients over each transport, and an EventSource without a library, follow rooms/garden
//   publish TRANSPORT   one of these clients publishes
//   await TEXT       waits until each of them has received TEXT; prints who has
//   end
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { openBrowser } from "./browser.mjs";

const [chromium] = process.argv.slice(2);
const say = (line) => process.stdout.write(`${line}\n`);

const site = createServer((request, response) => {
  response.setHeader("Content-Type", "text/html");
  response.end("<!doctype html><title>app</title>");
});
await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
const origin = `http://app.example.com:${site.address().port}`;
const hosts = "MAP push.example.com 127.0.0.1, MAP app.example.com 127.0.0.1";
const browser = await openBrowser(chromium, [`--host-resolver-rules=${hosts}`]);
const page = await browser.newPage();
const faults = [];
page.on("pageerror", (error) => faults.push(String(error)));
await page.goto(origin);
say(origin);

/** Runs in the page. Resolves once every client has begun. */
async function open({ url, token }) {
  const { Throng } = await import(`${url}/throng.js`);
  window.publish = {};
  window.received = { websocket: [], sse: [], poll: [], EventSource: [] };
  const opening = ["websocket", "sse", "poll"].map(async (transport) => {
    const client = new Throng(url, { token, transports: [transport] });
    const failed = new Promise((_, reject) => {
      client.on("error", reject);
    });
    const opened = new Promise((resolve) => {
      client.on("state", ({ state }) => state === "open" && resolve());
    });
    const subscription = client.subscribe("rooms/garden", { history: 10 }, ({ data }) => {
      window.received[transport].push(data);
    });
    subscription.on("error", (error) => window.received[transport].push(String(error)));
    await Promise.race([opened, failed]);
    window.publish[transport] = () => client.publish("rooms/garden", `from-${transport}`);
    return [transport, client];
  });
  const query = `token=${token}`;
  const events = new EventSource(`${url}/channels/rooms%2Fgarden?${query}`);
  window.events = events;
  events.onmessage = ({ data }) => window.received.EventSource.push(data);
  await new Promise((resolve) => {
    events.onopen = resolve;
  });
  // Between two polls a client is not there: others are.
  const asked = (await Promise.all(opening)).map(async ([transport, client]) => {
    const { messages } = await client.history("rooms/garden");
    const { connections } = await client.presence("rooms/garden");
    return [transport, messages.length > 0, connections > 0];
  });
  return Promise.all(asked);
}

const COMMANDS = {
  async open(url, token) {
    const begun = await page.evaluate(open, { url, token });
    const whole = (transport) => [transport, true, true];
    assert.deepEqual(begun, ["websocket", "sse", "poll"].map(whole));
    return "open";
  },
  async publish(transport) {
    const { id } = await page.evaluate((transport) => window.publish[transport](), transport);
    return id ? "published" : "no id";
  },
  async await(text) {
    await page.waitForFunction(
      (text) => Object.values(window.received).every((each) => each.includes(text)),
      text,
    );
    return Object.keys(await page.evaluate(() => window.received)).join();
  },
  async end() {
    assert.deepEqual(faults, []);
    await browser.close();
    process.exit(0);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...parameters] = line.split(" ");
  try {
    say(await COMMANDS[command](...parameters));
  } catch (error) {
    say(`failed: ${error}; received: ${JSON.stringify(await page.evaluate(() => window.received))}`);
  }
}
