// The status page in a real Chromium. Runs one scenario; exit code 0 means success. Usage:
// node status.mjs CHROMIUM URL SCENARIO [PICTURE]
//
// Some scenarios print a word on standard output, and continue after a line on standard input.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { EventSource } from "eventsource";
import WebSocket from "ws";
import { openBrowser } from "./browser.mjs";

const PHONE = { width: 360, height: 740 };

const [chromium, serverUrl, scenario, picture] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Opens the page, and collects its errors in `faults`. */
async function open(options = {}, prepare = async () => {}) {
  const context = await browser.newContext(options);
  await prepare(context);
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.on("console", (message) => {
    if (/Content.Security.Policy/i.test(message.text())) page.faults.push(message.text());
  });
  page.on("request", (request) => {
    const { protocol, host } = new URL(request.url());
    const isOwn = host === new URL(serverUrl).host || protocol === "data:";
    if (!isOwn) page.faults.push(`requests ${request.url()}`);
  });
  await page.goto(`${serverUrl}/status`);
  return page;
}

const isLink = (page, state) => page.locator(`#link[data-state="${state}"]`).waitFor();

/** The card with this title. */
const card = (page, title) =>
  page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) }).first();

/** Waits until an element of a card has this text. */
const reads = (page, title, selector, text) =>
  card(page, title).locator(selector, { hasText: text }).first().waitFor();

async function say(word) {
  console.log(word);
  await lines.next();
}

async function scrollsSideways(page) {
  return page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
}

/** The sample of a server with a million connections on many workers. */
function largeSample() {
  const rate = { total: 123_456_789_012, per_s: 1_234_567.8 };
  // One moment, so that ages are what they say.
  const now = Date.now();
  const times = { count: 99_999_999, mean_ms: 123.456, p50_ms: 12_345.678, p99_ms: 98_765.432 };
  const spans = { second: times, minute: times };
  const reasons = { a_reason_that_this_page_has_never_heard_of: 1_234_567_890, full: 987_654_321 };
  return {
    time_ms: now, version: "0.1.0", started_ms: now - 999 * 86_400_000,
    draining: false,
    connections: { total: 1_000_000, websocket: 400_000, sse: 300_000, stream: 200_000,
      poll: 100_000, status: 1000, control: 1000, other: 12, capacity: 2_000_000,
      workers: Array(200).fill(19_999) },
    channels: 1_000_000, accepted: rate, messages_in: rate, deliveries: rate, sent_bytes: rate,
    latency: spans, http: { ...rate, ...spans },
    canary: { websocket: { ...times, failing: false, arrived_ms: now - 1000 },
      sse: { ...times, failing: true, arrived_ms: now - 99 * 86_400_000 },
      stream: { count: 0, p50_ms: null, p99_ms: null, failing: true, arrived_ms: null },
      poll: { ...times, failing: false, arrived_ms: now } },
    cpu: { cores: 128, workers: Array(200).fill(0.987), control: 12.345 },
    memory: { resident_bytes: 9e10, private_bytes: 8e10, private_at_start_bytes: 9e6,
      log_bytes: 1e9, state_keys: 1e6, state_bytes: 1e8, per_connection_bytes: 61.9, limit_bytes: 9.6e10, used_bytes: 9e10,
      step: "refuse_subscriptions" },
    kernel: { tcp_sockets: 2_000_000, tcp_buffer_bytes: 9e10, socket_slab_bytes: 9e9 },
    tls: { error: "tls-cert: /etc/throng/a-file-with-a-long-name.pem has no certificate", left_out: 12,
      certificates: [
        { name: "awaited.example.com", not_before_ms: null, not_after_ms: null,
          renewal: { next_ms: now + 3600_500, failures: 3, error: "it could not reach port 443" } },
        { name: "expired.example.com", not_before_ms: now - 9e9, not_after_ms: now - 1, renewal: null },
        { name: "overdue.example.com", not_before_ms: now - 9e8, not_after_ms: now + 1e8, renewal: null },
        { name: "good.example.com", not_before_ms: now - 9e9, not_after_ms: now + 99 * 86_400_500,
          renewal: { next_ms: now + 9 * 86_400_500, failures: 0, error: null } },
      ] },
    data: { disk_bytes: 9e11, limit_bytes: 1e12, refuses: "limit", messages: rate,
      message_bytes: rate, commits: spans },
    cluster: { open: false, since_ms: now - 65_000, trouble: "nats://10.0.0.1:4222: refused", leader: "n1",
      followed: 1e6, under_way: 4096, revocations_age_ms: 66_000, left_out: 1_000,
      nodes: [
        { name: "web-a.example.com:8080", id: "a", version: "0.1.0", up_ms: 9e7, connections: 1e6,
          status: "degraded", lag_ms: 0, behind: 0, silent_ms: 0, suspect: ["cannot use the stream"] },
        { name: "web-b.example.com:8080", id: "b", version: "0.2.0", up_ms: 9e4, connections: 12,
          status: "ready", lag_ms: 1, behind: 0, silent_ms: 700, suspect: [] },
        { name: "", id: "c", version: "", up_ms: 0, connections: 0, status: "", lag_ms: 4321,
          behind: 7, silent_ms: 3_000, suspect: ["was heard 3 s ago", "does not say how it is"] },
      ] },
    refused_per_s: 99_999.9, refused: reasons, dropped_per_s: 0.1,
    dropped: { skipped: 9_999_999_999 }, closed: { ...reasons, peer: 9_999_999_999 },
  };
}

