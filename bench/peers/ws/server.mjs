// A broadcast server with the package `ws`. Messages from clients, and posted bodies, go to all.
// Usage: node server.mjs PORT FOLDER-OF-WS [CERTIFICATE KEY]
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { createRequire } from "node:module";

const BACKLOG = 65535;
const [port, folder, certificate, key] = process.argv.slice(2);
const { WebSocketServer } = createRequire(import.meta.url)(folder);

const answer = (request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    publish(Buffer.concat(parts));
    response.end();
  });
};
const server = certificate
  ? createTlsServer({ cert: readFileSync(certificate), key: readFileSync(key) }, answer)
  : createServer(answer);
const sockets = new WebSocketServer({ server, perMessageDeflate: false });
// A buffer is not encoded again for each client.
const publish = (data) => sockets.clients.forEach((each) => each.send(data, { binary: false }));
sockets.on("connection", (socket) => {
  socket.on("message", publish);
  socket.on("error", () => {});
});
server.listen({ port: Number(port), host: "127.0.0.1", backlog: BACKLOG });
