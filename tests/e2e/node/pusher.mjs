// The stock clients of the Pusher protocol, told what to do line by line: `[name, call, …]` as JSON. Each answers with a
// line, and so does each event.
//
// node pusher.mjs node URL APP, or: node pusher.mjs CHROMIUM URL APP
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFile } from "node:fs/promises";

import { openBrowser } from "./browser.mjs";

const require = createRequire(import.meta.url);
const [place, url, app] = process.argv.slice(2);
const { id, key, secret } = JSON.parse(app);
const { hostname, port, protocol } = new URL(url);
const useTLS = protocol === "https:";
// A page gets the keys of its encrypted channels from the application; the server sees none.
const encryptionMasterKeyBase64 = Buffer.alloc(32, 7).toString("base64");
const Library = require("pusher");
const library = new Library({ appId: id, key, secret, host: hostname, port, useTLS, encryptionMasterKeyBase64 });
const tell = (...line) => console.log(JSON.stringify(line));

/** What an application answers at its own endpoints. */
const authorize = (socket, channel, member) => library.authorizeChannel(socket, channel, member);
const authenticate = (socket, user) => library.authenticateUser(socket, user);

/** Runs in Node or in a page: connects, and returns what acts on the client. */
function open({ Pusher, tell, authorize, authenticate }, { key, hostname, port, useTLS, user, watchlist, options }) {
  const pusher = new Pusher(key, {
    cluster: "none",
    wsHost: hostname,
    wsPort: port,
    wssPort: port,
    forceTLS: useTLS,
    enabledTransports: ["ws"],
    disableStats: true,
    channelAuthorization: {
      customHandler: ({ socketId, channelName }, done) => {
        const isMember = channelName.startsWith("presence-");
        const member = isMember ? { user_id: user, user_info: { name: `${user}!` } } : undefined;
        authorize(socketId, channelName, member).then((auth) => done(null, auth));
      },
    },
    userAuthentication: {
      customHandler: ({ socketId }, done) => {
        authenticate(socketId, { id: user, watchlist }).then((auth) => done(null, auth));
      },
    },
    ...options,
  });
  pusher.connection.bind("state_change", ({ current }) => tell("state", current));
  pusher.connection.bind("error", (error) => tell("error", error?.data?.code ?? error?.error?.data?.code ?? null));
  pusher.user.bind_global((event, data) => tell("user", event, data));
  pusher.user.watchlist.bind_global((event, data) => tell("watchlist", event, data.user_ids));
  const channels = new Map();
  return {
    subscribe(name) {
      const channel = pusher.subscribe(name);
      channels.set(name, channel);
      channel.bind_global((event, data) => {
        const members = event === "pusher:subscription_succeeded" && channel.members ? channel.members.members : data;
        tell("event", name, event, members ?? null);
      });
      channel.bind("client-typing", (_, { user_id }) => tell("by", name, user_id ?? null));
    },
    unsubscribe: (name) => pusher.unsubscribe(name),
    trigger: (name, event, data) => channels.get(name).trigger(event, data),
    signin: () => pusher.signin(),
    send: (event, data, channel) => pusher.send_event(event, data, channel),
    socket: () => tell("socket", pusher.connection.socket_id),
    disconnect: () => pusher.disconnect(),
  };
}

const clients = new Map();
let browser;

async function connect(name, { user, watchlist, options = {} }) {
  const own = (...line) => tell(name, ...line);
  const settings = { key, hostname, port: Number(port), useTLS, user, watchlist, options };
  if (place === "node") {
    const Pusher = require("pusher-js");
    const asynchronous = { authorize: async (...all) => authorize(...all), authenticate: async (...all) => authenticate(...all) };
    const client = open({ Pusher, tell: own, ...asynchronous }, settings);
    clients.set(name, (call, ...rest) => client[call](...rest));
    return;
  }
  browser ??= await openBrowser(place);
  const page = await browser.newPage();
  await page.exposeFunction("tell", own);
  await page.exposeFunction("authorize", authorize);
  await page.exposeFunction("authenticate", authenticate);
  // A page of this machine: Chromium lets no other one connect to it.
  await page.goto(`${url}/health`);
  await page.evaluate(await readFile(require.resolve("pusher-js/dist/web/pusher-with-encryption.js"), "utf8"));
  await page.evaluate(`(${open})`.replace(/^/, "globalThis.open_ = "));
  await page.evaluate((settings) => {
    const { Pusher, tell, authorize, authenticate } = globalThis;
    globalThis.client = globalThis.open_({ Pusher, tell, authorize, authenticate }, settings);
  }, settings);
  clients.set(name, (call, ...rest) => page.evaluate(({ call, rest }) => void globalThis.client[call](...rest), { call, rest }));
}

/** The library for servers: the status and the body of its answer, or that of its error. */
async function serve(call, ...rest) {
  try {
    const answer = await library[call](...rest);
    tell("library", answer.status, JSON.parse(await answer.text()));
  } catch (error) {
    tell("library", error.status ?? null, error.body ?? String(error));
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, call, ...rest] = JSON.parse(line);
  if (name === "library") await serve(call, ...rest);
  else if (call === "connect") await connect(name, ...rest);
  else await clients.get(name)(call, ...rest);
}
await browser?.close();
process.exit(0);
