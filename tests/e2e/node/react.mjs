// Looks at the page of clients/javascript/tests/react in Chromium.
// Usage: node react.mjs CHROMIUM PAGE SERVER
import assert from "node:assert";
import { openBrowser } from "./browser.mjs";

const [, , chromium, url, server] = process.argv;
const browser = await openBrowser(chromium);

async function publish(channel, ...texts) {
  for (const text of texts) {
    const response = await fetch(`${server}/channels/${channel}`, { method: "POST", body: text });
    assert.equal(response.status, 201);
  }
}

try {
  await publish("a", "old 1", "old 2");
  await publish("b", "of b");
  const post = async (path, text) => {
    const response = await fetch(`${server}${path}`, { method: "POST", body: text });
    return (await response.json()).id;
  };
  const [first, second] = [await post("/users/ann", "1"), await post("/users/ann", "2")];
  const marked = [await post("/channels/marked", "1"), await post("/channels/marked", "2")];
  const page = await browser.newPage();
  // Less than the caller waits, so that the step is named.
  const faults = [];
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(`${url}#${server}`);

  /** Waits until both components show exactly these messages. */
  const shows = async (...texts) => {
    const expected = JSON.stringify([texts, texts]);
    await page.waitForFunction((expected) => {
      const of = (id) => [...document.querySelectorAll(`#${id} li`)].map((item) => item.innerText);
      return JSON.stringify([of("one"), of("two")]) === expected;
    }, expected);
  };

  await shows("old 1", "old 2");
  await page.getByText("in a").nth(1).waitFor();
  await publish("a", "live");
  await shows("old 1", "old 2", "live");
  await page.locator("#one .publish").click();
  // Of more, the newest three.
  await shows("old 2", "live", "from the page");
  // One of them is asked for older ones, which stay.
  await page.locator("#one .older").click();
  await page.locator("#one li", { hasText: "old 1" }).waitFor();
  await publish("a", "newest");
  await page.locator("#one li", { hasText: "newest" }).waitFor();
  const items = await page.locator("#one li").allInnerTexts();
  assert.deepEqual(items, ["old 2", "live", "from the page", "newest"]);
  await page.getByText("1 here: ann").waitFor();
  assert.equal(await page.locator("#state").innerText(), "open");

  // Another channel: what is shown is never of the one before.
  await page.evaluate(() => {
    window.mixed = [];
    new MutationObserver(() => {
      const [heading, ...items] = [...document.querySelectorAll("#one h2, #one li")];
      if (heading.innerText === "in b") window.mixed.push(...items.map((item) => item.innerText));
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
    window.choose("b");
  });
  await shows("of b");
  await publish("a", "to nobody");
  await publish("b", "to both");
  await shows("of b", "to both");
  assert.deepEqual([...new Set(await page.evaluate(() => window.mixed))].sort(), ["of b", "to both"]);

  // Members, and what the page shows of its user.
  await page.getByText("ann is Ann", { exact: true }).waitFor();
  await page.locator("#desk").click();
  await page.getByText("ann is Anna", { exact: true }).waitFor();

  // A value that all pages share, as if it were the component's own.
  await page.getByText("0 of", { exact: true }).waitFor();
  await page.locator("#counter .more").click();
  await page.getByText("1 of count", { exact: true }).waitFor();
  const other = { method: "PUT", body: "7", headers: { "Content-Type": "application/json" } };
  for (const key of ["other", "count"]) await fetch(`${server}/channels/b/state/${key}`, other);
  await page.getByText("7 of count,other", { exact: true }).waitFor();
  await page.locator("#counter .more").click();
  await page.getByText("8 of count,other", { exact: true }).waitFor();
  await page.locator("#counter .none").click();
  await page.getByText("0 of other", { exact: true }).waitFor();

  // What is unread, which another device reads, and then the page.
  await page.getByText("2 after", { exact: true }).waitFor();
  await fetch(`${server}/users/ann/read?id=${first}`, { method: "PUT" });
  await page.getByText(`1 after ${first}`, { exact: true }).waitFor();
  await page.evaluate((id) => { window.newest = id; }, second);
  await page.locator("#badge").click();
  await page.getByText(`0 after ${second}`, { exact: true }).waitFor();

  // The same of a channel.
  await page.getByText("2 in marked after", { exact: true }).waitFor();
  await fetch(`${server}/channels/marked/read?reader=ann&id=${marked[0]}`, { method: "PUT" });
  await page.getByText(`1 in marked after ${marked[0]}`, { exact: true }).waitFor();
  await page.evaluate((id) => { window.newest = id; }, marked[1]);
  await page.locator("#marked").click();
  await page.getByText(`0 in marked after ${marked[1]}`, { exact: true }).waitFor();

  // A channel that ends.
  await fetch(`${server}/channels/b/end`, { method: "POST", body: "the last" });
  await page.getByText("end of b").nth(1).waitFor();

  // A name that the server refuses.
  await page.evaluate(() => window.choose("x".repeat(300)));
  await page.getByText("bad_name").nth(1).waitFor();

  // No channel: the server has no subscription left.
  await page.evaluate(() => window.choose(null));
  await page.getByText("nowhere").waitFor();
  for (const channel of ["a", "b"]) {
    const left = async () => {
      const response = await fetch(`${server}/channels/${channel}/presence`);
      return (await response.json()).connections;
    };
    while ((await left()) > 0) await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.deepEqual(faults, []);
} catch (error) {
  for (const page of browser.contexts().flatMap((context) => context.pages())) {
    console.error(await page.content());
  }
  throw error;
} finally {
  await browser.close();
}
