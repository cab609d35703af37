// The JavaScript client that the server serves, driven by lines of JSON on stdin. Prints its events
// as lines on stdout. Usage: node client.mjs URL TRANSPORTS OPTIONS
import { createInterface } from "node:readline";
import WebSocket from "ws";
import { importServed } from "./served-client.mjs";

const [url, transports, options] = process.argv.slice(2);
const { Throng } = await importServed(url);

const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const client = new Throng(url, {
  transports: transports.split(","),
  WebSocket,
  ...JSON.parse(options),
});
client.on("state", (change) => tell({ event: "state", ...change }));
client.on("error", ({ code }) => tell({ event: "error", code }));

const COMMANDS = {
  subscribe({ channels, ...from }) {
    for (const channel of channels) {
      const subscription = client.subscribe(channel, from, ({ data, replayed }) => {
        tell({ event: "message", channel, data, replayed });
      });
      for (const event of ["subscribed", "recovered", "gap", "error"]) {
        subscription.on(event, ({ code }) => tell({ event, channel, code }));
      }
      subscription.on("presence", ({ users, time, connections, members }) => {
        const keys = members && [...members.keys()];
        tell({ event: "presence", channel, users, time, connections, keys });
      });
    }
  },

  async publish({ channel, data }) {
    try {
      const { id, subscribers, duplicate } = await client.publish(channel, data);
      tell({ event: "published", data, id, subscribers, duplicate });
    } catch ({ code, outcome, key }) {
      tell({ event: "unpublished", data, code, outcome, key });
    }
  },
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const { command, ...parameters } = JSON.parse(line);
  COMMANDS[command](parameters);
});
tell({ event: "ready" });
