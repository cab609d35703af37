// A page in Chromium that tries to use a server with the visitor's cookie: node cookies.mjs CHROMIUM
// PAGE SERVER CHANNEL COOKIE SAME_SITE [QUERY...]. Prints one JSON object: the outcome of each try, once
// it is known that the cookie was sent with these queries.

import { setTimeout as delay } from "node:timers/promises";
import { openBrowser, TIMEOUT_MS } from "./browser.mjs";

const [chromium, pageUrl, serverUrl, channel, cookie, sameSite, ...expected] =
  process.argv.slice(2);
const browser = await openBrowser(chromium);
const context = await browser.newContext();
await context.addCookies([
  {
    ...{ name: "session", value: cookie, url: serverUrl, httpOnly: true },
    // A cookie for pages of other sites must be `Secure`; loopback counts as secure.
    ...{ sameSite, secure: sameSite === "None" },
  },
]);
const page = await context.newPage();
/** The statuses of the server's responses, and the requests that had the cookie. */
const statuses = {};
page.on("response", (response) => {
  const { pathname, search } = new URL(response.url());
  if (response.url().startsWith(serverUrl)) statuses[pathname + search] = response.status();
});
const session = await context.newCDPSession(page);
await session.send("Network.enable");
const queries = new Map();
const withCookie = new Set();
session.on("Network.requestWillBeSent", ({ requestId, request }) => {
  queries.set(requestId, new URL(request.url).search);
});
session.on("Network.requestWillBeSentExtraInfo", ({ requestId, headers }) => {
  const isNamed = Object.keys(headers).some((each) => each.toLowerCase() === "cookie");
  if (isNamed) withCookie.add(requestId);
});
await page.goto(pageUrl);
const { outcomes, closeCode } = await page.evaluate(
  async ({ serverUrl, channel }) => {
    const url = `${serverUrl}/channels/${channel}`;
    const outcomes = {};
    let closeCode;

    outcomes.websocket = await new Promise((resolve) => {
      const socket = new WebSocket(`${url.replace("http", "ws")}?history=1`);
      socket.onmessage = ({ data }) => resolve(data);
      socket.onclose = ({ code }) => {
        closeCode = code;
        resolve(null);
      };
      socket.onopen = () => socket.send("over a WebSocket");
    });

    outcomes.events = await new Promise((resolve) => {
      const events = new EventSource(`${url}?history=1&_=events`, { withCredentials: true });
      events.onmessage = ({ data }) => resolve(data);
      events.onerror = () => resolve(null);
    });

    const text = async (path, init) => {
      try {
        const response = await fetch(path, { credentials: "include", ...init });
        return response.ok ? await response.text() : null;
      } catch {
        return null;
      }
    };
    outcomes.get = await text(`${url}?history=1&wait=0&_=get`);
    outcomes.post = await text(`${url}?_=post`, { method: "POST", body: "by fetch" });
    // As a form does: without a preflight, and without reading the response.
    await text(`${url}?_=form`, { method: "POST", mode: "no-cors", body: "by a form" });
    await new Promise((resolve) => {
      const image = new Image();
      image.onload = image.onerror = resolve;
      image.src = `${url}?history=1&wait=0&_=image`;
    });
    return { outcomes, closeCode };
  },
  { serverUrl, channel },
);
// The events about one request come in any order, and after what the page has seen of it.
const sentWithCookie = () => [...withCookie].map((requestId) => queries.get(requestId));
const deadline = Date.now() + TIMEOUT_MS;
while (!expected.every((query) => sentWithCookie().includes(query)) && Date.now() < deadline) {
  await delay(20);
}
const sent = sentWithCookie();
console.log(JSON.stringify({ outcomes, closeCode, statuses, sent }));
await browser.close();
