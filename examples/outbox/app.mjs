// Orders in PostgreSQL. Who follows `orders` is told of each that is committed, and of no other, also
// if this program, the database or Throng was down in between.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Publisher } from "@throng-push/client/server";
import pg from "pg";
import { relay } from "./relay.mjs";

const { PORT, THRONG_URL, THRONG_KEY } = process.env;
const read = (name) => readFileSync(new URL(name, import.meta.url), "utf8");
// As `psql`: PGHOST, PGDATABASE, PGUSER and so on say where the database is.
const pool = new pg.Pool();
// A connection that is lost is made again.
pool.on("error", (error) => console.error(`database: ${error.message}`));

/** Stores an order, and what is to be published of it, in one transaction. */
async function order(article) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const insert = "INSERT INTO orders (article) VALUES ($1) RETURNING id, article";
    const { rows } = await client.query(insert, [article]);
    const data = JSON.stringify(rows[0]);
    await client.query("INSERT INTO outbox (channel, data) VALUES ('orders', $1)", [data]);
    await client.query("COMMIT");
    return rows[0];
  } catch (error) {
    await client.query("ROLLBACK").catch(() => {});
    throw error;
  } finally {
    client.release();
  }
}

async function answer(request, response) {
  if (request.method === "POST" && request.url === "/orders") {
    let body = "";
    for await (const chunk of request) body += chunk;
    const stored = await order(new URLSearchParams(body).get("article"));
    return response.writeHead(201, { "Content-Type": "application/json" }).end(JSON.stringify(stored));
  }
  if (request.url !== "/") return response.writeHead(404).end("not found");
  const page = read("page.html").replaceAll("{{THRONG_URL}}", THRONG_URL);
  return response.writeHead(200, { "Content-Type": "text/html; charset=utf-8" }).end(page);
}

await pool.query(read("schema.sql"));
relay(new Publisher(THRONG_URL, { key: THRONG_KEY, publishTimeoutMs: 5_000 }));
const server = createServer((request, response) => {
  answer(request, response).catch((error) => response.writeHead(500).end(`${error.message}\n`));
});
server.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
