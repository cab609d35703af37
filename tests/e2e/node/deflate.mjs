// A Node program with the `ws` package that prints for each message its length, a hash, and how many bytes
// have come over the socket; and sends each line of stdin 100 times over, compressed.
// Usage: node deflate.mjs URL
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import WebSocket from "ws";

const print = (line) => console.log(JSON.stringify(line));
// `ws` compresses what it sends from `threshold` bytes on.
const socket = new WebSocket(process.argv[2], { perMessageDeflate: { threshold: 100 } });
socket.on("open", () => print({ event: "open", extensions: socket.extensions }));
socket.on("message", (data) =>
  print({
    event: "message",
    length: data.length,
    hash: createHash("sha256").update(data).digest("hex"),
    bytesRead: socket._socket.bytesRead,
  }),
);
socket.on("close", (code) => print({ event: "close", code }));
socket.on("error", (error) => print({ event: "error", message: error.message }));
createInterface({ input: process.stdin }).on("line", (line) => socket.send(line.repeat(100)));
