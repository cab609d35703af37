// Logs in to the example of the guide, sends TEXT, and prints the items of the list as JSON once one
// of them is TEXT. Usage: node login.mjs CHROMIUM URL USER PASSWORD TEXT
import { openBrowser } from "./browser.mjs";

const [, , chromium, url, user, password, text] = process.argv;
const browser = await openBrowser(chromium);
try {
  const page = await browser.newPage();
  await page.goto(url);
  await page.fill('[name="user"]', user);
  await page.fill('[name="password"]', password);
  await page.click("button");
  await page.locator("#text").waitFor();
  // Before its script has run, the form would be sent as any other.
  await page.waitForLoadState("load");
  await page.fill("#text", text);
  await page.press("#text", "Enter");
  const items = page.locator("#list li");
  await items.filter({ hasText: text }).waitFor();
  console.log(JSON.stringify(await items.allInnerTexts()));
} finally {
  await browser.close();
}
