// Opens a page of the server in Chromium, which opens a WebSocket without asking for anything. Prints what
// came over it: node deflate-page.mjs CHROMIUM URL CHANNEL
import { createInterface } from "node:readline";
import { openBrowser } from "./browser.mjs";

const [chromium, url, channel] = process.argv.slice(2);
const print = (line) => console.log(JSON.stringify(line));
const browser = await openBrowser(chromium);
const page = await browser.newPage();
await page.goto(`${url}/health`);
const extensions = await page.evaluate(async (path) => {
  window.received = [];
  window.socket = new WebSocket(`ws://${location.host}${path}`);
  window.socket.onmessage = ({ data }) => window.received.push(data);
  await new Promise((resolve, reject) => {
    window.socket.onopen = resolve;
    window.socket.onclose = reject;
  });
  return window.socket.extensions;
}, `/channels/${channel}`);
print({ event: "open", extensions });
for await (const line of createInterface({ input: process.stdin })) {
  const { send, await: count } = JSON.parse(line);
  if (send) await page.evaluate((text) => window.socket.send(text), send);
  if (count) {
    await page.waitForFunction((number) => window.received.length >= number, count);
    print({ event: "received", received: await page.evaluate(() => window.received) });
  }
}
await browser.close();
