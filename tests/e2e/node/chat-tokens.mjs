// Two people in the chat of a server with access control, each with a token: one in the URL, one
// typed: node chat-tokens.mjs CHROMIUM URL FIRST_TOKEN SECOND_TOKEN BAD_TOKEN

import assert from "node:assert/strict";
import { openBrowser } from "./browser.mjs";

const [chromium, url, first, second, bad] = process.argv.slice(2);
const browser = await openBrowser(chromium);

async function open(fragment) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${url}/chat${fragment}`);
  return page;
}

const says = async (page, text) => {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
};
const hears = (page, text) => page.locator("#messages .message", { hasText: text }).waitFor();
const answers = async (page, title, text) => {
  await page.locator("#ask-title", { hasText: title }).waitFor();
  await page.fill("#ask-input", text);
  await page.click("#ask-ok");
};

const ann = await open(`#token=${first}`);
await says(ann, "hello from ann");
await hears(ann, "hello from ann");
assert.equal(await ann.textContent("#me-name"), "ann");
assert.ok(!ann.url().includes("token"), "the token stays in the URL");

const bo = await open("");
await answers(bo, "Welcome", "somebody else");
await answers(bo, "requires a token", bad);
await answers(bo, "requires a token", second);
await hears(bo, "hello from ann");
await says(bo, "hello from bo");
await hears(ann, "hello from bo");
assert.equal(await bo.textContent("#me-name"), "bo");
await ann.locator("#people", { hasText: "bo" }).waitFor();

await bo.reload();
await hears(bo, "hello from bo");
await browser.close();
