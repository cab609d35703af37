// Opens a long-poll's response as a page in Chromium, as a link in an e-mail would, with some of its
// headers removed: node stored-script.mjs CHROMIUM URL [HEADER...]
// The message publishes to /channels/ran if it may run. Prints whether the page opened.

import { openBrowser } from "./browser.mjs";

const [chromium, url, ...stripped] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const page = await browser.newPage();
await page.route(url, async (route) => {
  const response = await route.fetch();
  const headers = Object.fromEntries(
    Object.entries(response.headers()).filter(([name]) => !stripped.includes(name)),
  );
  await route.fulfill({ response, headers });
});
// A navigation fails if it becomes a download.
const shown = await page.goto(url, { waitUntil: "load" }).then(
  () => true,
  () => false,
);
console.log(JSON.stringify({ shown, title: await page.title() }));
await browser.close();
