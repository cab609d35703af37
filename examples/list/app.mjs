// A shopping list that everybody changes together. The application has the list; Throng tells all
// pages of each change.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { makeToken, Publisher } from "@throng-push/client/server";
import { build } from "esbuild";

const { PORT, THRONG_URL, THRONG_KEY, THRONG_TOKEN_SECRET } = process.env;
const publisher = new Publisher(THRONG_URL, { key: THRONG_KEY });

/** The list; in production: a table. */
const items = new Map();
/** Each change raises it by one. It begins with the time, so that it also rises over a restart. */
let version = Date.now();
let told = Promise.resolve();

/** Adds, changes or removes an item. Pages are told in the order of the versions. */
function change({ id = randomUUID(), text, isDone = false, isGone = false }) {
  const item = { id: String(id), text: String(text), isDone: Boolean(isDone) };
  if (isGone) items.delete(item.id);
  else items.set(item.id, item);
  version += 1;
  const message = { version, item, isGone: Boolean(isGone) };
  // Who misses a version, loads the list.
  told = told
    .then(() => publisher.publish("list", message))
    .catch((error) => console.error(`not told: ${error.message}`));
}

const { outputFiles } = await build({
  absWorkingDir: fileURLToPath(new URL(".", import.meta.url)),
  entryPoints: ["page.jsx"],
  define: { THRONG_URL: JSON.stringify(THRONG_URL), "process.env.NODE_ENV": '"production"' },
  bundle: true,
  format: "esm",
  jsx: "automatic",
  // One React for the page and the hooks: the client is linked from a checkout, which has its own.
  alias: { react: "./node_modules/react" },
  write: false,
});
const HTML = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Shopping list</title>
<main></main>
<script type="module" src="/page.js"></script>`;

const routes = {
  "GET /": () => ["text/html; charset=utf-8", HTML],
  "GET /page.js": () => ["text/javascript; charset=utf-8", outputFiles[0].text],
  "GET /items": () => ["application/json", JSON.stringify({ version, items: [...items.values()] })],
  // Everybody may take any name here; the example `notifications` has a login.
  "GET /push-token": (url) => {
    const user = url.searchParams.get("name") ?? "somebody";
    const grants = { subscribe: ["list"], history: ["list"], presence: ["list"] };
    return ["text/plain", makeToken(THRONG_TOKEN_SECRET, { user, ...grants })];
  },
  "POST /changes": (_, body) => ["application/json", JSON.stringify(change(JSON.parse(body)) ?? {})],
};

async function answer(request, response) {
  const url = new URL(request.url, "http://localhost");
  const route = routes[`${request.method} ${url.pathname}`];
  if (!route) return response.writeHead(404).end("not found");
  let body = "";
  for await (const chunk of request) body += chunk;
  const [type, text] = route(url, body);
  return response.writeHead(200, { "Content-Type": type, "Cache-Control": "no-store" }).end(text);
}

const server = createServer((request, response) => {
  answer(request, response).catch((error) => response.writeHead(400).end(error.message));
});
server.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
