// Push servers for `throng flood` to load: a plain broadcast server with the `ws` package, and stand-ins
// for servers that cannot be installed here, as strict as their documented protocols.
// Usage: node push-servers.mjs broadcast|centrifugo|centrifugo-sse|mercure|pusher [refuse|silent]
// Prints the port. Closes a client that breaks the protocol, or leaves a ping unanswered.
import { createServer } from "node:http";
import { WebSocketServer } from "ws";

const PING_MS = 300;
// Together shorter than a test of four seconds, and longer than a busy machine takes to answer.
const UNANSWERED_MAX = 9;
const TOKEN = "secret";
const kind = process.argv[2];
// Every command is answered with an error (Centrifugo only).
const isRefusing = process.argv[3] === "refuse";
// The server never pings, and closes a client that has sent nothing for a while (Pusher only).
const isSilent = process.argv[3] === "silent";
const ACTIVITY_TIMEOUT_S = 2;
// Later than it says, for machines that are busy.
const SILENCE_MS_MAX = 4000;

// The followers of each channel: functions that take a message.
const channels = new Map();
const follow = (name, send) => {
  if (!channels.has(name)) channels.set(name, new Set());
  channels.get(name).add(send);
  return () => channels.get(name).delete(send);
};
const publish = (name, message) => channels.get(name)?.forEach((send) => send(message));

const bodyOf = async (request) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
};
const answer = (response, status, body = "") => {
  response.writeHead(status, { "Content-Length": Buffer.byteLength(body) });
  response.end(body);
};
const events = (request, response) => {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.flushHeaders();
  return (message) => response.write(`data: ${message}\n\n`);
};

async function centrifugoApi(request, response) {
  if (request.method !== "POST" || request.headers["x-api-key"] !== TOKEN) {
    return answer(response, 401);
  }
  const { channel, data } = JSON.parse(await bodyOf(request));
  if (isRefusing) return answer(response, 200, '{"error":{"code":102,"message":"no"}}');
  publish(channel, data);
  return answer(response, 200, '{"result":{}}');
}

const routes = {
  centrifugo: { "/api/publish": centrifugoApi },
  "centrifugo-sse": {
    "/api/publish": centrifugoApi,
    "/connection/uni_sse": (request, response, url) => {
      const { subs } = JSON.parse(url.searchParams.get("cf_connect"));
      const send = events(request, response);
      // A client that may not subscribe stays connected without a subscription.
      if (isRefusing) return send(JSON.stringify({ connect: { client: "c", ping: 25 } }));
      send(JSON.stringify({ connect: { client: "c", subs, ping: 25 } }));
      for (const channel of Object.keys(subs)) {
        const leave = follow(channel, (data) => {
          send(JSON.stringify({ channel, pub: { data } }));
        });
        request.on("close", leave);
      }
    },
  },
  mercure: {
    "/.well-known/mercure": async (request, response, url) => {
      if (request.method === "GET") {
        // As a hub of version 1 does; earlier versions required the header that is refused here.
        if (url.searchParams.has("topic")) return answer(response, 400, 'use "match"\n');
        const send = events(request, response);
        for (const topic of url.searchParams.getAll("match")) {
          request.on("close", follow(topic, send));
        }
        return undefined;
      }
      const form = new URLSearchParams(await bodyOf(request));
      const isForm = request.headers["content-type"] === "application/x-www-form-urlencoded";
      if (request.headers.authorization !== `Bearer ${TOKEN}`) return answer(response, 401, "no token");
      if (!isForm || !form.has("topic") || !form.has("data")) return answer(response, 400);
      publish(form.get("topic"), form.get("data"));
      return answer(response, 200, "urn:uuid:1");
    },
  },
};

// Each takes a new socket and returns its message handler.
const sockets = {
  broadcast: {
    path: "/",
    connected: (socket, server) => (text) => server.clients.forEach((each) => each.send(text)),
  },
  centrifugo: {
    path: "/connection/websocket",
    connected: (socket) => {
      let isConnected = false;
      let unanswered = 0;
      const timer = setInterval(() => {
        if (!isConnected) return undefined;
        unanswered += 1;
        return unanswered > UNANSWERED_MAX ? socket.close(3012, "no pong") : socket.send("{}");
      }, PING_MS);
      socket.on("close", () => clearInterval(timer));
      return (text) => {
        for (const line of text.split("\n")) {
          const { id, connect, subscribe } = JSON.parse(line);
          if (line === "{}") unanswered = 0;
          else if (connect) {
            isConnected = true;
            socket.send(JSON.stringify({ id, connect: { client: "c", ping: 25, pong: true } }));
          } else if (subscribe && isRefusing) {
            socket.send(JSON.stringify({ id, error: { code: 103, message: "no" } }));
          } else if (subscribe && isConnected) {
            const { channel } = subscribe;
            const push = (data) => socket.send(JSON.stringify({ push: { channel, pub: { data } } }));
            socket.on("close", follow(channel, push));
            socket.send(JSON.stringify({ id, subscribe: {} }));
          } else socket.close(3501, "bad request");
        }
      };
    },
  },
  pusher: {
    path: "/app/key",
    connected: (socket) => {
      const say = (event, more) => socket.send(JSON.stringify({ event, ...more }));
      let unanswered = 0;
      let heard = performance.now();
      const timer = setInterval(() => {
        if (isSilent) {
          const isGone = performance.now() - heard > SILENCE_MS_MAX;
          return isGone ? socket.close(4201, "no activity") : undefined;
        }
        unanswered += 1;
        if (unanswered > UNANSWERED_MAX) return socket.close(4201, "no pong");
        return say("pusher:ping", { data: {} });
      }, PING_MS);
      socket.on("close", () => clearInterval(timer));
      const timeout = isSilent ? ACTIVITY_TIMEOUT_S : 120;
      const data = JSON.stringify({ socket_id: "1.2", activity_timeout: timeout });
      say("pusher:connection_established", { data });
      return (text) => {
        heard = performance.now();
        const message = JSON.parse(text);
        if (message.event === "pusher:pong") unanswered = 0;
        else if (message.event === "pusher:ping") say("pusher:pong", { data: {} });
        else if (message.event === "pusher:subscribe") {
          const { channel } = message.data;
          const send = (event) => event.from !== socket && socket.send(event.text);
          socket.on("close", follow(channel, send));
          say("pusher_internal:subscription_succeeded", { channel, data: "{}" });
        } else if (message.event.startsWith("client-")) {
          publish(message.channel, { from: socket, text });
        } else socket.close(4000, "unknown event");
      };
    },
  },
};

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://host");
  const route = routes[kind]?.[url.pathname];
  if (route) route(request, response, url);
  else answer(response, 404);
});
const { path, connected } = sockets[kind] ?? {};
if (connected) {
  const wss = new WebSocketServer({ server, path });
  wss.on("connection", (socket) => {
    const take = connected(socket, wss);
    socket.on("message", (data) => take(data.toString()));
    socket.on("error", () => {});
  });
}
server.listen({ port: 0, host: "127.0.0.1", backlog: 4096 }, () => console.log(server.address().port));
