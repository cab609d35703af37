// A chat in which nobody writes in the name of others: a page may read with its token, and writes
// through the application, which knows who has logged in.
import { randomUUID, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { makeToken, Publisher } from "@throng-push/client/server";

const { PORT, THRONG_URL, THRONG_KEY, THRONG_TOKEN_SECRET } = process.env;
// In production, these are in your database, with hashes of passwords.
const PASSWORDS = { ann: "apple", bob: "banana" };
const NAMES = { ann: "Ann Archer", bob: "Bob Barker" };
const BODY_BYTES_MAX = 10_000;
const CHANNEL = "rooms/lobby";

const publisher = new Publisher(THRONG_URL, { key: THRONG_KEY, publishTimeoutMs: 3_000 });
/** Users by the value of their cookie. */
const sessions = new Map();

const read = (name) => readFileSync(new URL(name, import.meta.url), "utf8");
const [LOGIN, PAGE] = ["login.html", "page.html"].map(read);

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function isPassword(user, password) {
  // An unknown user takes as long as a known one.
  const expected = Buffer.alloc(64);
  const given = Buffer.alloc(64);
  expected.write((Object.hasOwn(PASSWORDS, user) && PASSWORDS[user]) || randomUUID());
  given.write(password);
  return timingSafeEqual(expected, given);
}

function cookieOf(request) {
  return /(?:^|; )session=([\w-]+)/.exec(request.headers.cookie ?? "")?.[1];
}

function userOf(request) {
  const user = sessions.get(cookieOf(request));
  if (!user) throw new Refusal(401, "log in first");
  return user;
}

const html = (text, status = 200) => [status, { "Content-Type": "text/html; charset=utf-8" }, text];
const home = (cookie) => [303, { Location: "/", "Set-Cookie": cookie }, ""];

const routes = {
  "GET /": (request) => {
    const user = sessions.get(cookieOf(request));
    if (!user) return html(LOGIN.replace("{{error}}", ""));
    const named = { THRONG_URL, CHANNEL, USER: user, NAME: NAMES[user] };
    return html(PAGE.replaceAll(/\{\{(\w+)\}\}/g, (_, name) => named[name]));
  },
  "POST /login": (_, form) => {
    const [user, password] = [form.get("user") ?? "", form.get("password") ?? ""];
    if (!isPassword(user, password)) return html(LOGIN.replace("{{error}}", "Wrong name or password."), 403);
    const session = randomUUID();
    sessions.set(session, user);
    return home(`session=${session}; HttpOnly; SameSite=Lax; Path=/`);
  },
  "POST /logout": (request) => {
    sessions.delete(cookieOf(request));
    return home("session=; Max-Age=0; Path=/");
  },
  /** A token with which the page reads, shows that it is away, and does not publish. */
  "GET /push-token": (request) => {
    const user = userOf(request);
    const rooms = ["rooms/*"];
    const grants = { subscribe: rooms, history: rooms, presence: rooms, update: rooms };
    const claims = { info: { name: NAMES[user] } };
    const token = makeToken(THRONG_TOKEN_SECRET, { user, ...grants, claims });
    return [200, { "Content-Type": "text/plain" }, token];
  },
  "POST /messages": async (request, form) => {
    const from = userOf(request);
    const [text, key] = [form.get("text")?.trim(), form.get("key")];
    if (!text || !/^[\w-]{1,64}$/.test(key ?? "")) throw new Refusal(400, "name a text and a key");
    // The page sends the same key if it tries again, so that the message is published once.
    await publisher.publish(CHANNEL, { from, text, key }, { key: `${from}-${key}` });
    return [204, {}, ""];
  },
};

async function answer(request) {
  const route = routes[`${request.method} ${new URL(request.url, "http://localhost").pathname}`];
  if (!route) throw new Refusal(404, "not found");
  let body = "";
  for await (const chunk of request) {
    body += chunk;
    if (body.length > BODY_BYTES_MAX) throw new Refusal(413, "the message is too long");
  }
  return route(request, new URLSearchParams(body));
}

const server = createServer(async (request, response) => {
  const failed = ({ status = 503, message }) => [status, { "Content-Type": "text/plain" }, message];
  const [status, headers, text] = await answer(request).catch(failed);
  response.writeHead(status, { "Cache-Control": "no-store", ...headers }).end(text);
});
server.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
