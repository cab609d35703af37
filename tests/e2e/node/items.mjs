// Opens a page in Chromium and prints, as JSON, the texts of its `#list li` once there are COUNT of
// them. Usage: node items.mjs CHROMIUM URL COUNT
import { openBrowser } from "./browser.mjs";

const [, , chromium, url, count] = process.argv;
const browser = await openBrowser(chromium);
try {
  const page = await browser.newPage();
  await page.goto(url);
  const items = page.locator("#list li");
  await items.nth(Number(count) - 1).waitFor();
  console.log(JSON.stringify(await items.allInnerTexts()));
} finally {
  await browser.close();
}
