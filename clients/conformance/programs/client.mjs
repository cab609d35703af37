/** The JavaScript client, driven by JSON on its standard input: see clients/conformance/README.md. */

import { createInterface } from "node:readline";
import WebSocket from "../../javascript/node_modules/ws/wrapper.mjs";
import { Throng } from "../../javascript/dist/throng.js";
import { commands, toLine } from "./commands.mjs";

const work = commands(Throng, (event) => console.log(toLine(event)), { WebSocket });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  work[command.command](command);
}
process.exit(0);
