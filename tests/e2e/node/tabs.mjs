// Several tabs of one browser that share a connection. One scenario per run.
// Usage: node tabs.mjs CHROMIUM SERVER SCRIPT SCENARIO
//
// SCRIPT is the built clients/javascript/tests/tabs/page.js, with the part for tabs or without it. The server's own count of connections says
// whether there is one.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { openBrowser, TIMEOUT_MS } from "./browser.mjs";
import { Proxy } from "./proxy.mjs";

// A tab whose process is stopped must not stop the others.
const FLAGS = ["--process-per-tab", "--disable-features=ProcessPerSiteUpToMainFrameThreshold"];

const [chromium, serverUrl, script, scenario] = process.argv.slice(2);
const channel = `tabs-${scenario}`;

// For a script that does not have the part within itself.
const imports = JSON.stringify({ imports: { "@throng-push/client/tabs": `${serverUrl}/throng-tabs.js` } });
const PAGE =
  `<!doctype html><link rel="icon" href="data:,"><script type="importmap">${imports}</script>` +
  '<script type="module" src="page.js"></script>';

/** Serves the page. */
const pages = createServer((request, response) => {
  if (request.url === "/page.js") {
    response.writeHead(200, { "Content-Type": "text/javascript" }).end(readFileSync(script));
  } else {
    response.writeHead(200, { "Content-Type": "text/html" });
    response.end(PAGE);
  }
});
await new Promise((resolve) => pages.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${pages.address().port}`;

const browser = await openBrowser(chromium, FLAGS);
const context = await browser.newContext();
const faults = [];

async function tab(parameters = {}) {
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(origin);
  await page.waitForFunction(() => window.follow);
  const options = { user: "ann", ...parameters.options };
  const given = { url: serverUrl, channel, ...parameters, options };
  await page.evaluate((each) => window.follow(each), given);
  return page;
}

let published = 0;

async function publish(count) {
  for (let number = 0; number < count; number += 1) {
    published += 1;
    const body = `text ${published}`;
    const response = await fetch(`${serverUrl}/channels/${channel}`, { method: "POST", body });
    assert.equal(response.status, 201);
  }
}

const textsFrom = (first) =>
  Array.from({ length: published - first + 1 }, (_, index) => `text ${first + index}`);

/** Waits until each tab has got all texts from this one on, and checks that it got each once. */
async function got(tabs, first = 1) {
  for (const page of tabs) {
    await page.waitForFunction((last) => window.texts.includes(last), `text ${published}`);
    assert.deepEqual(await page.evaluate(() => window.texts), textsFrom(first));
    assert.equal(await page.evaluate(() => window.gaps), 0);
  }
}

async function countConnections() {
  const response = await fetch(`${serverUrl}/channels/${channel}/presence`);
  return (await response.json()).connections;
}

/** Waits until the server has this many connections that follow the channel. */
async function hasConnections(count) {
  const until = Date.now() + TIMEOUT_MS;
  for (;;) {
    const found = await countConnections();
    if (found === count) return;
    assert.ok(Date.now() < until, `${found} connections in place of ${count}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const isLeader = (page) => page.evaluate(() => window.throng.isLeader);

async function leaderOf(tabs) {
  for (;;) {
    for (const page of tabs) if (await isLeader(page)) return page;
  }
}

const becomesLeader = (tabs) =>
  Promise.any(tabs.map((page) => page.waitForFunction(() => window.throng.isLeader)));

const hasState = (page, state) =>
  page.waitForFunction((to) => window.throng.state === to, state);

/** The process that runs a page: the one that gets busy when the page does. */
async function processOf(page) {
  const session = await browser.newBrowserCDPSession();
  const times = async () => {
    const { processInfo } = await session.send("SystemInfo.getProcessInfo");
    const renderers = processInfo.filter(({ type }) => type === "renderer");
    return new Map(renderers.map(({ id, cpuTime }) => [id, cpuTime]));
  };
  const before = await times();
  await page.evaluate(() => {
    const start = performance.now();
    for (let sum = 0; performance.now() - start < 3_000; ) sum += Math.sqrt(sum + 1);
  });
  const spent = [...(await times())].map(([id, time]) => [id, time - (before.get(id) ?? 0)]);
  return spent.sort(([, a], [, b]) => b - a)[0][0];
}

const SCENARIOS = {
  /** Three tabs, one connection; each tab has its own channels, history and echo. */
  async three() {
    const tabs = [await tab(), await tab(), await tab()];
    assert.equal(await tabs[0].evaluate(() => window.throng.isShared), true);
    await publish(20);
    await got(tabs);
    await hasConnections(1);
    const late = await tab({ history: 5 });
    await late.waitForFunction(() => window.texts.length >= 5);
    assert.deepEqual(await late.evaluate(() => window.texts), textsFrom(16));
    assert.equal(await late.evaluate(() => window.replayed), 5);
    await publish(1);
    await got([late], 16);
    assert.equal(await late.evaluate(() => window.replayed), 5, "the last one is live");
    // What a tab publishes without an echo reaches the others only.
    await tabs[1].evaluate((to) => window.throng.publish(to, "text 22", { echo: false }), channel);
    published += 1;
    await got([tabs[0], tabs[2]]);
    await publish(1);
    await tabs[1].waitForFunction(() => window.texts.includes("text 23"));
    const own = await tabs[1].evaluate(() => window.texts);
    assert.deepEqual(own, textsFrom(1).filter((text) => text !== "text 22"));
    // Binary data arrives as such, and a channel of one tab reaches that one only.
    const bytes = await tabs[2].evaluate(async () => {
      const arrived = new Promise((resolve) => {
        window.throng.subscribe("bytes", ({ data }) => resolve([...data]));
      });
      await window.throng.publish("bytes", new Uint8Array([0, 255, 7]));
      return arrived;
    });
    assert.deepEqual(bytes, [0, 255, 7]);
    await hasConnections(1);
    await late.close();
    return tabs;
  },

  /** The tab with the connection is closed while messages come. */
  async closed() {
    const tabs = [await tab(), await tab(), await tab()];
    await publish(5);
    await got(tabs);
    for (let rounds = 0; rounds < 2; rounds += 1) {
      const leader = await leaderOf(tabs);
      tabs.splice(tabs.indexOf(leader), 1);
      const more = publish(30);
      await leader.close();
      await more;
      await got(tabs);
      await hasConnections(1);
    }
    return tabs;
  },

  /**
   * The tab with the connection is told that it will be frozen, and later that it goes on. Chromium
   * freezes no page that is being automated.
   */
  async asleep() {
    const tabs = [await tab(), await tab(), await tab()];
    await publish(5);
    await got(tabs);
    const leader = await leaderOf(tabs);
    const others = tabs.filter((page) => page !== leader);
    await leader.evaluate(() => document.dispatchEvent(new Event("freeze")));
    assert.equal(await isLeader(leader), false, "it gives the lead away before it sleeps");
    await publish(5);
    await becomesLeader(others);
    await publish(5);
    await got(others);
    await hasConnections(1);
    const before = await leader.evaluate(() => window.texts);
    assert.deepEqual(before, textsFrom(1).slice(0, before.length));
    await leader.evaluate(() => document.dispatchEvent(new Event("resume")));
    await publish(5);
    await got(tabs);
    await hasConnections(1);
    return tabs;
  },

  /** The process of the tab with the connection is stopped without a word, and goes on later. */
  async stopped() {
    const tabs = [await tab(), await tab(), await tab()];
    await publish(5);
    await got(tabs);
    const leader = await leaderOf(tabs);
    const others = tabs.filter((page) => page !== leader);
    const pid = await processOf(leader);
    process.kill(pid, "SIGSTOP");
    try {
      await publish(5);
      await becomesLeader(others);
      await publish(5);
      await got(others);
    } finally {
      process.kill(pid, "SIGCONT");
    }
    await publish(5);
    await got(tabs);
    await hasConnections(1);
    return tabs;
  },

  /** The connection is lost: the tabs know it, and nothing is missing afterwards. */
  async lost() {
    const proxy = await Proxy.to(serverUrl);
    const tabs = [await tab({ url: proxy.url }), await tab({ url: proxy.url })];
    await publish(5);
    await got(tabs);
    proxy.cut();
    for (const page of tabs) await hasState(page, "waiting");
    const pending = tabs[1].evaluate((to) => {
      return window.throng.publish(to, "text 11").then(({ id }) => id);
    }, channel);
    await publish(5);
    proxy.heal();
    published += 1;
    assert.ok(await pending);
    await got(tabs);
    for (const page of tabs) await hasState(page, "open");
    await hasConnections(1);
    proxy.server.close();
    return tabs;
  },

  /** Tabs of different users share nothing; a logout ends all tabs of one. */
  async users() {
    const ann = [await tab(), await tab()];
    const bo = await tab({ options: { user: "bo" } });
    await publish(3);
    await got([...ann, bo]);
    await hasConnections(2);
    await ann[1].evaluate(() => window.throng.logout());
    for (const page of ann) await hasState(page, "closed");
    await hasConnections(1);
    await publish(3);
    await got([bo]);
    for (const page of ann) assert.equal(await page.evaluate(() => window.texts.length), 3);
    // A login afterwards.
    await ann[0].evaluate(() => window.throng.connect());
    await hasState(ann[0], "open");
    await got([ann[0]]);
    await hasConnections(2);
    return [...ann, bo];
  },

  /** Presence events reach each tab that asks for them, at once. */
  async presence() {
    const first = await tab({ presence: true });
    await first.waitForFunction(() => window.here?.users.join() === "ann");
    const second = await tab({ presence: true });
    await second.waitForFunction(() => window.here?.users.join() === "ann");
    const bo = await tab({ options: { user: "bo" } });
    for (const page of [first, second]) {
      await page.waitForFunction(() => window.here.users.join() === "ann,bo");
    }
    await hasConnections(2);
    return [first, second, bo];
  },
};

let code = 0;
try {
  await SCENARIOS[scenario]();
  assert.deepEqual(faults, []);
} catch (error) {
  console.error(error);
  for (const page of context.pages()) {
    const state = () => [window.throng?.state, window.throng?.isLeader, window.states, window.texts];
    console.error(JSON.stringify(await page.evaluate(state).catch(String)));
  }
  console.error(faults);
  code = 1;
}
await browser.close();
process.exit(code);
