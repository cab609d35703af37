// Uses an example as people do, in Chromium. Usage: node examples.mjs CHROMIUM EXAMPLE URL
import assert from "node:assert";
import { openBrowser } from "./browser.mjs";

const [, , chromium, example, url] = process.argv;
const browser = await openBrowser(chromium);

/** A page of somebody with cookies of their own. `watch(page)` is called before it loads anything. */
async function open(query = "", watch = () => {}) {
  const context = await browser.newContext();
  // Less than the caller waits, so that the step is named.
  const page = await context.newPage();
  page.on("pageerror", (error) => console.error(String(error)));
  page.on("console", (message) => console.error(message.text()));
  watch(page);
  await page.goto(url + query);
  return page;
}

async function notifications() {
  const [ann, bob] = [await open(), await open()];
  await logIn(ann, "ann", "banana");
  await ann.getByRole("alert").waitFor();
  for (const [page, user, password] of [[ann, "ann", "apple"], [bob, "bob", "banana"]]) {
    await logIn(page, user, password);
    await page.getByText(`Notifications for ${user}`).waitFor();
  }
  const send = async (user, text) => {
    await bob.selectOption("[name=user]", user);
    await bob.fill("[name=text]", text);
    await bob.getByRole("button", { name: "Send" }).click();
  };
  await send("ann", "first");
  await ann.getByText("bob: first").waitFor();
  await ann.reload();
  await ann.getByText("bob: first").waitFor();
  await send("ann", "second");
  await ann.getByText("bob: second").waitFor();
  await send("bob", "to myself");
  await bob.getByText("bob: to myself").waitFor();
  assert.deepEqual(await ann.locator("li").allInnerTexts(), ["bob: second", "bob: first"]);
  assert.deepEqual(await bob.locator("li").allInnerTexts(), ["bob: to myself"]);
  await ann.getByRole("button", { name: "Log out" }).click();
  await ann.getByRole("heading", { name: "Log in" }).waitFor();
}

/** Fills in the login of an example. */
async function logIn(page, user, password) {
  await page.fill("[name=user]", user);
  await page.fill("[name=password]", password);
  await page.click("button");
}

