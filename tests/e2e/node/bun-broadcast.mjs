// A broadcast server on Bun's own WebSocket: what one client says goes to all.
// Usage: bun run bun-broadcast.mjs PORT
Bun.serve({
  hostname: "127.0.0.1",
  port: Number(process.argv[2]),
  fetch: (request, server) =>
    server.upgrade(request) ? undefined : new Response("a WebSocket only", { status: 426 }),
  websocket: {
    open: (socket) => socket.subscribe("all"),
    message: (socket, text) => {
      // `publish` leaves the sender out.
      socket.publish("all", text);
      socket.send(text);
    },
  },
});
