// After close(), nothing of a client keeps a program from ending.
import assert from "node:assert/strict";
import { test } from "node:test";
import WebSocket from "ws";
import { Throng } from "@throng-push/client";
import { next, start } from "./context.js";

/** Records the timers that clients set, until the test ends. */
function timers(t) {
  const active = new Map();
  const { setTimeout, clearTimeout } = globalThis;
  globalThis.setTimeout = (work, delayMs, ...more) => {
    const run = () => {
      active.delete(timer);
      work(...more);
    };
    const timer = setTimeout(run, delayMs);
    // Not those of Node or of the WebSocket.
    const { stack } = new Error();
    if (/javascript\/src\//.test(stack.split("\n")[2])) active.set(timer, stack);
    return timer;
  };
  globalThis.clearTimeout = (timer) => {
    active.delete(timer);
    clearTimeout(timer);
  };
  t.after(() => Object.assign(globalThis, { setTimeout, clearTimeout }));
  /** Where those that are left were set. */
  return async () => {
    await new Promise((resolve) => setImmediate(resolve));
    return [...active.values()];
  };
}

for (const transport of ["websocket", "sse", "poll"]) {
  for (const state of ["connecting", "open", "waiting"]) {
    test(`${transport}: close() while ${state} leaves no timer`, async (t) => {
      const { connect } = await start(t);
      const left = timers(t);
      // Long delays: none of them may be left.
      const options = { transports: [transport], random: () => 1, WebSocket };
      // Port 1 has no listener.
      const client = state === "waiting" ? new Throng("http://127.0.0.1:1", options) : connect(options);
      client.subscribe("a", { history: 1 });
      client.publish("a", "x").catch(() => {});
      if (client.state !== state) await next(client, "state", (change) => change.state === state);
      client.publish("a", "y").catch(() => {});
      client.close();
      assert.deepEqual(await left(), []);
    });
  }
}

/** A WebSocket whose server is the test. */
class Socket {
  static last;
  sent = [];

  constructor() {
    Socket.last = this;
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {}

  receive(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }
}

test("websocket: close() after a refused message leaves no timer", async (t) => {
  const left = timers(t);
  const options = { WebSocket: Socket, random: () => 1 };
  const client = new Throng("http://127.0.0.1:1", options);
  client.subscribe("a");
  await Promise.resolve();
  Socket.last.receive({ type: "welcome", connection: "c", heartbeat: 25, channels_max: 128 });
  const published = client.publish("a", "x").catch(({ code }) => code);
  const { ref } = Socket.last.sent.at(-1);
  Socket.last.receive({ type: "error", ref, code: "busy", message: "later" });
  client.close();
  assert.equal(await published, "closed");
  assert.deepEqual(await left(), []);
});
