// One reader of all channels: a page, a page that blocks its thread or is behind a slow line, or Node. Usage: node measure.mjs
// page|blocked|line|node LIBRARY URL HEADERS SECONDS [CHROMIUM]. Prints the ages of its messages, and how busy its thread was.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { now, Reader } from "./follow.mjs";
import { slowLine } from "./line.mjs";

const [, , kind, library, url, headers, seconds, chromium] = process.argv;
const tests = new URL("../../../tests/", import.meta.url);
const require = createRequire(tests);
const WARM_UP_MS = 2000;
/** 1 Mbit/s. */
const LINE_BYTES_PER_S = 125_000;

/** Publishes until it is stopped; then returns how many messages were accepted. */
function feed() {
  const program = new URL("feed.mjs", import.meta.url).pathname;
  const child = spawn(process.execPath, [program, library, url, headers], { stdio: ["pipe", "pipe", "inherit"] });
  return async () => {
    child.stdin.end();
    const [text] = await once(child.stdout, "data");
    return JSON.parse(text);
  };
}

/** Feeds a reader. `busy()` is the time that its thread was busy so far; `summary(since)` what it has received. */
async function measure(busy, summary) {
  const stop = feed();
  await sleep(WARM_UP_MS);
  const [since, before] = [now(), await busy()];
  await sleep(Number(seconds) * 1000);
  const [after, passed] = [await busy(), now() - since];
  const figures = await summary(since);
  console.log(JSON.stringify({ ...figures, busy: (after - before) / passed, ...await stop() }));
}

async function ofNode() {
  const { WebSocket } = require("ws");
  const parts = library === "throng"
    ? await import(new URL("../clients/javascript/src/throng.js", tests))
    : require("centrifuge");
  const reader = new Reader();
  await reader.follow(library, url, { ...parts, WebSocket });
  const busy = () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  await measure(busy, (since) => reader.summary(since));
}

async function ofPage() {
  // Messages are published past the line.
  const followed = kind === "line" ? await slowLine(url, LINE_BYTES_PER_S) : url;
  const files = {
    "/": ["text/html", `<!doctype html><title>prices</title><script src="/centrifuge.js"></script>
      <script type="module">
        import { Reader } from "/follow.mjs";
        window.reader = new Reader();
        const parts = "${library}" === "throng" ? await import("${followed}/throng.js") : window;
        await reader.follow("${library}", "${followed}", parts);
        window.isReady = true;
      </script>`],
    "/follow.mjs": ["text/javascript", readFileSync(new URL("follow.mjs", import.meta.url))],
    "/centrifuge.js": ["text/javascript", readFileSync(new URL("node_modules/centrifuge/dist/centrifuge.js", tests))],
  };
  const server = createServer((request, response) => {
    const [type, content] = files[request.url] ?? ["text/plain", ""];
    response.writeHead(200, { "Content-Type": type }).end(content);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { openBrowser } = await import(new URL("e2e/node/browser.mjs", tests));
  const browser = await openBrowser(chromium);
  try {
    const page = await browser.newPage();
    page.on("pageerror", (error) => console.error(String(error)));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.waitForFunction(() => window.isReady);
    if (kind === "blocked") await page.evaluate(block);
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    const busy = async () => {
      const { metrics } = await session.send("Performance.getMetrics");
      return metrics.find(({ name }) => name === "TaskDuration").value * 1000;
    };
    await measure(busy, (since) => page.evaluate((since) => window.reader.summary(since, window.isFree), since));
  } finally {
    await browser.close();
    server.close();
  }
}

/** In the page: blocks its thread for 2 s of every 4. Ages count from half a second after it is free. */
function block() {
  const spans = [];
  const cycle = () => {
    const until = performance.now() + 2000;
    while (performance.now() < until);
    const free = performance.timeOrigin + performance.now();
    spans.push([free + 500, free + 2000]);
    setTimeout(cycle, 2000);
  };
  window.isFree = (time) => spans.some(([from, to]) => time >= from && time < to);
  setTimeout(cycle, 0);
}

await (kind === "node" ? ofNode() : ofPage());
process.exit();
