// Opens a page from a file in Chromium and prints its contents and the errors of the browser:
// node page.mjs CHROMIUM FILE

import { pathToFileURL } from "node:url";
import { openBrowser } from "./browser.mjs";

const [chromium, file] = process.argv.slice(2);
const browser = await openBrowser(chromium);
const page = await browser.newPage({ viewport: { width: 390, height: 800 } });
const complaints = [];
page.on("console", (message) => complaints.push(message.text()));
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("request", (request) => {
  if (!request.url().startsWith("file:")) complaints.push(`asked for ${request.url()}`);
});
await page.goto(pathToFileURL(file).href);
const found = await page.evaluate(() => ({
  title: document.title,
  headings: [...document.querySelectorAll("h2")].map((heading) => heading.textContent),
  charts: [...document.querySelectorAll("figure svg")].filter(
    (chart) => chart.getBoundingClientRect().height > 20,
  ).length,
  // A page has two scripts and no image; more would be markup in somebody's text.
  markup: document.images.length + document.scripts.length - 2,
  isTooWide: document.documentElement.scrollWidth > window.innerWidth,
}));
console.log(JSON.stringify({ ...found, complaints }));
await browser.close();
