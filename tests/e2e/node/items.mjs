// Opens a page in Chromium and prints, as JSON, the texts of its `#list li` once there are COUNT of
// them. Usage: node items.mjs CHROMIUM URL COUNT
import { chromium } from "playwright-core";

const [, , executablePath, url, count] = process.argv;
const flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
const browser = await chromium.launch({ executablePath, args: flags });
try {
  const page = await browser.newPage();
  await page.goto(url);
  const items = page.locator("#list li");
  await items.nth(Number(count) - 1).waitFor();
  console.log(JSON.stringify(await items.allInnerTexts()));
} finally {
  await browser.close();
}
