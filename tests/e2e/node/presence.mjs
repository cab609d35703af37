// A page that follows a channel with its presence events, and prints what it gets, one JSON object
// per line: node presence.mjs CHROMIUM URL CHANNEL. Ends when its input does.

import { openBrowser } from "./browser.mjs";

const [chromium, url, channel] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const page = await browser.newPage();
await page.exposeFunction("tell", (event) => console.log(JSON.stringify(event)));
await page.goto(`${url}/health`);
await page.evaluate((path) => {
  const events = new EventSource(path);
  events.addEventListener("presence", ({ data, lastEventId }) => {
    tell({ ...JSON.parse(data), lastEventId });
  });
  events.onmessage = ({ data, lastEventId }) => tell({ data, lastEventId });
}, `/channels/${channel}?presence=true&user=page`);
process.stdin.resume();
await new Promise((resolve) => process.stdin.on("end", resolve));
await browser.close();
