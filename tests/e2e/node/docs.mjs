// The site of the documentation, as a server serves it, in a real Chromium; exit code 0 means success.
// Usage: node docs.mjs CHROMIUM URL SCENARIO|PAGE [PICTURES]
import assert from "node:assert/strict";

import { openBrowser } from "./browser.mjs";
import { findings, SIZES } from "./accessible.mjs";

const [chromium, url, scenario, pictures] = process.argv.slice(2);
const browser = await openBrowser(chromium);

/** Opens a page, and collects what the policy refuses and what is loaded from elsewhere. */
async function open(path, options = {}) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") page.faults.push(message.text());
  });
  page.on("request", (request) => {
    const { protocol, host } = new URL(request.url());
    if (host !== new URL(url).host && protocol !== "data:") page.faults.push(request.url());
  });
  await page.goto(url + path);
  return page;
}

// Of the theme: the switches of its drawers are in no landmark. Of Markdown: where the first column of
// a table names its rows, the head of that column may be empty. Both are no more than "moderate".
const without = ["region", "empty-table-header"];

/** One page in all sizes and colours. */
async function look(path) {
  assert.deepEqual(await findings(browser, url + path, path, { without, pictures }), []);
  const page = await open(path);
  assert.deepEqual(page.faults, []);
}

const SCENARIOS = {
  /** With keys only, from another page than the first. */
  async search() {
    const page = await open("guides/tls.html");
    await page.keyboard.press("/");
    await page.locator('input[name="q"]:focus').first().waitFor();
    await page.keyboard.type("idempotency");
    await page.keyboard.press("Enter");
    const first = page.locator("#search-results li a").first();
    await first.waitFor();
    await page.locator("#search-results", { hasText: "found" }).waitFor();
    const listed = page.locator('#search-results a[href*="reference/http.html"]').first();
    await listed.waitFor();
    // Each result shows the lines in which the word is.
    await page.locator("#search-results p.context").first().waitFor();
    if (pictures) await page.screenshot({ path: `${pictures}/search.png` });
    await listed.focus();
    await page.keyboard.press("Enter");
    await page.waitForURL(/reference\/http\.html/);
    assert.deepEqual(page.faults, []);
    const prepare = (results) => results.locator("#search-results p.context").first().waitFor();
    // Its heading is one of the second level.
    const options = { prepare, without: [...without, "page-has-heading-one"], pictures };
    assert.deepEqual(await findings(browser, `${url}search.html?q=idempotency`, "search", options), []);
  },

  /** Words that newcomers search for: the first result has the answer. */
  async words() {
    for (const word of ["typing", "CORS", "GDPR", "wildcard", "conflation"]) {
      const page = await open(`search.html?q=${word}`);
      const first = page.locator("#search-results li a").first();
      await page.locator("#search-results", { hasText: "found" }).waitFor();
      const heading = await first.getAttribute("href");
      assert.match(heading, /guides\/questions\.html/, word);
      await page.context().close();
    }
  },

  /** Of a block with a command and its output, the button copies the command. */
  async copy() {
    const page = await open("index.html", { permissions: ["clipboard-read", "clipboard-write"] });
    const block = page.locator(".highlight", { hasText: "$ curl -d 'hello, everyone'" }).first();
    await block.hover();
    await block.locator("button.copybtn").click();
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    assert.equal(copied.trim(), "curl -d 'hello, everyone' http://127.0.0.1:8080/channels/news");
    assert.deepEqual(page.faults, []);
  },

  /** On a phone, the menu is in a drawer. */
  async menu() {
    const page = await open("index.html", { viewport: SIZES.phone });
    const link = page.locator(".sidebar-tree a", { hasText: "First steps" });
    const isInView = () => link.evaluate((element) => element.getBoundingClientRect().left >= 0);
    assert.equal(await isInView(), false);
    await page.locator("#__navigation").focus();
    await page.keyboard.press("Space");
    await page.waitForFunction(
      () => document.querySelector(".sidebar-drawer").getBoundingClientRect().left === 0,
    );
    if (pictures) await page.screenshot({ path: `${pictures}/menu.png` });
    await link.focus();
    await page.keyboard.press("Enter");
    await page.waitForURL(/guides\/first-steps\.html/);
    assert.deepEqual(page.faults, []);
  },
};

await (SCENARIOS[scenario]?.() ?? look(scenario));
await browser.close();
