// Saves a picture of a page, for `take`: node shoot.mjs CHROMIUM PICTURE URL FILE

import { chromium } from "playwright-core";

const [executablePath, what, url, path] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

async function open(options) {
  const context = await browser.newContext({ locale: "en-GB", ...options });
  const page = await context.newPage();
  await page.goto(url);
  return page;
}

/** Opens the chat under a name. */
async function enter(name) {
  const page = await open({ viewport: { width: 900, height: 560 }, deviceScaleFactor: 2 });
  await page.fill("#ask-input", name);
  await page.click("#ask-ok");
  return page;
}

const CONVERSATION = [
  ["Ann", "Morning! Is the 8:40 ferry still running in this wind?"],
  ["Bo", "Just left the pier, with me on it."],
  ["Bo", "Bumpy, but the coffee stayed in the cup."],
  ["Ann", "Good. Then I'll take the next one."],
  ["Bo", "Timetable: https://ferry.example/today"],
  ["Ann", "Thanks! See you at the quay."],
];

const PICTURES = {
  async status() {
    const page = await open({ viewport: { width: 1280, height: 900 } });
    await page.locator('#link[data-state="live"]').waitFor();
    await page.locator(".aside", { hasText: "capacity" }).waitFor();
    await page.locator(".figure", { hasText: /\d\/s/ }).first().waitFor();
    await page.locator(".chart canvas").first().waitFor();
    await page.screenshot({ path, fullPage: true });
  },

  async chat() {
    const pages = { Ann: await enter("Ann") };
    await pages.Ann.locator("#people", { hasText: "Ann" }).waitFor();
    pages.Bo = await enter("Bo");
    await pages.Ann.locator("#messages .note", { hasText: "Bo joined" }).waitFor();
    for (const [name, text] of CONVERSATION) {
      await pages[name].fill("#text", text);
      await pages[name].click("#send");
      for (const page of Object.values(pages)) {
        await page.locator("#messages .message", { hasText: text }).waitFor();
      }
    }
    await pages.Ann.focus("#text");
    await pages.Ann.screenshot({ path });
  },

  /** Only some of the charts: the whole report is several times as high. */
  async "flood-report"() {
    const page = await open({ viewport: { width: 1000, height: 800 } });
    const shown = ["connections", "latency", "histogram", "percentiles"];
    await page.evaluate((kept) => {
      for (const details of document.querySelectorAll("details")) details.remove();
      for (const figure of document.querySelectorAll("figure")) {
        if (!kept.includes(figure.id)) figure.remove();
      }
      for (const section of document.querySelectorAll("section")) {
        if (!section.querySelector("figure")) section.remove();
        section.querySelector(":scope > .scroll")?.remove();
      }
      document.querySelector("main > footer")?.remove();
    }, shown);
    const end = await page.locator("#percentiles").boundingBox();
    const height = Math.ceil(end.y + end.height) + 10;
    await page.screenshot({ path, fullPage: true, clip: { x: 0, y: 0, width: 1000, height } });
  },
};

await PICTURES[what]();
await browser.close();
