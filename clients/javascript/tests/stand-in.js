/**
 * A small in-memory server with Throng's protocol (docs/reference) for one test. It can inject
 * faults: lost connections, a lost log, transports that fail.
 */

import { createReadStream } from "node:fs";
import { createServer } from "node:http";
import { once } from "node:events";
import { WebSocketServer } from "ws";

/** Messages kept per channel. */
const KEPT = 100;

const TYPES = { js: "text/javascript", css: "text/css", html: "text/html", svg: "image/svg+xml" };
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
  "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'";

export class StandIn {
  /** The faults to inject. */
  faults = {};
  /** Returns the receipt of a publish by a request that prefers one; without it, there are none. */
  receipt = undefined;
  heartbeatSeconds = 25;
  /** Whether there are presence events. */
  hasPresenceEvents = false;
  /** Limit of channels per connection; in the welcome, without `faults.silentLimits`. */
  channelsMax = 128;
  /** Limit of bytes per message; in the welcome. */
  messageBytesMax = 65_536;
  /** Whether it is of a version that knows neither compact messages nor lists of channels. */
  isOld = false;
  /** The messages of one frame, which waits until it has so many or is flushed. */
  frameMessages = 1;
  /** Whether frames with messages ask when the client has handled them. */
  asks = false;
  /** The valid tokens; undefined for a server that asks for none. */
  tokens = undefined;
  /** Keys that no token grants, and whether tokens grant histories. */
  denied = new Set();
  grantsHistory = true;
  /** All requests, as "METHOD path?query". */
  requests = [];
  #logs = new Map();
  #epoch = "e1";
  #keys = new Map();
  /** The time of the newest presence event, by key. */
  #seen = new Map();
  #connections = new Set();
  /** The numbers of channels in compact messages, by key. */
  #numbers = new Map();
  #names = 0;
  #http;
  #sockets = new WebSocketServer({ noServer: true, handleProtocols: () => "throng.v1" });

  static async start(port = 0, files = {}) {
    const server = new StandIn();
    server.files = files;
    await server.listen(port);
    return server;
  }

