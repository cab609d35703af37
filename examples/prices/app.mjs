// Publishes the prices of 200 shares, each in a channel of its own, and serves a page that shows them.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const { THRONG_URL, THRONG_KEY, PORT, UPDATES = "50" } = process.env;
const SHARES = Array.from({ length: 200 }, (_, number) => `S${String(number).padStart(3, "0")}`);
/** Each share has so many new prices in a second. */
const INTERVAL_MS = 1000 / Number(UPDATES);

const prices = new Map(SHARES.map((share) => [share, 100]));

/** Publishes all prices with one request, and the time, for the page's chart; throws if that fails. */
async function publish() {
  const at = Date.now();
  const batch = SHARES.map((share) => ({ channel: `prices/${share}`, data: { price: prices.get(share), at } }));
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
  let next = Date.now();
  for (;;) {
    try {
      await publish();
    } catch (error) {
      // The next prices are newer anyway.
      console.error(`not published: ${error.message}`);
    }
    // After a delay, what was missed is not made up for.
    next = Math.max(next + INTERVAL_MS, Date.now());
    await new Promise((resolve) => setTimeout(resolve, next - Date.now()));
    for (const [share, price] of prices) {
      const change = (Math.random() - 0.5) * 2;
      prices.set(share, Math.max(1, Math.round((price + change) * 100) / 100));
    }
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
