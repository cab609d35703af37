// Laravel Echo over `pusher-js`, and an application like Laravel's: its endpoint /broadcasting/auth, and the library that
// publishes. Told what to do line by line: `[name, call, …]` as JSON. Each event is a line.
//
// node echo.mjs node URL APP, or: node echo.mjs CHROMIUM URL APP
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFile } from "node:fs/promises";

import { openBrowser } from "./browser.mjs";

const require = createRequire(import.meta.url);
const [place, url, app] = process.argv.slice(2);
const { id, key, secret } = JSON.parse(app);
const { hostname, port } = new URL(url);
const Library = require("pusher");
const library = new Library({ appId: id, key, secret, host: hostname, port, useTLS: false });
const tell = (...line) => console.log(JSON.stringify(line));

/** Who may follow what: everybody everything, but for two channels. */
const endpoint = createServer(async (request, response) => {
  const headers = { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*" };
  let body = "";
  for await (const part of request) body += part;
  if (request.method === "OPTIONS") return response.writeHead(204, headers).end();
  const fields = new URLSearchParams(body);
  const [socket, channel] = [fields.get("socket_id"), fields.get("channel_name")];
  if (channel === "private-forbidden") return response.writeHead(403, headers).end("{}");
  const user = new URL(request.url, "http://localhost").searchParams.get("user");
  const member = channel.startsWith("presence-") ? { user_id: user, user_info: { name: `${user}!` } } : undefined;
  const answer = library.authorizeChannel(socket, channel, member);
  if (channel === "private-forged") answer.auth = `${key}:${"0".repeat(64)}`;
  response.writeHead(200, { ...headers, "Content-Type": "application/json" }).end(JSON.stringify(answer));
});
await new Promise((done) => endpoint.listen(0, "127.0.0.1", done));
const authEndpoint = (user) => `http://127.0.0.1:${endpoint.address().port}/broadcasting/auth?user=${user}`;

/** Runs in Node or in a page: connects, and returns what acts on the client. */
function open({ Echo, Pusher, tell }, { key, hostname, port, authEndpoint }) {
  const echo = new Echo({
    broadcaster: "reverb",
    Pusher,
    key,
    wsHost: hostname,
    wsPort: port,
    wssPort: port,
    forceTLS: false,
    enabledTransports: ["ws", "wss"],
    authEndpoint,
  });
  const follow = (channel, name, event) =>
    channel
      .subscribed(() => tell("subscribed", name))
      .error((error) => tell("error", name, error?.status ?? null))
      .listen(event, (data) => tell("heard", name, event, data));
  return {
    channel: (name, event) => void follow(echo.channel(name), name, event),
    private(name, event) {
      const channel = follow(echo.private(name), name, event);
      channel.listenForWhisper("typing", (data) => tell("whisper", name, data));
      channel.notification((notification) => tell("notification", name, notification));
    },
    join(name) {
      const channel = echo.join(name);
      channel.here((users) => tell("here", name, users));
      channel.joining((user) => tell("joining", name, user));
      channel.leaving((user) => tell("leaving", name, user));
    },
    listen: (name, event) => void echo.join(name).listen(event, (data) => tell("heard", name, event, data)),
    whisper: (name, data) => void echo.private(name).whisper("typing", data),
    leave: (name) => echo.leave(name),
    socket: () => tell("socket", echo.socketId()),
    disconnect: () => echo.disconnect(),
  };
}

const clients = new Map();
let browser;

async function connect(name) {
  const own = (...line) => tell(name, ...line);
  const settings = { key, hostname, port: Number(port), authEndpoint: authEndpoint(name) };
  if (place === "node") {
    const { default: Echo } = await import("laravel-echo");
    const client = open({ Echo, Pusher: require("pusher-js"), tell: own }, settings);
    clients.set(name, (call, ...rest) => client[call](...rest));
    return;
  }
  browser ??= await openBrowser(place);
  const page = await browser.newPage();
  await page.exposeFunction("tell", own);
  // A page of this machine: Chromium lets no other one connect to it.
  await page.goto(`${url}/health`);
  for (const file of ["pusher-js/dist/web/pusher.js", "laravel-echo/iife"]) {
    await page.evaluate(await readFile(require.resolve(file), "utf8"));
  }
  await page.evaluate(`(${open})`.replace(/^/, "globalThis.open_ = "));
  await page.evaluate((settings) => {
    const { Echo, Pusher, tell } = globalThis;
    globalThis.client = globalThis.open_({ Echo: Echo.default, Pusher, tell }, settings);
  }, settings);
  clients.set(name, (call, ...rest) =>
    page.evaluate(({ call, rest }) => void globalThis.client[call](...rest), { call, rest }),
  );
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, call, ...rest] = JSON.parse(line);
  if (name === "library") tell("library", (await library[call](...rest)).status);
  else if (call === "connect") await connect(name);
  else await clients.get(name)(call, ...rest);
}
await browser?.close();
process.exit(0);
