// Chat, status and reports, as people use them who do not see well, or have no mouse; exit code 0
// means that nothing was found. Usage: node accessibility.mjs CHROMIUM SCENARIO URL
//
// The server key of a login comes in the variable KEY.
import assert from "node:assert/strict";

import { openBrowser } from "./browser.mjs";
import { findings } from "./accessible.mjs";

const [chromium, scenario, url] = process.argv.slice(2);
const browser = await openBrowser(chromium);

/** Enters the chat with the keyboard alone, and says something. */
async function enter(page) {
  await page.locator("#ask-input:focus").waitFor();
  await page.keyboard.type("Ann");
  await page.keyboard.press("Enter");
  await page.locator("#link[data-state='open']").waitFor();
  await page.locator("#text").focus();
  await page.keyboard.type("Hello, see https://ferry.example/today");
  await page.keyboard.press("Enter");
  await page.locator("#messages .message", { hasText: "Hello" }).first().waitFor();
  // On a phone it is in a drawer.
  await page.locator("#people", { hasText: "Ann" }).waitFor({ state: "attached" });
}

/** On a phone, the rooms are in a drawer. */
async function openRooms(page, size) {
  await enter(page);
  if (size === "phone") {
    await page.locator("#side-open").focus();
    await page.keyboard.press("Enter");
    await page.locator("#side-close").waitFor();
  }
}

async function isLive(page) {
  await page.locator('#link[data-state="live"]').waitFor();
  await page.locator(".chart canvas").first().waitFor();
}

/** Logs in with the keyboard alone. */
async function logIn(page) {
  await page.locator("#key:focus").waitFor();
  await page.keyboard.type(process.env.KEY);
  await page.keyboard.press("Enter");
  await isLive(page);
}

const SCENARIOS = {
  "name dialog": (page) => page.locator("#ask-input:focus").waitFor(),
  chat: enter,
  rooms: openRooms,
  status: isLive,
  login: (page) => page.locator("#key:focus").waitFor(),
  "status after a login": logIn,
  async report(page) {
    for (const summary of await page.locator("details > summary").all()) {
      if (await summary.evaluate((element) => element.parentElement.open || !element.checkVisibility())) continue;
      await summary.focus();
      await page.keyboard.press("Enter");
    }
  },
};

const found = await findings(browser, url, scenario, { prepare: SCENARIOS[scenario] });
await browser.close();
assert.deepEqual(found, []);
