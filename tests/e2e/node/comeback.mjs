// A page that follows a channel in three ways, and prints the messages of each, one JSON object per
// line: node comeback.mjs CHROMIUM URL CHANNEL. Ends when its input does.

import { openBrowser } from "./browser.mjs";

const [chromium, url, channel] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const page = await browser.newPage();
await page.exposeFunction("tell", (way, data) => console.log(JSON.stringify({ way, data })));
await page.goto(`${url}/health`);
await page.evaluate(
  async ({ url, channel }) => {
    const path = `/channels/${channel}`;
    const { Throng } = await import(`${url}/throng.js`);

    const events = new EventSource(path);
    events.onmessage = ({ data }) => tell("EventSource", data);

    // Of a refused WebSocket, a page sees only the code and the reason of the close.
    const open = () => {
      const socket = new WebSocket(url.replace("http", "ws") + path);
      socket.onmessage = ({ data }) => tell("WebSocket", data);
      socket.onclose = ({ reason }) => {
        const moment = /reconnect in (\d+) ms/.exec(reason);
        setTimeout(open, moment ? Number(moment[1]) : 200);
      };
    };
    open();

    const throng = new Throng(url);
    throng.subscribe(channel, ({ data }) => tell("Throng", data));
  },
  { url, channel },
);
console.log(JSON.stringify({ way: "page", data: "ready" }));
process.stdin.resume();
await new Promise((resolve) => process.stdin.on("end", resolve));
await browser.close();
