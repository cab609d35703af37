// A page that follows a channel with an EventSource, and prints what comes, one JSON object per
// line, until the browser has given up for good: node ended.mjs CHROMIUM URL CHANNEL.

import { openBrowser } from "./browser.mjs";

const [chromium, url, channel] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const page = await browser.newPage();
const tell = (what, data) => console.log(JSON.stringify({ what, data }));
await page.exposeFunction("tell", tell);
await page.goto(`${url}/health`);
tell("page", "ready");
await page.evaluate(async (channel) => {
  const events = new EventSource(`/channels/${channel}`);
  events.onmessage = ({ data }) => window.tell("message", data);
  events.addEventListener("ended", ({ data }) => window.tell("ended", data));
  await new Promise((resolve) => {
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) resolve();
    };
  });
}, channel);
tell("page", "closed");
await browser.close();
