// 1,000 clients that have lost the server come back one by one.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { backoffMs } from "../src/http.js";
import { Throng } from "@throng-push/client";

const CASES = new URL("../../conformance/backoff.json", import.meta.url);

test("the backoff is that of all clients", () => {
  for (const { attempt, random, delay_ms: delayMs } of JSON.parse(readFileSync(CASES))) {
    assert.equal(backoffMs(attempt, () => random), delayMs);
  }
});

/** Random numbers from a seed (mulberry32). */
function seeded(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

test("1,000 clients do not come in waves", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const attempts = [];
  class Lost {
    constructor() {
      attempts.push(Date.now());
      queueMicrotask(() => this.onclose?.({ code: 1006, reason: "" }));
    }

    close() {}
  }
  const random = seeded(1);
  const options = { WebSocket: Lost, transports: ["websocket"], random };
  const clients = Array.from({ length: 1_000 }, () => new Throng("http://127.0.0.1:1", options));
  t.after(() => clients.forEach((client) => client.close()));
  for (const client of clients) client.subscribe("a");
  for (let passedMs = 0; passedMs < 20_000; passedMs += 10) {
    await new Promise((resolve) => setImmediate(resolve));
    t.mock.timers.tick(10);
  }
  const retries = new Map();
  for (const at of attempts.slice(1_000)) {
    const slot = Math.floor(at / 50);
    retries.set(slot, (retries.get(slot) ?? 0) + 1);
  }
  // If 1,000 clients spread evenly over the first half second, 100 come in each 50 ms.
  assert.ok(attempts.length > 4_000, `${attempts.length} attempts`);
  assert.ok(Math.max(...retries.values()) < 200, `${Math.max(...retries.values())} in 50 ms`);
});
