// Opens the chat with a token in its URL, says something, and reloads the page, which must still have
// the token. Exit code 0 means that it held. Usage: node chat-token.mjs CHROMIUM URL
import assert from "node:assert/strict";
import { openBrowser } from "./browser.mjs";

const [, , chromium, url] = process.argv;
const browser = await openBrowser(chromium);
try {
  const page = await browser.newPage();
  await page.goto(url);
  for (const text of ["with a token", "after a reload"]) {
    await page.fill("#text", text);
    await page.click("#send");
    const message = page.locator("#messages .message", { hasText: text });
    await message.waitFor();
    await page.locator("#people", { hasText: "ann" }).waitFor();
    assert.ok(!page.url().includes("token"), page.url());
    await page.reload();
  }
  await page.locator("#messages .message", { hasText: "with a token" }).waitFor();
} finally {
  await browser.close();
}
