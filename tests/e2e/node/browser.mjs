// Chromium for the scripts beside this one. As a program, it keeps one running for many of them:
// node browser.mjs CHROMIUM prints an address, and ends with its standard input.
import { chromium } from "playwright-core";

const TIMEOUT_MS = 60_000;
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
 */
export function openBrowser(place, flags = []) {
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
