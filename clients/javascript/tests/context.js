/** Shared by the tests: a stand-in server, clients that are closed with the test, events. */

import WebSocket from "ws";
import { loadHttp } from "../src/load-http.js";
import { StandIn } from "./stand-in.js";
import { Throng } from "@throng-push/client";

/** Loaded once, because loading takes real time, also where a test has stopped the clock. */
await loadHttp({ requestTimeoutMs: 10_000 });

export async function start(test) {
  const server = await StandIn.start();
  const clients = [];
  test.after(async () => {
    for (const client of clients) client.close();
    await server.stop();
  });
  const connect = (options = {}) => {
    const quick = { random: () => 0, openTimeoutMs: 5_000 };
    const client = new Throng(server.url, { WebSocket, ...quick, ...options });
    clients.push(client);
    return client;
  };
  return { server, connect };
}

/** The next event with this name for which `matches` holds. */
export function next(emitter, name, matches = () => true) {
  return new Promise((resolve) => {
    const off = emitter.on(name, (value) => {
      if (!matches(value)) return;
      off();
      resolve(value);
    });
  });
}

/**
 * Resolves once a connection follows something. A request that has not been sent when its
 * connection breaks is sent again by `fetch` itself, and then the client has lost nothing.
 */
export async function untilFollowed(server) {
  while (server.followed.length === 0) await new Promise((resolve) => setImmediate(resolve));
}

/** Collects the data of messages. `until(n)` resolves with them once there are n. */
export function inbox() {
  const data = [];
  let wanted = Infinity;
  let resolve;
  const listen = (message) => {
    data.push(message.data);
    if (data.length >= wanted) resolve(data);
  };
  const until = (count) =>
    new Promise((done) => {
      wanted = count;
      resolve = done;
      if (data.length >= count) done(data);
    });
  return { data, listen, until };
}
