// Real pages in a real Chromium, talking on the chat page. One scenario per run; exit code 0 means
// that it held. Usage: node chat.mjs CHROMIUM URL SCENARIO SERVER_PID
//
// The pages reach the server through a proxy of this program, so that a connection can be lost as
// real connections are lost: no bytes pass, and neither side gets an error.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { openBrowser } from "./browser.mjs";
import { Proxy } from "./proxy.mjs";

/** Between two messages: 50 take longer than the 400 ms for which the page waits. */
const SLOW_MS = 15;

/** Selectors of the page's elements. */
const SELECTORS = {
  message: "#messages .message",
  text: "#text",
  send: "#send",
  people: "#people",
  transport: "#link-text",
  name: "#ask-input",
  nameDone: "#ask-ok",
  note: "#messages .note",
  link: "#link",
  outbox: "#outbox .message",
  rooms: "#rooms li",
  statusLink: 'a[href="status"]',
};

/** Stops the server. kill() returns before its threads have stopped; until then they answer. */
async function freeze(pid) {
  process.kill(pid, "SIGSTOP");
  const isRunning = (thread) => {
    const stat = `/proc/${pid}/task/${thread}/stat`;
    try {
      return !/\) T [^)]*$/.test(readFileSync(stat, "utf8"));
    } catch (error) {
      // A thread that was about to end has done so.
      if (!["ENOENT", "ESRCH"].includes(error.code)) throw error;
      return false;
    }
  };
  while (readdirSync(`/proc/${pid}/task`).some(isRunning)) await delay(1);
}

const [chromium, serverUrl, scenario, serverPid] = process.argv.slice(2);
const browser = await openBrowser(chromium);

/** Opens the chat page under a name; `prepare` may change the context first. */
async function open(url, name, prepare = async () => {}) {
  const context = await browser.newContext();
  await prepare(context);
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.errors = [];
  page.on("console", (message) => {
    if (message.type() === "error") page.errors.push(message.text());
  });
  await page.goto(`${url}/chat?room=${scenario}`);
  await page.fill(SELECTORS.name, name);
  await page.click(SELECTORS.nameDone);
  return page;
}

async function say(page, text) {
  await page.fill(SELECTORS.text, text);
  await page.click(SELECTORS.send);
}

/** Waits until a message is on the page. */
async function sees(page, text) {
  await page.locator(SELECTORS.message, { hasText: text }).first().waitFor();
}