async function chat() {
  const [ann, bob] = [await open(), await open()];
  await logIn(ann, "ann", "banana");
  await ann.getByRole("alert").getByText("Wrong name or password").waitFor();
  await logIn(ann, "ann", "apple");
  const people = (page, names) => page.waitForFunction((expected) => {
    return document.getElementById("people").innerText === expected;
  }, names);
  const say = async (page, text) => {
    await page.fill("[name=text]", text);
    await page.keyboard.press("Enter");
  };
  await people(ann, "Ann Archer (ann)");
  await say(ann, "anybody here?");
  await ann.getByText("ann: anybody here?").waitFor();
  await logIn(bob, "bob", "banana");
  await ann.getByText("bob has joined").waitFor();
  await people(bob, "Ann Archer (ann); Bob Barker (bob)");
  await bob.getByText("ann: anybody here?").waitFor();
  // A second window of the same person.
  const second = await bob.context().newPage();
  await second.goto(url);
  await people(second, "Ann Archer (ann); Bob Barker (bob)");
  await bob.check("#away");
  await people(ann, "Ann Archer (ann); Bob Barker (bob), away");
  await bob.uncheck("#away");
  await people(ann, "Ann Archer (ann); Bob Barker (bob)");
  await say(second, "<b>yes</b>");
  for (const page of [ann, bob, second]) await page.getByText("bob: <b>yes</b>").waitFor();
  // What fails is not lost, and a text that is changed before the next attempt is no repetition of it.
  let attempts = 0;
  await bob.route("**/messages", async (route) => {
    attempts += 1;
    if (attempts > 1) return route.continue();
    await route.fetch();
    await route.abort();
  });
  await say(bob, "published, but unanswered");
  await bob.getByText("Not sent. Try again.").waitFor();
  await bob.keyboard.press("Enter");
  await bob.waitForFunction(() => document.querySelector("[name=text]").value === "");
  await say(bob, "next");
  await bob.getByText("bob: next").waitFor();
  assert.equal(await bob.getByText("published, but unanswered").count(), 1);
  attempts = 0;
  await say(bob, "firstt");
  await bob.getByText("Not sent. Try again.").waitFor();
  await say(bob, "first");
  await bob.getByText("bob: first", { exact: true }).waitFor();
  await bob.unroute("**/messages");
  // The token of a page does not publish, under its own name or another.
  const status = await bob.evaluate(async () => {
    const token = await (await fetch("/push-token")).text();
    const [server] = /http[^"]*(?=\/throng.js)/.exec(document.querySelector("script[type]").text);
    const headers = { Authorization: `Bearer ${token}` };
    const body = JSON.stringify({ from: "ann", text: "forged" });
    return (await fetch(`${server}/channels/rooms%2Flobby`, { method: "POST", headers, body })).status;
  });
  assert.equal(status, 403);
  await second.close();
  await bob.getByRole("button", { name: "Log out" }).click();
  await ann.getByText("bob has left").waitFor();
  await people(ann, "Ann Archer (ann)");
  const notes = await ann.locator(".note").allInnerTexts();
  const expected = ["bob has joined", "bob is away", "bob is back", "bob has left"];
  assert.deepEqual(notes, expected, "two windows are one person");
}

async function prices() {
  const sockets = [];
  const page = await open("", (opened) => opened.on("websocket", (socket) => sockets.push(socket)));
  await page.waitForFunction(() => {
    const items = [...document.querySelectorAll("li")];
    return items.length === 200 && items.every((item) => /^S\d{3} \d+\.\d\d$/.test(item.innerText));
  });
  // Prices that move, and not only the first ones.
  await page.waitForFunction(() => document.querySelector(".down"));
  // All prices come over one connection.
  assert.equal(sockets.length, 1);
  const age = page.locator("#age");
  await age.filter({ hasText: /^\d+ ms$|^\d+\.\d s$/ }).waitFor();
  // A page that is blocked for two seconds shows older prices than before, then new ones again.
  await page.getByRole("button", { name: "slow" }).click();
  await page.waitForFunction(() => parseFloat(document.getElementById("age").textContent) >= 1.5
    && document.getElementById("age").textContent.endsWith(" s"));
  await page.getByRole("button", { name: "slow" }).click();
  await age.filter({ hasText: " ms" }).waitFor();
}

async function expressSse() {
  const pages = [await open(), await open()];
  for (const page of pages) {
    await page.waitForFunction(() => events.readyState === EventSource.OPEN);
  }
  for (const [page, item] of [[pages[0], "tea"], [pages[1], "cake"]]) {
    await page.fill("[name=article]", item);
    await page.getByRole("button", { name: "Order" }).click();
    await Promise.all(pages.map((each) => each.getByText(item).waitFor()));
  }
  for (const page of pages) {
    assert.deepEqual(await page.locator("li").allInnerTexts(), ["tea", "cake"]);
  }
}

async function list() {
  const [ann, bob] = [await open("?name=ann"), await open("?name=bob")];
  for (const page of [ann, bob]) {
    await page.waitForFunction(() => /ann.*bob|bob.*ann/.test(document.body.innerText));
  }
  const add = async (page, text) => {
    await page.fill("[name=text]", text);
    await page.getByRole("button", { name: "Add" }).click();
    await Promise.all([ann, bob].map((each) => each.getByLabel(text).waitFor()));
  };
  await add(ann, "milk");
  await add(bob, "bread");
  // Unlike `check`, does not expect the box to change at once: the application changes it.
  await bob.getByLabel("milk").click();
  const isDone = () => document.querySelector("li input").checked;
  await Promise.all([ann, bob].map((page) => page.waitForFunction(isDone)));
  await ann.getByRole("button", { name: "Remove bread" }).click();
  await bob.getByLabel("bread").waitFor({ state: "detached" });
  // What was before, is loaded.
  const late = await open("?name=cleo");
  await late.getByLabel("milk").waitFor();
  assert.deepEqual(await late.locator("li label").allInnerTexts(), ["milk"]);
}

const run = { notifications, chat, prices, list, "express-sse": expressSse }[example];
try {
  await run();
} finally {
  await browser.close();
}
