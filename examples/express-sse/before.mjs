// Orders that appear in all open pages, by server-sent events of the application itself.
import { fileURLToPath } from "node:url";
import express from "express";

const { PORT } = process.env;
const app = express();
const pages = new Set();

/** Tells all pages of an order. */
async function tell(order) {
  for (const response of pages) response.write(`data: ${JSON.stringify(order)}\n\n`);
}

app.get("/events", (request, response) => {
  response.set({ "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.flushHeaders();
  pages.add(response);
  request.on("close", () => pages.delete(response));
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