async function withLargeSample(context) {
  const sample = largeSample();
  await context.route("**/status.json*", (route) => route.fulfill({
    json: { ...sample, history: { time_ms: [] } },
  }));
  await context.route("**/status/stream", (route) => route.fulfill({
    contentType: "text/event-stream", body: `data: ${JSON.stringify(sample)}\n\n`,
  }));
}

/** The contrast between a text and its background, as defined by WCAG. */
function contrastOf(node) {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = parse(text).slice(0, 3).map((byte) => {
      const share = byte / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let ground = node;
  while (/rgba\(0, 0, 0, 0\)|transparent/.test(getComputedStyle(ground).backgroundColor)) {
    ground = ground.parentElement;
  }
  const both = [light(getComputedStyle(node).color),
    light(getComputedStyle(ground).backgroundColor)];
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}

const SCENARIOS = {
  async moves() {
    const page = await open();
    await isLink(page, "live");
    await reads(page, "Connections", ".legend", "WebSocket0");
    const channel = `${serverUrl}/channels/moves`;
    const sockets = [1, 2].map(() => new WebSocket(channel.replace("http", "ws")));
    const source = new EventSource(channel);
    const stream = await fetch(channel);
    const poll = fetch(`${channel}?wait=30`);
    await reads(page, "Connections", ".legend", "WebSocket2");
    await reads(page, "Connections", ".legend", "SSE1");
    await reads(page, "Connections", ".legend", "stream1");
    await reads(page, "Connections", ".legend", "long-poll1");
    await fetch(channel, { method: "POST", body: "hello" });
    assert.equal(await (await poll).text(), "hello");
    await reads(page, "Deliveries", ".note", "5 since the start");
    await reads(page, "Messages in", ".note", "1 since the start");
    await reads(page, "Publish to last write", ".figure", /\d [µm]?s/);
    // The values below are of the same minute as the large number.
    await reads(page, "Publish to last write", ".legend", /p50\d.* [µm]?sp99\d.* [µm]?s/);
    // The axis is as long as the server is up, in round steps.
    await card(page, "Messages in").locator(".chart[aria-label*='the last 30 s.'], .chart[aria-label*='the last 1 min']").waitFor();
    await reads(page, "HTTP response time", ".figure", /\d [µm]?s/);
    await fetch(`${serverUrl}/nowhere`);
    await reads(page, "Refused and dropped", "tbody tr", "no such path");
    sockets.forEach((socket) => socket.close());
    source.close();
    await stream.body.cancel();
    await reads(page, "Connections", ".legend", "WebSocket0");
    await reads(page, "Connections", ".legend", "stream0");
    assert.equal(await page.locator(".chart canvas").count(), await page.locator(".chart").count());
    return [page];
  },

  /** A page just opened has the history, and describes its charts in words. */
  async history() {
    const first = await open();
    await isLink(first, "live");
    await reads(first, "Messages in", ".note", "1 since the start");
    await say("published");
    // The history may arrive after the first sample of the stream.
    let answer;
    const isDelayed = new Promise((resolve) => { answer = resolve; });
    const page = await open({}, (context) => context.route("**/status.json*", async (route) => {
      await isDelayed;
      await route.continue();
    }));
    await isLink(page, "live");
    answer();
    const chart = card(page, "Messages in").locator(".chart");
    await chart.and(page.locator("[aria-label*=' to ']")).waitFor();
    const most = /from .* to ([\d.]+)\/s/.exec(await chart.getAttribute("aria-label"));
    assert.ok(Number(most[1]) > 0, "the chart has the earlier message");
    return [first, page];
  },

  /** The values of charts can be reached by keyboard. */
  async keyboard() {
    const page = await open();
    await isLink(page, "live");
    const strays = await page.locator("dl > :not(dt, dd, div)").count();
    assert.equal(strays, 0, "a `dl` contains only terms and descriptions");
    const summary = card(page, "Connections").locator("summary");
    await summary.focus();
    await page.keyboard.press("Enter");
    const table = page.getByRole("table", { name: "Connections, by minute" });
    await table.locator("tbody th[scope=row]").first().waitFor();
    assert.equal(await table.locator("thead th[scope=col]").count(), 7);
    assert.equal(await table.locator("tbody tr").first().locator("td").count(), 6);
    assert.equal(await scrollsSideways(page), false);
    return [page];
  },

  /** What the canary finds over each transport. */
  async canary() {
    const page = await open();
    await isLink(page, "live");
    const table = page.getByRole("table", { name: "Canary" });
    for (const transport of ["WebSocket", "SSE", "stream", "long-poll"]) {
      const row = table.locator("tbody tr", { has: page.getByRole("rowheader", { name: transport }) });
      await row.filter({ hasText: /\d [µm]?s.*\d [µm]?s.*\d+ (s|min)( \d+ s)? ago/ }).waitFor();
    }
    assert.equal(await table.locator(".bad").count(), 0);
    return [page];
  },

  /** The page at the admin listener. Saves a screenshot. */
  async admin() {
    const page = await open({ viewport: { width: 1280, height: 900 } });
    await isLink(page, "live");
    await reads(page, "Connections", ".aside", "capacity");
    await page.screenshot({ path: picture, fullPage: true });
    return [page];
  },

  async lost() {
    const page = await open();
    await isLink(page, "live");
    assert.equal(await page.locator("#notice").isVisible(), false);
    await say("live");
    await isLink(page, "lost");
    await page.locator("#notice", { hasText: "has not answered" }).waitFor();
    await say("lost");
    await isLink(page, "live");
    await page.locator("#notice").waitFor({ state: "hidden" });
    return [page];
  },

  async phone() {
    const page = await open({ viewport: PHONE });
    await isLink(page, "live");
    assert.equal(await scrollsSideways(page), false);
    const large = await open({ viewport: PHONE, isMobile: true }, withLargeSample);
    await reads(large, "Connections", ".figure", "1,000,000");
    await reads(large, "Memory", ".aside", "61.9 B per connection");
    await reads(large, "Memory", ".note", "short, 83.8 GiB of 89.4 GiB used: gives up new subscriptions");
    // Tables are folded, so that the page is not endless.
    for (const one of [page, large]) {
      assert.equal(await one.locator("details.part[open]").count(), 0);
    }
    assert.ok(await page.evaluate(() => document.documentElement.scrollHeight) < 2600);
    for (const summary of await large.locator("details.part > summary").all()) {
      if (await summary.isVisible()) await summary.click();
    }
    await large.locator("#workers-rest", { hasText: "and 136 more" }).waitFor();
    await large.locator("#canary .bad", { hasText: /SSE.*fails, 99 d/ }).waitFor();
    await large.locator("#canary .bad", { hasText: "fails, not yet" }).waitFor();
    const certificates = large.locator("#certificates");
    await certificates.locator(".about.bad", { hasText: "not used: tls-cert: /etc" }).waitFor();
    for (const text of [/awaited.*–.*1 h 0 min.*not obtained yet; failed 3 times: it could not/, /expired.*by its files.*has expired/, /overdue.*is overdue/]) {
      await certificates.locator("tr.bad", { hasText: text }).waitFor();
    }
    await certificates.locator("tr:not(.bad)", { hasText: /good.*99 d.*9 d.*good/ }).waitFor();
    assert.equal(await page.locator("#certificates").isVisible(), false, "a server without TLS");
    const nodes = large.locator("#cluster");
    await nodes.locator(".about.bad", { hasText: /cut off .* for 1 min 5 s .*refused.*1 min 6 s old; 1,000 more/ }).waitFor();
    await nodes.locator("tr.bad", { hasText: /web-a.*this one.*cannot use/ }).waitFor();
    await nodes.locator("tr:not(.bad)", { hasText: /web-b.*0\.2\.0.*1 min 30 s.*12.*1 ms.*0 s ago.*ready/ }).waitFor();
    await nodes.locator("tr.bad", { hasText: /c.*4\.3 s.*heard 3 s ago; does not say/ }).waitFor();
    assert.equal(await page.locator("#cluster").isVisible(), false, "a server that is alone");
    await large.locator("#data tr", { hasText: "838 GiB of 931 GiB" }).waitFor();
    await large.locator("#data .bad", { hasText: "refused: it is beyond its limit" }).waitFor();
    assert.equal(await page.locator("#data").isVisible(), false, "a server without --data");
    assert.equal(await scrollsSideways(large), false);
    return [page, large];
  },

  async dark() {
    const pages = [];
    for (const colorScheme of ["light", "dark"]) {
      const page = await open({ colorScheme, reducedMotion: "reduce" });
      await isLink(page, "live");
      const selector = "h1, h2, dt, dd, .figure, .aside, .about, .note, th, td, a, #link, footer p";
      const contrasts = await page.locator(selector).evaluateAll((nodes, source) => {
        const contrastOf = new Function(`return ${source}`)();
        const shown = nodes.filter((node) => node.textContent.trim() !== "");
        return shown.map((node) => [contrastOf(node), node.textContent.trim()]);
      }, contrastOf.toString());
      const faint = contrasts.filter(([contrast]) => contrast < 4.5);
      assert.deepEqual(faint, [], colorScheme);
      const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const [red] = ground.match(/\d+/g).map(Number);
      assert.equal(red < 64, colorScheme === "dark", ground);
      pages.push(page);
    }
    // A change of the colour scheme redraws the charts.
    await pages[0].emulateMedia({ colorScheme: "dark" });
    await pages[0].locator(".chart canvas").first().waitFor();
    assert.equal(await pages[0].locator(".chart .uplot").count(),
      await pages[0].locator(".chart").count());
    return pages;
  },

  async plain() {
    const page = await open({ javaScriptEnabled: false });
    assert.match(await page.innerText("body"), /This page needs JavaScript/);
    assert.equal(await page.locator("main").isVisible(), false, "no empty section is visible");
    assert.equal(await page.locator(".notice a").getAttribute("href"), "status.json");
    return [page];
  },
};

let code = 0;
try {
  const pages = await SCENARIOS[scenario]();
  for (const page of pages) assert.deepEqual(page.faults, []);
} catch (error) {
  console.error(error);
  for (const context of browser.contexts()) {
    for (const page of context.pages()) {
      console.error(`--- ${page.url()}\n${await page.innerText("body").catch(String)}`);
    }
  }
  code = 1;
}
await browser.close();
process.exit(code);