/** Hides the page, or shows it, as far as it knows. */
async function hide(page, isHidden) {
  await page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { value, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
}

const firstLine = (text) => text.split("\n").find((line) => line.endsWith("."));

async function seesPerson(page, name) {
  await page.locator(SELECTORS.people, { hasText: name }).waitFor();
}

async function usesTransport(page, pattern) {
  await page.locator(SELECTORS.transport, { hasText: pattern }).waitFor();
}

/** Waits until the dot beside the connection shows that state. */
async function showsState(page, state) {
  await page.locator(`${SELECTORS.link}[data-state="${state}"]`).waitFor();
}

async function seesNote(page, text) {
  await page.locator(SELECTORS.note, { hasText: text }).first().waitFor();
}

/** Publishes to the room without a page; returns the id. */
async function publish(text) {
  const response = await fetch(`${serverUrl}/channels/chat%3A${scenario}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ kind: "say", from: "a program", text, key: text }),
  });
  assert.equal(response.status, 201);
  return (await response.json()).id;
}

async function historyOfRoom() {
  const response = await fetch(`${serverUrl}/channels/chat%3A${scenario}/history`);
  return (await response.json()).messages.map(({ data }) => data);
}

/** How often each of the texts is on the page. */
async function countOf(page, texts) {
  const shown = await page.locator(SELECTORS.message).allInnerTexts();
  return texts.map((text) => shown.filter((line) => line.includes(text)).length);
}

async function chat(ann, bo) {
  await say(ann, "hello from ann");
  await sees(bo, "hello from ann");
  await say(bo, "hello from bo");
  await sees(ann, "hello from bo");
  await sees(bo, "hello from bo");
}

const withoutWebSocket = (context) => context.addInitScript(() => delete window.WebSocket);

async function withPollOnly(context) {
  await withoutWebSocket(context);
  await context.addInitScript(() => delete window.EventSource);
  await context.route("**/*", (route) => {
    const isStream = route.request().headers().accept?.includes("text/event-stream");
    return isStream ? route.abort() : route.continue();
  });
}

/** A network on which a page of history takes longer than the page waits for it. */
const slowly = (context) => context.routeWebSocket(/subscribe/, (page) => {
  const server = page.connectToServer();
  let last = Promise.resolve();
  server.onMessage((frame) => {
    last = last.then(() => page.send(frame)).then(() => delay(SLOW_MS));
  });
});

const SCENARIOS = {
  async together() {
    const ann = await open(serverUrl, "ann");
    const bo = await open(serverUrl, "bo");
    await usesTransport(ann, /websocket/i);
    await chat(ann, bo);
    for (const page of [ann, bo]) {
      await seesPerson(page, "ann");
      await seesPerson(page, "bo");
      assert.deepEqual(page.errors, [], "the console has no errors");
    }
    await say(ann, "<img src=x onerror=alert(1)>");
    await sees(bo, "<img src=x onerror=alert(1)>");
    assert.equal(await bo.locator(`${SELECTORS.message} img`).count(), 0);
    return [ann, bo];
  },

  async lost() {
    const proxy = await Proxy.to(serverUrl);
    const ann = await open(proxy.url, "ann");
    const bo = await open(serverUrl, "bo");
    await chat(ann, bo);
    proxy.cut();
    const missed = Array.from({ length: 10 }, (_, n) => `missed ${n}.`);
    for (const text of missed) {
      await say(bo, text);
      await sees(bo, text);
    }
    proxy.heal();
    await sees(ann, missed.at(-1));
    assert.deepEqual(await countOf(ann, missed), missed.map(() => 1), "each exactly once");
    await say(ann, "back again");
    await sees(bo, "back again");
    proxy.server.close();
    return [ann, bo];
  },

  async sse() {
    const ann = await open(serverUrl, "ann", withoutWebSocket);
    const bo = await open(serverUrl, "bo");
    await usesTransport(ann, /sse|event/i);
    await chat(ann, bo);
    return [ann, bo];
  },

  async back() {
    const texts = Array.from({ length: 95 }, (_, n) => `text ${n}.`);
    for (const text of texts) await publish(text);
    const ann = await open(serverUrl, "ann", slowly);
    await sees(ann, texts.at(-1));
    assert.equal(await ann.locator(".unread").count(), 0, "nothing is unread at the first visit");
    await ann.locator("#older").waitFor();
    const end = await ann.locator("#scroller").evaluate((scroller) => {
      return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
    });
    assert.ok(end <= 1, `the reader is ${end} px above the end`);
    assert.deepEqual(await countOf(ann, [texts[0]]), [0], "only the last of them at first");
    const last = ann.locator(SELECTORS.message, { hasText: texts.at(-50) });
    await last.scrollIntoViewIfNeeded();
    await ann.locator(SELECTORS.message, { hasText: texts[0] }).first().waitFor();
    const shown = await ann.locator(`${SELECTORS.message} .text`).allInnerTexts();
    assert.deepEqual(shown, texts, "each once and in order");
    assert.equal(await ann.locator("#older").isVisible(), false, "there is nothing before them");
    return [ann];
  },

  async frozen() {
    const ann = await open(serverUrl, "ann");
    await say(ann, "before");
    await sees(ann, "before");
    await showsState(ann, "open");
    try {
      await freeze(serverPid);
      await say(ann, "while it is frozen");
      await showsState(ann, "waiting");
      await ann.locator(SELECTORS.outbox, { hasText: "Waiting for the server" }).waitFor();
    } finally {
      process.kill(serverPid, "SIGCONT");
    }
    await sees(ann, "while it is frozen");
    await showsState(ann, "open");
    assert.deepEqual(await countOf(ann, ["before", "while it is frozen"]), [1, 1]);
    return [ann];
  },

  /** The browser says that it is offline, then the network is gone, whatever the browser says. */
  async offline() {
    const proxy = await Proxy.to(serverUrl);
    const ann = await open(proxy.url, "ann", (context) =>
      // What the browser says depends on the networks of this machine.
      context.addInitScript(() => {
        window.isOnline = true;
        const get = () => window.isOnline;
        Object.defineProperty(Navigator.prototype, "onLine", { get, configurable: true });
      }),
    );
    const turn = (isOnline) =>
      ann.evaluate((to) => {
        window.isOnline = to;
        dispatchEvent(new Event(to ? "online" : "offline"));
      }, isOnline);
    const bo = await open(serverUrl, "bo");
    await showsState(ann, "open");
    await turn(false);
    await showsState(ann, "waiting");
    await turn(true);
    await showsState(ann, "open");
    proxy.cut();
    await showsState(ann, "waiting");
    await ann.locator("#notice").waitFor();
    await say(ann, "written offline");
    await ann.locator(SELECTORS.outbox, { hasText: "written offline" }).waitFor();
    const unsent = ann.getByRole("img", { name: "not sent yet" });
    await unsent.waitFor();
    await say(bo, "sent meanwhile");
    proxy.heal();
    await turn(true);
    for (const page of [ann, bo]) {
      await sees(page, "written offline");
      await sees(page, "sent meanwhile");
    }
    await unsent.waitFor({ state: "detached" });
    await showsState(ann, "open");
    await ann.locator("#notice").waitFor({ state: "hidden" });
    assert.deepEqual(await countOf(ann, ["written offline", "sent meanwhile"]), [1, 1]);
    assert.deepEqual(await countOf(bo, ["written offline", "sent meanwhile"]), [1, 1]);
    proxy.server.close();
    return [ann, bo];
  },

  /** What came while the reader was away is behind a line, until it has been read. */
  async unread() {
    for (const text of ["old 1.", "old 2."]) await publish(text);
    const ann = await open(serverUrl, "ann");
    await sees(ann, "old 2.");
    assert.equal(await ann.locator(".unread").count(), 0, "nothing is unread at the first visit");
    await ann.waitForFunction((room) => localStorage[`throng.read.${room}`], scenario);
    await ann.goto("about:blank");
    for (const text of ["new 1.", "new 2."]) await publish(text);
    await ann.goto(`${serverUrl}/chat?room=${scenario}`);
    await sees(ann, "new 2.");
    await ann.locator(".unread").waitFor();
    assert.equal(await ann.locator(".unread + .message").innerText().then(firstLine), "new 1.");
    const newest = await publish("new 3.");
    await sees(ann, "new 3.");
    assert.equal(await ann.locator(".unread").count(), 1, "one line");
    // The page takes what it shows for read some moments after it has opened.
    const isRead = ([room, id]) => localStorage[`throng.read.${room}`] === id;
    await ann.waitForFunction(isRead, [scenario, newest]);
    // Read to the end, in this tab, so that another one shows nothing as new.
    const other = await ann.context().newPage();
    await other.goto(`${serverUrl}/chat?room=${scenario}`);
    await sees(other, "new 3.");
    await publish("new 4.");
    await sees(other, "new 4.");
    await sees(ann, "new 4.");
    assert.equal(await other.locator(".unread").count(), 0, "it has been read");
    await say(ann, "an answer");
    await sees(ann, "an answer");
    assert.equal(await ann.locator(".unread").count(), 0, "whoever answers has read");
    return [ann];
  },

  /** Two tabs of one person: one in the room, with the same messages as own. */
  async tabs() {
    const bo = await open(serverUrl, "bo");
    await seesPerson(bo, "bo");
    const ann = await open(serverUrl, "ann");
    await seesNote(bo, "ann joined");
    const second = await ann.context().newPage();
    await second.goto(`${serverUrl}/chat?room=${scenario}`);
    await say(ann, "from the first tab");
    await sees(second, "from the first tab");
    assert.equal(await second.locator(`${SELECTORS.message}.own`).count(), 1, "it is mine");
    await ann.close();
    await say(second, "the other tab is closed");
    await sees(bo, "the other tab is closed");
    const cy = await open(serverUrl, "cy");
    await seesNote(bo, "cy joined");
    await cy.context().close();
    await seesNote(bo, "cy left");
    const notes = await bo.locator(SELECTORS.note).allInnerTexts();
    assert.ok(!notes.join().includes("ann left"), `ann is still here: ${notes}`);
    assert.equal(await bo.locator(`${SELECTORS.people} li`, { hasText: "ann" }).count(), 1);
    await second.context().close();
    await seesNote(bo, "ann left");
    return [bo];
  },

  /** A page that nobody sees, and one that somebody does. */
  async away() {
    const [ann, bo] = [await open(serverUrl, "ann"), await open(serverUrl, "bo")];
    const away = ann.locator(`${SELECTORS.people} li`, { hasText: "bo" }).filter({ hasText: "away" });
    const back = ann.locator(`${SELECTORS.people} li`, { hasText: "bo", hasNotText: "away" });
    await back.waitFor();
    await hide(bo, true);
    await away.waitFor();
    await hide(bo, false);
    await back.waitFor();
    await hide(bo, true);
    await away.waitFor();
    const second = await bo.context().newPage();
    await second.goto(`${serverUrl}/chat?room=${scenario}`);
    await back.waitFor();
    assert.equal(await ann.locator(SELECTORS.note, { hasText: "bo left" }).count(), 0);
    return [ann, bo];
  },

  /** Everything without a pointer. */
  async keyboard() {
    const ann = await open(serverUrl, "ann");
    await showsState(ann, "open");
    await ann.focus(SELECTORS.text);
    await ann.keyboard.type("typed");
    await ann.keyboard.press("Enter");
    await sees(ann, "typed");
    const reached = new Set();
    for (let presses = 0; presses < 40; presses += 1) {
      await ann.keyboard.press("Tab");
      reached.add(await ann.evaluate(() => document.activeElement.id));
    }
    for (const id of ["room-new", "me", "share", "scroller", "text"]) {
      assert.ok(reached.has(id), `${id} cannot be reached: ${[...reached]}`);
    }
    await ann.focus("#room-new");
    await ann.keyboard.press("Enter");
    await ann.keyboard.type("by keyboard");
    await ann.keyboard.press("Enter");
    await ann.locator("#room", { hasText: "by keyboard" }).waitFor();
    return [ann];
  },

  async namesakes() {
    const ann = await open(serverUrl, "ann");
    const other = await open(serverUrl, "ann");
    const bo = await open(serverUrl, "bo");
    await seesNote(ann, "bo joined");
    await say(other, "from the other ann");
    await sees(ann, "from the other ann");
    await sees(other, "from the other ann");
    const own = `${SELECTORS.message}.own`;
    assert.equal(await ann.locator(own).count(), 0, "another ann is not me");
    assert.equal(await other.locator(own).count(), 1);
    await other.reload();
    await sees(other, "from the other ann");
    assert.equal(await other.locator(own).count(), 1, "still mine after a reload");
    await other.context().close();
    const cy = await open(serverUrl, "cy");
    await seesNote(bo, "cy joined");
    await cy.context().close();
    await seesNote(bo, "cy left");
    const notes = await bo.locator(SELECTORS.note).allInnerTexts();
    assert.ok(!notes.join().includes("ann left"), "an ann is still here");
    await ann.context().close();
    await seesNote(bo, "ann left");
    const kept = await historyOfRoom();
    assert.deepEqual(kept.map(({ text }) => text), ["from the other ann"], "and no notes");
    return [bo];
  },

  async rooms() {
    const ann = await open(serverUrl, "ann");
    await showsState(ann, "open");
    await ann.goto(`${serverUrl}/chat?room=second`);
    const second = ann.locator(SELECTORS.rooms, { hasText: "second" });
    const first = ann.locator(SELECTORS.rooms, { hasText: scenario });
    await first.waitFor();
    await second.locator(".forget").click();
    await ann.locator("#room", { hasText: scenario }).waitFor();
    await second.waitFor({ state: "detached" });
    await ann.locator(SELECTORS.statusLink).waitFor({ state: "attached" });
    assert.equal(await ann.locator(".forget").count(), 0, "the last room stays");
    return [ann];
  },

  /** On a server whose status page is at its admin listener. */
  async elsewhere() {
    const ann = await open(serverUrl, "ann");
    await showsState(ann, "open");
    await seesPerson(ann, "ann");
    assert.equal(await ann.locator(SELECTORS.statusLink).count(), 0, "the link would lead nowhere");
    assert.deepEqual(ann.errors, [], "the console has no errors");
    return [ann];
  },

  async poll() {
    const ann = await open(serverUrl, "ann", withPollOnly);
    const bo = await open(serverUrl, "bo");
    await usesTransport(ann, /poll/i);
    await chat(ann, bo);
    return [ann, bo];
  },
};

let code = 0;
try {
  const pages = await SCENARIOS[scenario]();
  for (const page of pages) assert.deepEqual(page.faults, []);
} catch (error) {
  console.error(error);
  for (const context of browser.contexts()) {
    for (const page of context.pages()) {
      console.error(`--- ${page.url()}\n${await page.innerText("body").catch(String)}`);
    }
  }
  code = 1;
}
await browser.close();
process.exit(code);
