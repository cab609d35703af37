import assert from "node:assert/strict";
import { test } from "node:test";
import { EventStreamParser } from "../src/event-stream.js";
import { backoffMs } from "../src/http.js";

test("backoff: full jitter below a bound that doubles from 0.5 s to 30 s", () => {
  const bounds = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
  bounds.forEach((bound, attempt) => {
    assert.equal(backoffMs(attempt, () => 1), bound);
    assert.equal(backoffMs(attempt, () => 0), 0);
    assert.equal(backoffMs(attempt, () => 0.25), bound / 4);
  });
  assert.equal(backoffMs(5_000, () => 1), 30_000);
});

const STREAM = [
  ": a comment\n",
  "retry: 1500\n",
  "id: e1-1\r\ndata: grüße 🎉\r\n\r\n",
  "event: resumed\ndata:{\"recovered\":true}\n\n",
  "event: nothing\n\n",
  "data: two\rdata:  lines\rdata\r\r",
  "unknown: field\nretry: soon\ndata\n\n",
  "data: not finished\n",
].join("");

const EVENTS = [
  { event: "message", data: "grüße 🎉" },
  { event: "resumed", data: '{"recovered":true}' },
  { event: "message", data: "two\n lines\n" },
  { event: "message", data: "" },
];

test("event stream: the same events, wherever the bytes are split", () => {
  const bytes = new TextEncoder().encode(STREAM);
  for (let first = 0; first <= bytes.length; first += 1) {
    const parser = new EventStreamParser();
    const events = [
      ...parser.push(bytes.subarray(0, first)),
      ...parser.push(bytes.subarray(first)),
    ];
    assert.deepEqual(events, EVENTS, `split at byte ${first}`);
    assert.equal(parser.retryMs, 1500);
  }
  const parser = new EventStreamParser();
  const events = [...bytes].flatMap((byte) => parser.push(Uint8Array.of(byte)));
  assert.deepEqual(events, EVENTS, "byte by byte");
});
