// Opens a page in Chromium, and ends once it shows all texts.
// Usage: node texts.mjs CHROMIUM URL TEXT…
import { openBrowser } from "./browser.mjs";

const [, , chromium, url, ...texts] = process.argv;
const browser = await openBrowser(chromium);
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.error(String(error)));
  page.on("console", (message) => console.error(message.text()));
  // Less than the caller waits, so that the step is named.
  await page.goto(url);
  await Promise.all(texts.map((text) => page.getByText(text).waitFor()));
} finally {
  await browser.close();
}
