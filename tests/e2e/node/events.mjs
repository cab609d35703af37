// A page that follows a channel, listens for its events `price` and `gap` and for messages without an
// event, and prints what it gets, one JSON object per line: node events.mjs CHROMIUM URL CHANNEL. Ends
// when its input does.

import { openBrowser } from "./browser.mjs";

const [chromium, url, channel] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const page = await browser.newPage();
await page.exposeFunction("tell", (event) => console.log(JSON.stringify(event)));
await page.goto(`${url}/health`);
await page.evaluate((path) => {
  const events = new EventSource(path);
  const show = ({ type, data, lastEventId }) => tell({ type, data, lastEventId });
  for (const name of ["price", "gap", "message"]) events.addEventListener(name, show);
  events.onopen = () => tell({ type: "opened" });
}, `/channels/${channel}`);
process.stdin.resume();
await new Promise((resolve) => process.stdin.on("end", resolve));
await browser.close();
