/**
 * The JavaScript client in a page of Chromium, driven like `client.mjs`: node browser.mjs CHROMIUM.
 * The page comes from a server of this program, so that what a test cuts is the client only.
 */

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { chromium } from "../../../tests/node_modules/playwright-core/index.mjs";

const PAGE = `<!doctype html><meta charset="utf-8"><script type="module">
  import { Throng } from "/throng.js";
  import { commands, toLine } from "/commands.mjs";
  const work = commands(Throng, (event) => print(toLine(event)), {});
  window.run = (command) => work[command.command](command);
</script>`;

const files = createServer(({ url }, response) => {
  if (url === "/") return response.setHeader("Content-Type", "text/html").end(PAGE);
  const folder = url === "/commands.mjs" ? "." : "../../javascript/dist";
  try {
    const text = readFileSync(new URL(folder + url, import.meta.url));
    response.setHeader("Content-Type", "text/javascript").end(text);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((resolve) => files.listen(0, "127.0.0.1", resolve));

const flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
// As long as a test waits for an event: beside other tests, a browser's start takes its time.
const timeout = 180_000;
const browser = await chromium.launch({ executablePath: process.argv[2], args: flags, timeout });
const page = await browser.newPage();
page.setDefaultTimeout(timeout);
page.on("pageerror", (error) => console.error("in the page:", error));
page.on("crash", () => {
  console.error("the page has crashed");
  process.exit(1);
});
await page.exposeFunction("print", (line) => console.log(line));
await page.goto(`http://127.0.0.1:${files.address().port}/`);
await page.waitForFunction("window.run");

for await (const line of createInterface({ input: process.stdin })) {
  // Publications report their end themselves.
  await page.evaluate((command) => void window.run(command), JSON.parse(line));
}
await browser.close();
process.exit(0);
