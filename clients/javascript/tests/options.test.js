// Errors for wrong URLs and options.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Throng } from "@throng-push/client";

const URL_OK = "http://127.0.0.1:1";
const throwsWith = (make, words) => assert.throws(make, { name: "TypeError", message: words });

test("the error for a URL without a scheme, or with a wrong one, suggests a URL", () => {
  const meant = {
    "localhost:8080": "http://localhost:8080",
    "127.0.0.1:8080": "http://127.0.0.1:8080",
    "[::1]:8080": "http://[::1]:8080",
    ":8080": "http://localhost:8080",
    "push.example.org": "https://push.example.org",
    "//push.example.org/a": "https://push.example.org/a",
    "ws://localhost:8080": "http://localhost:8080",
    "wss://push.example.org": "https://push.example.org",
    "htps://push.example.org": "https://push.example.org",
  };
  for (const [url, better] of Object.entries(meant)) {
    assert.throws(() => new Throng(url), (error) => {
      return error instanceof TypeError && error.message.includes(`did you mean "${better}"?`);
    });
  }
  throwsWith(() => new Throng("http://"), /is not a URL/);
  throwsWith(() => new Throng("http://h/?token=x"), /must not have a query/);
  new Throng("HTTP://127.0.0.1:1/below/").close();
  new Throng(new URL(URL_OK)).close();
});

test("unknown options are refused with the nearest name", async () => {
  const history = /"history" must be a number, 0 or more/;
  throwsWith(() => new Throng(URL_OK).subscribe("a", { history: -1 }), history);
  throwsWith(() => new Throng(URL_OK).subscribe("a", { history: "all" }), history);
  throwsWith(() => new Throng(URL_OK, { usr: "ann" }), /no option "usr"; did you mean "user"/);
  throwsWith(() => new Throng(URL_OK, { websocket: 1 }), /did you mean "WebSocket"/);
  throwsWith(() => new Throng(URL_OK, { zzzzzzzz: 1 }), /there are: user, noTime, params, transports/);
  throwsWith(() => new Throng(URL_OK, { transports: ["websockets"] }), /mean "websocket"/);
  throwsWith(() => new Throng(URL_OK, { publishTimeoutMs: "30s" }), /must be a number/);
  throwsWith(() => new Throng(URL_OK, { publishTimeoutMs: 600_000 }), /0 to 240000/);
  const client = new Throng(URL_OK);
  throwsWith(() => client.subscribe("a", { histroy: 5 }), /did you mean "history"/);
  throwsWith(() => client.subscribe("a", null), /must be an object/);
  const name = "TypeError";
  await assert.rejects(client.publish("a", "x", { ecko: false }), { name, message: /"echo"/ });
  await assert.rejects(client.history("a", { limits: 5 }), { name, message: /"limit"/ });
  await assert.rejects(client.presence("a", { max: 5 }), { name, message: /limit/ });
  client.close();
});

test("times that are too long for a timer are refused", () => {
  const max = {
    heartbeatMs: 1_000_000_000,
    openTimeoutMs: 1_000_000_000,
    requestTimeoutMs: 1_000_000_000,
    publishTimeoutMs: 240_000,
    pollWaitSeconds: 300,
  };
  for (const [name, most] of Object.entries(max)) {
    for (const value of [Infinity, 2 ** 31, most + 1]) {
      const message = new RegExp(`the option "${name}" must be .* to ${most}$`);
      throwsWith(() => new Throng(URL_OK, { [name]: value }), message);
    }
  }
  new Throng(URL_OK, { ...max, queueMax: Infinity }).close();
});
