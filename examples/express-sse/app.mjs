// Orders that appear in all open pages, by server-sent events of Throng.
import { fileURLToPath } from "node:url";
import express from "express";

const { PORT, THRONG_URL, THRONG_KEY } = process.env;
const app = express();

/** Tells all pages of an order. */
async function tell(order) {
  const answer = await fetch(`${THRONG_URL}/channels/orders`, {
    method: "POST",
    headers: { Authorization: `Bearer ${THRONG_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify(order),
    signal: AbortSignal.timeout(5000),
  });
  if (!answer.ok) throw new Error(`Throng answered ${answer.status}: ${await answer.text()}`);
}

app.get("/events", (request, response) => {
  response.redirect(307, `${THRONG_URL}/channels/orders`);
});

app.post("/orders", express.json(), async (request, response) => {
  const order = { item: String(request.body.item) };      // in production: stored in your database
  // The order counts, whether pages hear of it or not.
  await tell(order).catch((error) => console.error(`not told: ${error.message}`));
  response.status(201).json(order);
});

const PAGE = fileURLToPath(new URL("page.html", import.meta.url));
app.get("/", (request, response) => response.sendFile(PAGE));

const server = app.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`open http://127.0.0.1:${server.address().port}`);
});
