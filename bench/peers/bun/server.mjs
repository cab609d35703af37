// A broadcast server with Bun's own WebSocket. Messages from clients, and posted bodies, go to all.
// Usage: bun run server.mjs PORT [CERTIFICATE KEY]
const [port, certificate, key] = process.argv.slice(2);
const server = Bun.serve({
  hostname: "127.0.0.1",
  port: Number(port),
  tls: certificate && { cert: Bun.file(certificate), key: Bun.file(key) },
  async fetch(request) {
    if (request.method === "POST") {
      server.publish("all", await request.text());
      return new Response();
    }
    const isUpgraded = server.upgrade(request);
    return isUpgraded ? undefined : new Response("only WebSockets", { status: 426 });
  },
  websocket: {
    idleTimeout: 0,
    sendPings: false,
    perMessageDeflate: false,
    open: (socket) => socket.subscribe("all"),
    message: (socket, text) => server.publish("all", text),
  },
});
