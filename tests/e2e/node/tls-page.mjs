// A page over https in a real Chromium follows a channel over all transports and publishes to it; exit code
// 0 means success. Usage: node tls-page.mjs CHROMIUM URL CHANNEL [FLAGS]
import assert from "node:assert/strict";
import { openBrowser } from "./browser.mjs";

const [chromium, url, channel, ...flags] = process.argv.slice(2);
const browser = await openBrowser(chromium, flags);
// The certificate is the test's own.
const context = await browser.newContext({ ignoreHTTPSErrors: true });
const page = await context.newPage();
await page.goto(`${url}/health`);
const found = await page.evaluate(async (path) => {
  const opened = (target) =>
    new Promise((resolve, reject) => {
      target.onopen = resolve;
      target.onerror = () => reject(new Error(`${target.url} did not open`));
    });
  const message = (target) =>
    new Promise((resolve) => {
      target.onmessage = ({ data }) => resolve(data);
    });
  const publish = (body) => fetch(path, { method: "POST", body });
  const { id } = await (await publish("before")).json();

  const events = new EventSource(path);
  const sse = message(events);
  await opened(events);
  const socket = new WebSocket(path);
  const websocket = message(socket);
  await opened(socket);
  const reader = (await fetch(path)).body.pipeThrough(new TextDecoderStream()).getReader();
  const stream = reader.read().then(({ value }) => value.trim());
  const poll = fetch(`${path}?wait=25&since=${id}`).then((response) => response.text());
  await publish("from a page");
  return Promise.all([sse, websocket, stream, poll, window.isSecureContext]);
}, `/channels/${channel}`);
assert.deepEqual(found, [...Array(4).fill("from a page"), true]);
await browser.close();
