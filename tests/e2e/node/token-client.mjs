// The JavaScript client with tokens, driven by lines of JSON on stdin; prints its events as lines.
// It asks for a token with the event `getToken`, and gets it as the command `token`. Runs in a page
// if there is a Chromium: node token-client.mjs URL TRANSPORT [CHROMIUM]

import { createInterface } from "node:readline";
import WebSocket from "ws";
import { importServed } from "./served-client.mjs";

const [url, transport, chromium] = process.argv.slice(2);
const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
let give;

/** Also runs in a page, so it uses nothing of this file. */
function drive(Throng, { url, transport, tell, getToken, ...options }) {
  const client = new Throng(url, { transports: [transport], getToken, ...options });
  client.on("state", (change) => tell({ event: "state", ...change }));
  client.on("error", ({ code, message }) => tell({ event: "error", code, message }));
  return {
    subscribe({ channel }) {
      const followed = client.subscribe(channel, ({ data }) => tell({ event: "message", data }));
      followed.on("gap", () => tell({ event: "gap" }));
      followed.on("error", ({ code }) => tell({ event: "refused", code }));
    },
    publish({ channel, data }) {
      const failed = ({ code, message }) => tell({ event: "unpublished", code, message });
      client.publish(channel, data).catch(failed);
    },
  };
}

const getToken = () => {
  tell({ event: "getToken" });
  return new Promise((resolve) => {
    give = resolve;
  });
};

async function inNode() {
  const { Throng } = await importServed(url);
  return drive(Throng, { url, transport, tell, getToken, WebSocket });
}

async function inPage() {
  const { openBrowser } = await import("./browser.mjs");
  const browser = await openBrowser(chromium);
  process.stdin.on("end", () => browser.close());
  const page = await browser.newPage();
  await page.exposeFunction("tell", tell);
  await page.exposeFunction("ask", getToken);
  await page.goto(`${url}/health`);
  const source = `window.drive = ${drive}`;
  await page.evaluate(source);
  await page.evaluate(
    async ({ url, transport }) => {
      const { Throng } = await import(`${url}/throng.js`);
      const { tell, ask: getToken } = window;
      window.commands = window.drive(Throng, { url, transport, tell, getToken });
    },
    { url, transport },
  );
  const run = (name) => (parameters) =>
    page.evaluate(([name, parameters]) => window.commands[name](parameters), [name, parameters]);
  return { subscribe: run("subscribe"), publish: run("publish") };
}

const commands = await (chromium ? inPage() : inNode());
createInterface({ input: process.stdin }).on("line", (line) => {
  const { command, ...parameters } = JSON.parse(line);
  if (command === "token") give(parameters.token);
  else commands[command](parameters);
});
