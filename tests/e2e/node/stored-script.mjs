// Opens a long-poll's answer as a page in Chromium, as a link in a mail would, with some of its
// headers taken away on the way: node stored-script.mjs CHROMIUM URL [HEADER...]
// The message publishes to /channels/ran if it may run. Tells what became of the page.

import { chromium } from "playwright-core";

const [executablePath, url, ...stripped] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
await page.route(url, async (route) => {
  const response = await route.fetch();
  const headers = Object.fromEntries(
    Object.entries(response.headers()).filter(([name]) => !stripped.includes(name)),
  );
  await route.fulfill({ response, headers });
});
// A navigation that becomes a download fails.
const shown = await page.goto(url, { waitUntil: "load" }).then(
  () => true,
  () => false,
);
console.log(JSON.stringify({ shown, title: await page.title() }));
await browser.close();
