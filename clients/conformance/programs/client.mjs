/** The JavaScript client, driven by JSON on its standard input: see clients/conformance/README.md. */

import { createInterface } from "node:readline";
import WebSocket from "../../javascript/node_modules/ws/wrapper.mjs";
import { Throng } from "../../javascript/dist/throng.js";
import { commands } from "./commands.mjs";

/** Prints an event; without data that has more levels than `JSON.stringify` can write. */
function print(event) {
  try {
    console.log(JSON.stringify(event));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    console.log(JSON.stringify({ ...event, data: null }));
  }
}

const work = commands(Throng, print, { WebSocket });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  work[command.command](command);
}
process.exit(0);
