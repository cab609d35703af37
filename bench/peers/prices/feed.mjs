// Publishes to all channels, each at the same rate, in batches as an application would. Usage: node feed.mjs LIBRARY
// URL HEADERS. It ends with its standard input; then it prints the rate of accepted messages, and why others were not.
import { Agent, request } from "node:http";
import { CHANNELS, now } from "./follow.mjs";

const UPDATES_PER_S = 50;
/** A batch has a quarter of the channels, so that messages do not come all at once. */
const PARTS = 4;
const INTERVAL_MS = 1000 / UPDATES_PER_S / PARTS;
const WAITING_MAX = 100;

const BATCHES = {
  throng: ["/publish", (messages) => messages],
  centrifugo: ["/api/batch", (messages) => ({ commands: messages.map((publish) => ({ publish })) })],
};

const [, , library, url, headers] = process.argv;
const [path, batch] = BATCHES[library];
const agent = new Agent({ keepAlive: true, maxSockets: 4 });
let [accepted, waiting] = [0, 0];
/** Messages that were not published, by reason. */
const failures = {};
const fail = (part, reason) => { failures[reason] = (failures[reason] ?? 0) + part.length; };

function publish(part) {
  if (waiting >= WAITING_MAX) return fail(part, "too many requests wait for an answer");
  const data = { price: Math.round(Math.random() * 1e4) / 100, at: now() };
  const body = JSON.stringify(batch(part.map((channel) => ({ channel, data }))));
  const options = { method: "POST", agent, headers: { ...JSON.parse(headers), "Content-Type": "application/json" } };
  waiting += 1;
  const sent = request(url + path, options, (response) => {
    let text = "";
    response.setEncoding("utf8").on("data", (more) => { text += more; });
    response.once("close", () => {
      waiting -= 1;
      // Both servers answer with a list, in which messages may have errors.
      if (response.statusCode === 200 && !text.includes('"error"')) accepted += part.length;
      else fail(part, `status ${response.statusCode}: ${text.slice(0, 100)}`);
    });
  });
  sent.once("error", ({ message }) => {
    waiting -= 1;
    fail(part, message);
  });
  sent.end(body);
}

const began = performance.now();
let next = 0;
const timer = setInterval(() => {
  // Late timers are made up for.
  for (; next * INTERVAL_MS < performance.now() - began; next += 1) {
    publish(CHANNELS.filter((_, number) => number % PARTS === next % PARTS));
  }
}, INTERVAL_MS);
for await (const _ of process.stdin);
clearInterval(timer);
const rate = accepted / ((performance.now() - began) / 1000);
while (waiting > 0) await new Promise((resolve) => { setTimeout(resolve, 10); });
console.log(JSON.stringify({ published_rate: rate, failures }));
process.exit();
