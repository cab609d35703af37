// Publishes the prices of 200 shares, each in a channel of its own, and serves a page that shows them.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const { THRONG_URL, THRONG_KEY, PORT } = process.env;
const SHARES = Array.from({ length: 200 }, (_, number) => `S${String(number).padStart(3, "0")}`);
const INTERVAL_MS = 250;
const CHANGES = 40;

const prices = new Map(SHARES.map((share) => [share, 100]));

/** Publishes the prices of these shares with one request; throws if that fails. */
async function publish(shares) {
  const batch = shares.map((share) => ({ channel: `prices/${share}`, data: prices.get(share) }));
  const response = await fetch(`${THRONG_URL}/publish`, {
    method: "POST",
    headers: { Authorization: `Bearer ${THRONG_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify(batch),
    signal: AbortSignal.timeout(10_000),
  });
  const answers = await response.json();
  const failed = response.ok ? answers.find((answer) => answer.error) : answers;
  if (failed) throw new Error(failed.message);
}

async function run() {
  let changed = SHARES;
  for (;;) {
    try {
      await publish(changed);
      changed = [];
    } catch (error) {
      // These prices are published with the next ones.
      console.error(`not published: ${error.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
    const moved = Array.from({ length: CHANGES }, () => SHARES[Math.floor(Math.random() * SHARES.length)]);
    for (const share of moved) {
      const change = (Math.random() - 0.5) * 2;
      prices.set(share, Math.max(1, Math.round((prices.get(share) + change) * 100) / 100));
    }
    changed = [...new Set([...changed, ...moved])];
  }
}

const page = readFileSync(new URL("page.html", import.meta.url), "utf8")
  .replaceAll("{{THRONG_URL}}", THRONG_URL)
  .replaceAll("{{SHARES}}", JSON.stringify(SHARES));

const server = createServer((request, response) => {
  const isPage = request.url === "/";
  response.writeHead(isPage ? 200 : 404, { "Content-Type": "text/html; charset=utf-8" });
  response.end(isPage ? page : "not found");
});
server.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
  run();
});
