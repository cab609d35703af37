// A Node program with the `ws` package: prints one JSON line per event, sends each line of stdin.
// Usage: node ws.mjs URL [PROTOCOL]
import { createInterface } from "node:readline";
import WebSocket from "ws";

const print = (line) => console.log(JSON.stringify(line));
const [url, protocol] = process.argv.slice(2);
const socket = new WebSocket(url, protocol ? [protocol] : []);
socket.on("upgrade", (response) => print({ event: "upgrade", id: response.headers["throng-id"] }));
socket.on("open", () => print({ event: "open", protocol: socket.protocol }));
socket.on("message", (data, isBinary) =>
  print({ event: isBinary ? "binary" : "text", data: data.toString(isBinary ? "hex" : "utf8") }),
);
socket.on("ping", () => print({ event: "ping" }));
socket.on("close", (code, reason) => {
  print({ event: "close", code, reason: reason.toString() });
  process.exit(0);
});
socket.on("error", (error) => print({ event: "error", message: error.message }));
createInterface({ input: process.stdin }).on("line", (line) => socket.send(line));
