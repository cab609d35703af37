// Chromium for the scripts beside this one. As a program, it keeps one running for many of them:
// node browser.mjs CHROMIUM prints an address, and ends with its standard input.
import { chromium } from "playwright-core";

/** Limits failures only. Beside many other processes on two cores, a page has taken more than a minute. */
export const TIMEOUT_MS = 180_000;
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/**
 * Opens a browser: the running one at `place` if that is an address, a new one if it is a program.
 * Flags need a new one. Contexts of a shared browser share nothing, and end with the script.
 * What its pages wait for may take `TIMEOUT_MS`.
 */
export async function openBrowser(place, flags = []) {
  const browser = await openedBrowser(place, flags);
  for (const open of ["newContext", "newPage"]) {
    const opened = browser[open].bind(browser);
    browser[open] = async (options) => {
      const context = await opened(options);
      context.setDefaultTimeout(TIMEOUT_MS);
      return context;
    };
  }
  return browser;
}

function openedBrowser(place, flags) {
  if (!place.startsWith("ws:")) {
    return chromium.launch({ executablePath: place, args: [...FLAGS, ...flags], timeout: TIMEOUT_MS });
  }
  if (flags.length > 0) throw new Error(`flags for a browser that runs: ${flags}`);
  return chromium.connect(place, { timeout: TIMEOUT_MS });
}

if (import.meta.filename === process.argv[1]) {
  const server = await chromium.launchServer({
    executablePath: process.argv[2],
    args: FLAGS,
    host: "127.0.0.1",
    timeout: TIMEOUT_MS,
  });
  console.log(server.wsEndpoint());
  for await (const _ of process.stdin);
  await server.close();
}