  async listen(port) {
    this.#http = createServer((request, response) => {
      this.#serve(request, response).catch((error) => {
        refuse(response, error.status ?? 500, error.code ?? "internal", error.message);
      });
    });
    this.#http.on("upgrade", (request, socket, head) => this.#upgrade(request, socket, head));
    this.#http.listen(port, "127.0.0.1");
    await once(this.#http, "listening");
    this.port = this.#http.address().port;
    this.url = `http://127.0.0.1:${this.port}`;
  }

  /** Stops listening and closes all connections. Keeps the logs for the next `listen`. */
  async stop() {
    const closed = once(this.#http, "close");
    this.#http.close();
    this.cut();
    await closed;
  }

  /** Breaks all connections, without close frames. */
  cut() {
    for (const socket of this.#sockets.clients) socket.terminate();
    this.#http.closeAllConnections();
  }

  /** Closes all WebSockets with a code. */
  closeSockets(code, reason) {
    for (const socket of this.#sockets.clients) socket.close(code, reason);
  }

  /** Lets a token expire. Closes its connections as a server does. */
  expire(token) {
    this.tokens.delete(token);
    for (const connection of this.#connections) {
      if (connection.token === token) connection.end?.(4002, "token_expired", "the token has expired");
    }
  }

  /** Notifies the WebSockets with this token that it expires soon. */
  announce(token) {
    for (const { token: other, peer } of this.#connections) {
      if (other === token) peer?.send(JSON.stringify({ type: "expiring", expires_in: 9 }));
    }
  }

  /** Ends all streams with a last event, and closes all WebSockets, with this code. */
  end(closeCode, code, message) {
    for (const connection of this.#connections) connection.end?.(closeCode, code, message);
  }

  #checkToken(token) {
    if (!this.tokens || this.tokens.has(token)) return;
    if (token === undefined) fail(401, "unauthorized", "this needs a token");
    fail(401, "invalid_token", "the token is not valid");
  }

  #checkKey(key) {
    if (this.denied.has(key)) fail(403, "forbidden", "the token does not grant this");
  }

  loseLogs() {
    this.#epoch = `e${Number(this.#epoch.slice(1)) + 1}`;
    this.#logs.clear();
  }

  /** Sends the frames that wait for more messages. */
  flush() {
    for (const connection of this.#connections) connection.flush?.();
  }

  /** Sends an item to all that follow the key: messages that were skipped, or a volatile message. */
  sendItem(key, ...rest) {
    for (const connection of this.#connections) {
      if (connection.keys.has(key)) connection.item?.([this.#number(key), ...rest]);
    }
  }

  /** Sends a frame to all WebSockets. */
  send(frame) {
    for (const { peer } of this.#connections) peer?.send(JSON.stringify(frame));
  }

  #number(key) {
    if (!this.#numbers.has(key)) this.#numbers.set(key, 10 + this.#numbers.size);
    return this.#numbers.get(key);
  }

  /** The number of open WebSockets. */
  get sockets() {
    return this.#sockets.clients.size;
  }

  /** The keys that each connection follows. */
  get followed() {
    return [...this.#connections].flatMap(({ keys }) => [...keys]);
  }

  publish(key, { data, encoding, content_type, volatile }, idempotencyKey, except) {
    if (volatile) {
      if (idempotencyKey) fail(400, "bad_request", "a volatile message has no idempotency key");
      const isFor = (connection) => connection.keys.has(key) && connection.name !== except;
      return { volatile, subscribers: [...this.#connections].filter(isFor).length };
    }
    const known = this.#keys.get(`${key} ${idempotencyKey}`);
    if (idempotencyKey && known) return { ...known, duplicate: true };
    const log = this.#log(key);
    log.head += 1;
    const [kind, name] = split(key);
    const id = `${this.#epoch}-${log.head}`;
    const envelope = { type: "message", [kind]: name, id, time: Date.now(), data };
    if (encoding) envelope.encoding = encoding;
    if (content_type) envelope.content_type = content_type;
    log.messages.push({ offset: log.head, envelope });
    if (log.messages.length > KEPT) log.messages.shift();
    let subscribers = 0;
    for (const connection of [...this.#connections]) {
      if (!connection.keys.has(key) || connection.name === except) continue;
      subscribers += 1;
      connection.deliver(envelope, log.head);
    }
    const answer = { id, subscribers };
    if (idempotencyKey) this.#keys.set(`${key} ${idempotencyKey}`, answer);
    return answer;
  }

  /** The start of a subscription, its backlog, and whether that is complete. */
  follow(key, since, history = 0) {
    const log = this.#log(key);
    const first = log.messages[0]?.offset ?? log.head + 1;
    let from = log.head - Math.min(history, log.messages.length);
    let recovered;
    if (since) {
      const offset = this.#offset(since);
      recovered = offset !== undefined && offset >= first - 1 && offset <= log.head;
      from = recovered ? offset : first - 1;
    }
    const backlog = log.messages.filter(({ offset }) => offset > from);
    return { from, id: `${this.#epoch}-${from}`, recovered, backlog };
  }

  #offset(id) {
    const [, epoch, offset] = /^(\w+)-(\d+)$/.exec(id) ?? fail(400, "bad_id", `bad id ${id}`);
    return epoch === this.#epoch ? Number(offset) : undefined;
  }

  #log(key) {
    if (!this.#logs.has(key)) this.#logs.set(key, { head: 0, messages: [] });
    return this.#logs.get(key);
  }

  async #serve(request, response) {
    const url = new URL(request.url, this.url);
    this.requests.push(`${request.method} ${url.pathname}${url.search}`);
    const fault = this.faults.request?.(request, response);
    if (fault === true) return;
    if (url.pathname in this.files) return this.#file(url.pathname, response);
    if (url.pathname === "/health") return response.end("ok");
    const token = /^Bearer (.+)$/.exec(request.headers.authorization ?? "")?.[1];
    this.#checkToken(token);
    if (url.pathname === "/subscribe" && request.method === "GET") {
      return this.#subscribe(request, url, response, token);
    }
    const { key, part } = placeOf(url);
    if (!key) return refuse(response, 404, "not_found", "there is nothing here");
    this.#checkKey(key);
    if (request.method === "HEAD") {
      return response.writeHead(200, { "Throng-Id": this.follow(key).id }).end();
    }
    if (part === "history") {
      if (!this.grantsHistory) fail(403, "forbidden", "the token does not grant this");
      return json(response, 200, this.#history(key, url));
    }
    if (part === "presence") return json(response, 200, this.#presence(key));
    if (request.method === "POST") return this.#post(key, request, response);
    refuse(response, 405, "method_not_allowed", "not here");
  }

  #file(path, response) {
    const file = this.files[path];
    response.setHeader("Content-Type", TYPES[file.split(".").pop()] ?? "text/plain");
    response.setHeader("Content-Security-Policy", POLICY);
    createReadStream(file).pipe(response);
  }

  #history(key, url) {
    const limit = Number(url.searchParams.get("limit") ?? 100);
    const after = url.searchParams.get("after");
    const before = url.searchParams.get("before");
    const [kind, name] = split(key);
    const log = this.#log(key);
    let { messages } = log;
    let recovered;
    if (after) ({ backlog: messages, recovered } = this.follow(key, after));
    if (before) messages = messages.filter(({ offset }) => offset < this.#offset(before));
    const page = after ? messages.slice(0, limit) : messages.slice(-limit);
    return {
      ...{ [kind]: name, id: `${this.#epoch}-${log.head}`, recovered },
      ...{ messages: page.map(({ envelope }) => envelope), more: page.length < messages.length },
    };
  }

  #presence(key) {
    const [kind, name] = split(key);
    const here = [...this.#connections].filter(({ keys }) => keys.has(key));
    const users = [...new Set(here.flatMap(({ user }) => user ?? []))].sort();
    return { [kind]: name, connections: here.length, users, more: false };
  }

  /** The presence event for a client that begins to follow a channel. */
  #presenceState(key) {
    const time = this.#seen.get(key) ?? Date.now();
    this.#seen.set(key, time);
    return { type: "presence", ...this.#presence(key), time };
  }

  /** Tells the connections with presence events of a channel who is there. */
  #tellPresence(key) {
    this.#seen.set(key, Math.max(Date.now(), 1 + (this.#seen.get(key) ?? 0)));
    const state = this.#presenceState(key);
    for (const { watched, tell } of [...this.#connections]) {
      if (watched?.has(key)) tell({ ...state, joined: state.users, left: [] });
    }
  }

  async #post(key, request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const type = request.headers["content-type"] ?? "";
    let message = { data: body.toString() };
    if (type === "application/json") message = { data: JSON.parse(message.data) };
    if (type === "application/octet-stream") {
      message = { data: body.toString("base64"), encoding: "base64", content_type: type };
    }
    const { "idempotency-key": idempotencyKey, "throng-exclude": except } = request.headers;
    if (/[?&]volatile=true/.test(request.url)) message.volatile = true;
    const answer = this.publish(key, message, idempotencyKey, except);
    const receipt = request.headers.prefer && await this.receipt?.(request);
    if (receipt && !answer.duplicate) answer.receipt = receipt;
    if (this.faults.answer?.(request) === false) return request.socket.destroy();
    json(response, answer.duplicate ? 200 : 201, answer);
  }

  #subscribe(request, url, response, token) {
    const parameters = url.searchParams;
    if (this.isOld && parameters.get("envelope") === "compact") {
      fail(400, "bad_parameter", "the parameter `envelope` must be `true` or `false`");
    }
    if (!parameters.has("channel") && !parameters.has("user")) {
      fail(400, "bad_parameter", "name a channel");
    }
    const user = parameters.get("user") ?? undefined;
    const keys = parameters.getAll("channel").map((name) => `channel ${name}`);
    if (user) keys.push(`user ${user}`);
    for (const key of keys) this.#checkKey(key);
    const since = parameters.get("since")?.split(",");
    if (since && since.length !== keys.length) fail(400, "bad_id", "an id for each channel");
    const presence = parameters.get("presence")?.split(",") ?? [];
    if (presence.length > 0 && !this.hasPresenceEvents) fail(400, "bad_request", "no presence events");
    const channels = keys.length - (user ? 1 : 0);
    if (![0, channels].includes(presence.length)) fail(400, "bad_parameter", "one value each");
    const count = keys.length + presence.filter((value) => value !== "false").length;
    if (count > this.channelsMax) fail(400, "too_many_channels", "too many");
    const starts = keys.map((key, index) => this.follow(key, since?.[index]));
    const connection = this.#connect(user, keys);
    response.on("close", () => this.#connections.delete(connection));
    if (parameters.get("transport") !== "poll") {
      for (const key of keys) this.#tellPresence(key);
      response.on("close", () => keys.forEach((key) => this.#tellPresence(key)));
    }
    const watched = keys.filter((_, index) => (presence[index] ?? "false") !== "false");
    connection.watched = new Set(watched);
    const unknown = watched
      .map((key) => this.#presenceState(key))
      .filter(({ time }) => !presence.includes(String(time)));
    const backlog = starts.flatMap(({ backlog }) => backlog.map(({ envelope }) => envelope));
    const offsets = new Map(keys.map((key, index) => [key, starts[index].from]));
    const ids = () => keys.map((key) => `${this.#epoch}-${offsets.get(key)}`).join(",");
    const recovered = starts.every((start) => start.recovered !== false);
    response.setHeader("Throng-Id", ids());
    if (since) response.setHeader("Throng-Recovered", String(recovered));
    const advance = (envelope) => {
      const [, offset] = envelope.id.split("-");
      offsets.set(keyOf(envelope), Number(offset));
    };
    if (parameters.get("transport") === "poll") {
      const begin = [...unknown, ...backlog];
      return this.#poll(connection, Number(parameters.get("wait")), begin, response, (sent) => {
        sent.filter(({ id }) => id).forEach(advance);
        return ids();
      });
    }
    connection.token = token;
    connection.end = (close_code, code, message) => {
      this.#connections.delete(connection);
      const data = JSON.stringify({ type: "closed", code, close_code, message });
      response.end(`event: closed\ndata: ${data}\n\n`);
    };
    response.setHeader("Throng-Connection", connection.name);
    response.setHeader("Content-Type", "text/event-stream");
    response.flushHeaders();
    if (since) response.write(`event: resumed\ndata: ${JSON.stringify({ recovered })}\n\n`);
    connection.deliver = (envelope) => {
      advance(envelope);
      response.write(`id: ${ids()}\ndata: ${JSON.stringify(envelope)}\n\n`);
    };
    connection.tell = (event) => {
      response.write(`event: presence\ndata: ${JSON.stringify(event)}\n\n`);
    };
    unknown.forEach(connection.tell);
    for (const envelope of backlog) connection.deliver(envelope);
  }

  #poll(connection, waitSeconds, backlog, response, advance) {
    const answer = (envelopes) => {
      clearTimeout(timer);
      this.#connections.delete(connection);
      response.setHeader("Throng-Id", advance(envelopes));
      response.statusCode = envelopes.length > 0 ? 200 : 204;
      response.end(envelopes.map((envelope) => JSON.stringify(envelope)).join("\n"));
    };
    const timer = setTimeout(() => answer([]), waitSeconds * 1_000);
    response.on("close", () => clearTimeout(timer));
    connection.deliver = connection.tell = (envelope) => answer([envelope]);
    if (backlog.length > 0) answer(backlog);
  }

  #connect(user, keys) {
    const connection = { name: `c${++this.#names}`, user, keys: new Set(keys) };
    this.#connections.add(connection);
    return connection;
  }

  #upgrade(request, socket, head) {
    const url = new URL(request.url, this.url);
    this.requests.push(`UPGRADE ${url.pathname}${url.search}`);
    if (this.faults.upgrade === "hang") return socket.resume().on("end", () => socket.destroy());
    if (this.faults.upgrade === "refuse") return socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    const isCompact = url.searchParams.get("envelope") === "compact";
    const isTimed = url.searchParams.get("time") === "true";
    if (isCompact && this.isOld) return socket.end("HTTP/1.1 400 Bad Request\r\n\r\n");
    this.#sockets.handleUpgrade(request, socket, head, (peer) => {
      if (this.faults.full) return peer.close(1013, this.faults.full);
      const user = url.searchParams.get("user") ?? undefined;
      const offered = (request.headers["sec-websocket-protocol"] ?? "").split(/ *, */);
      const token = offered.find((item) => item.startsWith("throng.token."))?.slice(13);
      try {
        this.#checkToken(token);
      } catch ({ message }) {
        return peer.close(4003, message);
      }
      this.#attend(peer, { user, token, isCompact, isTimed });
    });
  }

  #attend(peer, { user, token, isCompact, isTimed }) {
    const connection = Object.assign(this.#connect(user, []), { peer, token });
    connection.end = (code, _, message) => peer.close(code, message);
    const send = (frame) => peer.send(JSON.stringify(frame));
    connection.watched = new Set();
    peer.on("close", () => {
      this.#connections.delete(connection);
      for (const key of connection.keys) this.#tellPresence(key);
    });
    connection.deliver = connection.tell = send;
    if (isCompact) this.#compact(connection, isTimed);
    const { channelsMax, messageBytesMax } = this;
    const named = { channels_max: channelsMax, max_message_bytes: messageBytesMax };
    const limits = this.faults.silentLimits ? {} : named;
    const heartbeat = this.heartbeatSeconds;
    send({ type: "welcome", connection: connection.name, heartbeat, ...limits });
    if (user) {
      connection.keys.add(`user ${user}`);
      const number = isCompact ? this.#number(`user ${user}`) : undefined;
      send({ type: "subscribed", user, id: this.follow(`user ${user}`).id, number });
    }
    peer.on("message", (text) => {
      if (this.faults.deaf) return;
      const frame = JSON.parse(text);
      this.requests.push(`FRAME ${text}`);
      try {
        this.#answer(connection, frame, send, peer);
      } catch ({ code, message }) {
        send({ type: "error", code, message, ref: frame.ref });
      }
    });
  }

  /** Messages go to this connection as items of frames. */
  #compact(connection, isTimed) {
    let items = [];
    connection.item = (item) => {
      items.push(item);
      if (items.length >= this.frameMessages) connection.flush();
    };
    connection.flush = () => {
      if (items.length > 0) connection.peer.send(JSON.stringify([this.asks ? 1 : 0, ...items]));
      items = [];
    };
    connection.deliver = (envelope) => {
      const { id, time, data, encoding, content_type } = envelope;
      // A compact message without data would be another item.
      if (data === undefined) return connection.peer.send(JSON.stringify(envelope));
      const more = encoding || content_type ? [{ encoding, content_type }] : [];
      const offset = Number(id.split("-")[1]);
      connection.item([this.#number(keyOf(envelope)), offset, data, ...(isTimed ? [time] : []), ...more]);
    };
  }

  /** Answers a command for a list of channels in one frame. */
  #answerMany(connection, { channels, ...command }, send, peer) {
    if (this.isOld || !/^(un)?subscribe$/.test(command.type)) fail(400, "bad_request", "no lists");
    const answers = [];
    const later = [];
    for (const entry of channels) {
      const own = typeof entry === "string" ? { channel: entry } : entry;
      const { channel, user } = own;
      const collect = ({ type, ref, ...frame }) => {
        if (type.endsWith("subscribed")) answers.push(frame);
        else later.push({ type, ...frame });
      };
      try {
        this.#answer(connection, { ...command, ...own }, collect, peer, (each) => later.push(each));
      } catch ({ code, message }) {
        answers.push({ channel, user, error: { code, message } });
      }
    }
    send({ type: `${command.type}d`, channels: answers, ref: command.ref });
    for (const each of later) each.type === "message" ? connection.deliver(each) : send(each);
  }

  #answer(connection, frame, send, peer, deliver = (envelope) => connection.deliver(envelope)) {
    const { type, ref } = frame;
    if (frame.channels) return this.#answerMany(connection, frame, send, peer);
    if (type === "ack") return;
    const place = frame.user === undefined ? { channel: frame.channel } : { user: frame.user };
    const key = keyOf(place);
    if (type === "ping") return send({ type: "pong", ref });
    if (type === "auth") return this.#authenticate(connection, frame, send);
    if (type === "unsubscribe") {
      if (!connection.keys.delete(key)) fail(400, "not_subscribed", "not subscribed");
      connection.watched.delete(key);
      this.#tellPresence(key);
      return send({ type: "unsubscribed", ...place, ref });
    }
    if (type === "subscribe") {
      if (connection.keys.has(key)) fail(400, "already_subscribed", "subscribed already");
      if (place.channel === "forbidden") fail(403, "forbidden", "not for you");
      this.#checkKey(key);
      if (frame.presence && !this.hasPresenceEvents) fail(400, "bad_request", "no presence events");
      if (this.faults.subscribe?.(place)) fail(429, "too_many_requests", "too many for one user");
      if (connection.keys.size >= this.channelsMax) fail(400, "too_many_channels", "too many");
      const { id, recovered, backlog } = this.follow(key, frame.since, frame.history);
      const head = backlog.at(-1)?.envelope.id;
      connection.keys.add(key);
      const number = connection.item && this.#number(key);
      send({ type: "subscribed", ...place, id, head, recovered, number, ref });
      this.#tellPresence(key);
      if (frame.presence) {
        connection.watched.add(key);
        send(this.#presenceState(key));
      }
      return backlog.forEach(({ envelope }) => deliver(envelope));
    }
    const answer = this.publish(key, frame, frame.key, frame.echo === false && connection.name);
    if (this.faults.published?.() === false) return peer.terminate();
    send({ type: "published", ...place, ...answer, ref });
  }

  #authenticate(connection, { token, ref }, send) {
    if (this.faults.auth?.(token)) fail(403, "forbidden", "the token names another user");
    this.#checkToken(token);
    connection.token = token;
    send({ type: "authenticated", expires_in: 900, ref });
    for (const key of [...connection.keys].filter((each) => this.denied.has(each))) {
      connection.keys.delete(key);
      const [kind, name] = split(key);
      const message = "the token does not grant this";
      send({ type: "unsubscribed", [kind]: name, code: "forbidden", message });
    }
  }
}

/** The key and the part of `/channels/NAME/PART`, or of `/PART?channel=NAME`. */
function placeOf({ pathname, searchParams }) {
  const path = /^\/(channel|user)s\/([^/]+)(?:\/(\w+))?$/.exec(pathname);
  if (path) return { key: `${path[1]} ${decodeURIComponent(path[2])}`, part: path[3] };
  const [, part] = /^\/(publish|subscribe|history|presence)$/.exec(pathname) ?? [];
  const kind = searchParams.has("user") ? "user" : "channel";
  return { key: part && `${kind} ${searchParams.get(kind)}`, part };
}

function keyOf({ channel, user }) {
  return user === undefined ? `channel ${channel}` : `user ${user}`;
}

function split(key) {
  const space = key.indexOf(" ");
  return [key.slice(0, space), key.slice(space + 1)];
}

function fail(status, code, message) {
  throw Object.assign(new Error(message), { status, code });
}

function json(response, status, body) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(body));
}

function refuse(response, status, error, message) {
  if (!response.headersSent) json(response, status, { error, message });
}
