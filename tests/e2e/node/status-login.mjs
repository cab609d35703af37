// The login of the status page in a real Chromium; exit code 0 means success. Usage:
// node status-login.mjs CHROMIUM URL [PICTURES]
//
// The server key comes in the variable KEY, so that no list of processes shows it.
import assert from "node:assert/strict";
import { openBrowser } from "./browser.mjs";

const [chromium, serverUrl, pictures] = process.argv.slice(2);
const { port, protocol } = new URL(serverUrl);
const isSecure = protocol === "https:";
// A name that is not loopback, so that the page is not safe without TLS.
const FAR = `${protocol}//throng.example:${port}`;
const flags = ["--host-resolver-rules=MAP throng.example 127.0.0.1"];
const browser = await openBrowser(chromium, flags);
// The certificate is the test's own.
const context = await browser.newContext({
  viewport: { width: 900, height: 640 }, ignoreHTTPSErrors: isSecure,
});
const page = await context.newPage();
const faults = [];
page.on("pageerror", (error) => faults.push(String(error)));
page.on("console", (message) => {
  if (/Content.Security.Policy/i.test(message.text())) faults.push(message.text());
});

const shoot = async (name) => pictures && page.screenshot({ path: `${pictures}/${name}.png` });

async function logIn(key) {
  await page.getByLabel("Server key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
}

const first = await page.goto(`${serverUrl}/status`);
assert.equal(first.status(), 401);
await page.locator("#key:focus").waitFor();
assert.equal(await page.locator("#refusal").isVisible(), false);
await shoot("login");

await logIn("throng_key_hunter2");
await page.locator("#refusal", { hasText: "mistyped" }).waitFor();
await shoot("refused");

await logIn(process.env.KEY);
await page.waitForURL(`${serverUrl}/status`);
await page.locator('#link[data-state="live"]').waitFor();
await shoot("status");
const [cookie, ...others] = await context.cookies();
assert.deepEqual(others, []);
assert.equal(cookie.httpOnly, true);
assert.equal(cookie.sameSite, "Strict");
assert.equal(cookie.secure, isSecure);
assert.ok(!cookie.value.includes(process.env.KEY));
assert.equal((await page.goto(`${serverUrl}/metrics`)).status(), 200);

await page.goto(`${serverUrl}/status`);
await page.getByRole("button", { name: "Log out" }).click();
await page.getByLabel("Server key").waitFor();
assert.deepEqual(await context.cookies(), []);

await page.goto(`${FAR}/status`);
if (isSecure) {
  // TLS makes the page safe under any name.
  await logIn(process.env.KEY);
  await page.locator('#link[data-state="live"]').waitFor();
  await page.locator("#certificates").waitFor();
} else {
  await page.locator("#insecure").waitFor();
  assert.equal(await page.getByLabel("Server key").isDisabled(), true);
  await shoot("insecure");
  const refused = await page.evaluate(async () => {
    const response = await fetch("/status/login", { method: "POST", body: new URLSearchParams({ key: "x" }) });
    return response.status;
  });
  assert.equal(refused, 403);
}

assert.deepEqual(faults, []);
await browser.close();
