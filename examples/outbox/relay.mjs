// Publishes the rows of the outbox, in order, and deletes them. A row that was published when the
// process ended is published again with the same key, which Throng recognizes for five minutes.
import { setTimeout as delay } from "node:timers/promises";
import { ThrongError } from "@throng-push/client/server";
import pg from "pg";

const ROWS_MAX = 500;
/** The time between two looks at the outbox, if nothing wakes the relay. */
const POLL_MS = 5_000;
const RECONNECT_MS = 1_000;
/** Of all relays of a database, the one that has this lock works; others wait for it. */
const LOCK = 7_040_112;

/** Publishes the oldest rows. Returns how many are settled. */
async function publishOldest(client, publisher) {
  const select = "SELECT id, key, channel, data FROM outbox WHERE refused IS NULL ORDER BY id LIMIT $1";
  const { rows } = await client.query(select, [ROWS_MAX]);
  const results = await publisher.publishBatch(rows.map(({ key, channel, data }) => ({ key, channel, data })));
  const published = [];
  let refused = 0;
  for (const [index, result] of results.entries()) {
    const { id } = rows[index];
    if (!(result instanceof ThrongError)) published.push(id);
    else if (["bad_name", "too_large"].includes(result.code)) {
      // Others would wait behind it for ever.
      refused += 1;
      await client.query("UPDATE outbox SET refused = $2 WHERE id = $1", [id, result.message]);
    } else console.error(`outbox: row ${id} is not published yet: ${result.message}`);
  }
  await client.query("DELETE FROM outbox WHERE id = ANY($1)", [published]);
  return published.length + refused;
}

/** Works until the connection to the database is lost. */
async function work(client, publisher) {
  // A relay that waits for the lock is notified, too.
  let wake = () => {};
  const lost = new Promise((_, reject) => {
    client.on("error", reject);
    client.on("end", () => reject(new Error("the connection to the database has ended")));
  });
  lost.catch(() => {});
  client.on("notification", () => wake());
  await client.connect();
  await client.query("LISTEN outbox");
  await client.query("SELECT pg_advisory_lock($1)", [LOCK]);
  for (;;) {
    // Before the rows are read: none that comes later is missed.
    const notified = new Promise((resolve) => {
      wake = resolve;
    });
    if ((await publishOldest(client, publisher)) > 0) continue;
    await Promise.race([notified, delay(POLL_MS), lost]);
  }
}

export async function relay(publisher) {
  for (;;) {
    const client = new pg.Client();
    await work(client, publisher).catch((error) => console.error(`outbox: ${error.message}`));
    client.end().catch(() => {});
    await delay(RECONNECT_MS);
  }
}
