/**
 * The chat page. A room is the channel `chat:{room}`; its messages are JSON:
 * `{"kind":"say","from","by","text","key"}`. `from` is a name that anybody may use, `by` a random id
 * of the browser, which tells one's own messages from those of a namesake. What others publish there
 * without that shape is shown as it is, without a name.
 *
 * Who is here is the room's presence. Whoever comes or goes publishes an empty hint to
 * `here:{room}`, so that the others ask again soon. Hints are not part of the room: they cannot
 * push what was said out of its history.
 *
 * This file talks to the server and decides; `chat-view.js` and `chat-list.js` draw.
 *
 * Layout: what is remembered, what is said, what was said before, who is here, the way in and out of
 * rooms, the controls.
 *
 * Invariant: what was written is on the page at once: in the outbox until the room has it, marked
 * where it failed, and never twice (its `key` tells it from the room's copy).
 */

import { Throng } from "./throng.js";
import * as list from "./chat-list.js";
import * as view from "./chat-view.js";
import { $ } from "./chat-view.js";

const HISTORY_COUNT = 50;
const ROOMS_MAX = 12;
const FROM_LENGTH_MAX = 40;
const TEXT_LENGTH_MAX = 4_000;
const PRESENCE_MS = 15_000;
/** Everybody hears a hint at once; their questions who is here begin and are spread like this. */
const HINT_DELAY_MS = 300;
const PRESENCE_SPREAD_MS = 1_500;
/** Whoever is missing is asked for once more: a connection that comes back has not left. */
const MISSING_MS = 3_000;
/** A message that the server has not confirmed by then is shown as waiting. */
const OVERDUE_MS = 2_000;
/** The room's copy of a sent message may be lost to a gap: then the page keeps its own. */
const COPY_DELAY_MS = 5_000;
/** The history is on its way right behind the subscription; without any by then, there is none. */
const HISTORY_DELAY_MS = 400;

/** Where everybody begins. */
const LOBBY = "lobby";
const TRANSPORTS = ["websocket", "sse", "poll"];

const query = new URLSearchParams(location.search);

let name = "";
let me = "";
let room = "";
let throng;
let chat;
/** The keys of messages on the page, so that the outbox and the room agree. */
const shown = new Set();
/** Elements in the outbox by key. */
const outbox = new Map();
/** The keys of messages that the server should have confirmed by now. */
const overdue = new Set();
let presenceTimer;
let presenceDueAt = Infinity;
/** The names in the room, and those that were missing when last asked; unset before the first. */
let here;
let missing = new Set();
/** Whether there are messages before the oldest one on the page. */
let hasOlder = false;
let isLoadingOlder = false;

/* What is remembered. A page may be denied its storage: then nothing is. */

function recall(key) {
  try {
    return localStorage.getItem(`throng.${key}`);
  } catch {
    return null;
  }
}

function remember(key, value) {
  try {
    localStorage.setItem(`throng.${key}`, value);
  } catch {
    // Nothing to be done, and nothing lost but convenience.
  }
}

/** Tells this browser's messages from those of a namesake. */
function ownId() {
  const id = recall("id") ?? randomKey();
  remember("id", id);
  return id;
}

function recentRooms() {
  try {
    const rooms = JSON.parse(recall("rooms") ?? "[]");
    return Array.isArray(rooms) ? rooms.map(String) : [];
  } catch {
    return [];
  }
}

/** Names travel in URLs, where a slash would part them and dots alone would climb. */
function clean(text) {
  const plain = text.replace(/[\p{Cc}\p{Cf}/\\]/gu, "").replace(/\s+/g, " ").trim();
  return /^\.*$/.test(plain) ? "" : [...plain].slice(0, FROM_LENGTH_MAX).join("");
}

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/* What is said. */

function receive({ id, data, time, replayed }) {
  const said = toSay(data);
  const { by, key } = said;
  if (key && shown.has(key)) return;
  const isOwn = by === me;
  place(key, list.toElement({ ...said, id, ms: time, isOwn }));
  if (!isOwn && !replayed) list.countUnread();
}

/** What others may have sent, brought into shape. */
function toSay(data) {
  const toText = (text) => text.slice(0, TEXT_LENGTH_MAX);
  if (typeof data === "string") return { from: "", text: toText(data) };
  if (data instanceof Uint8Array) return { from: "", text: `${data.length} bytes` };
  const toWord = (value) => (typeof value === "string" ? value : undefined);
  const from = clean(toWord(data?.from) ?? "");
  const by = toWord(data?.by);
  const isSay = data?.kind === "say" && typeof data.text === "string";
  if (!isSay) return { from, by, text: toText(JSON.stringify(data)) };
  return { from, by, text: toText(data.text), key: toWord(data.key) };
}

/** Into the room; out of the outbox, if it was written here. */
function place(key, element) {
  if (key) {
    shown.add(key);
    outbox.get(key)?.remove();
    outbox.delete(key);
  }
  if (list.append(element)) showOlder(true);
}

function say(text) {
  const key = randomKey();
  const element = list.toElement({ from: name, by: me, text, ms: Date.now(), isOwn: true });
  outbox.set(key, element);
  $("outbox").append(element);
  $("empty").hidden = true;
  list.showEnd();
  send(key, text, element, `chat:${room}`);
}

async function send(key, text, element, channel) {
  list.markPending(element);
  const timer = setTimeout(() => {
    overdue.add(key);
    list.markOverdue(element);
    view.showOverdue(true);
  }, OVERDUE_MS);
  try {
    await throng.publish(channel, { kind: "say", from: name, by: me, text, key }, { key });
    list.markSent(element);
    setTimeout(() => {
      if (outbox.get(key) === element) place(key, element);
    }, COPY_DELAY_MS);
  } catch (error) {
    if (outbox.get(key) !== element) return;
    // Its key makes it safe to send it again, whatever became of it.
    list.markFailed(element, error, () => send(key, text, element, channel));
  } finally {
    clearTimeout(timer);
    overdue.delete(key);
    view.showOverdue(overdue.size > 0);
  }
}

/* What was said before. */

/** The page before the oldest message here; called when the reader comes near to it. */
async function loadOlder() {
  const [asked, before] = [room, list.oldestId()];
  if (!hasOlder || isLoadingOlder || !before) return;
  isLoadingOlder = true;
  try {
    const page = await throng.history(`chat:${asked}`, { before, limit: HISTORY_COUNT });
    if (asked !== room || before !== list.oldestId()) return;
    const elements = page.messages.map(({ id, data, time }) => {
      const said = toSay(data);
      if (said.key) shown.add(said.key);
      return list.toElement({ ...said, id, ms: time, isOwn: said.by === me });
    });
    showOlder(page.more && elements.length > 0);
    list.prepend(elements);
  } catch {
    if (asked === room) list.showOlder("failed");
  } finally {
    isLoadingOlder = false;
  }
}

function showOlder(isMore) {
  hasOlder = isMore;
  list.showOlder(isMore ? "loading" : "none");
}

/* Who is here. */

/** Asks after that time, or when it is due already if that is earlier; then ever again. */
function askPresence(delayMs) {
  const dueAt = Date.now() + delayMs;
  if (dueAt >= presenceDueAt) return;
  presenceDueAt = dueAt;
  clearTimeout(presenceTimer);
  presenceTimer = setTimeout(async () => {
    const asked = room;
    presenceDueAt = Infinity;
    if (!document.hidden && throng) {
      const presence = await throng.presence(`chat:${asked}`).catch(() => undefined);
      if (presence && asked === room) showPresence(presence);
    }
    askPresence(missing.size > 0 ? MISSING_MS : PRESENCE_MS);
  }, delayMs);
}

/** Shows who is here, and who came or went since the last time. */
function showPresence(presence) {
  view.showPeople(presence, name);
  const now = new Set(presence.users);
  const gone = new Set();
  // A list that is cut off does not tell who has gone.
  if (here && !presence.more) {
    for (const user of now) if (!here.has(user) && user !== name) list.note("join", user);
    for (const user of here) {
      if (now.has(user) || user === name) continue;
      if (missing.has(user)) list.note("leave", user);
      else gone.add(user);
    }
  }
  missing = gone;
  here = new Set([...now, ...gone]);
}

/** Tells the others that somebody came or went; `isLast` lets it outlive the page. */
function hint(isLast) {
  throng.publish(`here:${room}`, "hint", { echo: false, keepalive: isLast }).catch(() => {});
}

/* Into and out of rooms. */

function roomUrl(to) {
  const url = new URL(location.pathname, location.origin);
  url.searchParams.set("room", to);
  const transports = query.get("transports");
  if (transports) url.searchParams.set("transports", transports);
  return url;
}

function connect() {
  const asked = (query.get("transports") ?? "").split(",");
  const forced = asked.filter((each) => TRANSPORTS.includes(each));
  const options = forced.length > 0 ? { transports: forced } : {};
  const client = new Throng({ user: name, ...options });
  client.on("state", (change) => client === throng && view.showState(change));
  client.on("error", ({ message }) => {
    if (client === throng) view.notice(`Disconnected: ${message}.`);
  });
  throng = client;
}

function enter(to) {
  leave();
  room = to;
  outbox.clear();
  shown.clear();
  overdue.clear();
  here = undefined;
  missing = new Set();
  list.clear();
  view.clearRoom();
  view.showOverdue(false);
  view.showRoom(room);
  showRooms();
  let replayed = 0;
  hasOlder = false;
  list.showOlder("none");
  const entered = throng.subscribe(`chat:${room}`, { history: HISTORY_COUNT }, (message) => {
    receive(message);
    // As many as were asked for: there may be more.
    if (message.replayed && ++replayed === HISTORY_COUNT) showOlder(true);
  });
  const hints = throng.subscribe(`here:${room}`, () => {
    askPresence(HINT_DELAY_MS + Math.random() * PRESENCE_SPREAD_MS);
  });
  chat = { entered, hints };
  entered.on("subscribed", () => {
    if (entered !== chat?.entered) return;
    hint(false);
    askPresence(HINT_DELAY_MS);
    setTimeout(() => entered === chat?.entered && list.showWhetherEmpty(), HISTORY_DELAY_MS);
  });
  entered.on("gap", list.gap);
  const refused = ({ message }) => {
    view.notice(`This room cannot be entered: ${message}.`);
    view.showNotice();
  };
  entered.on("error", refused);
  hints.on("error", refused);
}

/** The last word goes out by a request that outlives the page. */
function leave() {
  if (!chat) return;
  hint(true);
  chat.entered.unsubscribe();
  chat.hints.unsubscribe();
  chat = undefined;
}

/** The rooms visited last, this one among them. */
function showRooms() {
  const rooms = [room, ...recentRooms().filter((each) => each !== room)].slice(0, ROOMS_MAX);
  remember("rooms", JSON.stringify(rooms));
  view.showRooms(rooms.map((each) => ({ name: each, url: roomUrl(each) })), { go, forget });
}

/** Takes a room off the list, and leaves it if it is this one. */
function forget(gone) {
  const rooms = recentRooms().filter((each) => each !== gone);
  remember("rooms", JSON.stringify(rooms));
  if (gone === room) go(rooms[0] ?? LOBBY);
  else showRooms();
}

function go(to) {
  view.closeSide();
  if (to === room) return;
  history.pushState(null, "", roomUrl(to));
  enter(to);
}

function takeName(to) {
  name = to;
  remember("name", name);
  view.showMe(name);
}

/* The controls. */

function askName(isRequired) {
  return view.ask({
    title: isRequired ? "Welcome" : "Change your name",
    text: isRequired ? `What shall people in #${room} call you?` : "The room will see it.",
    label: "Your name",
    ok: isRequired ? "Enter the room" : "Save",
    clean,
    value: name,
    isRequired,
  });
}

async function changeName() {
  view.closeSide();
  const to = await askName(false);
  if (!to || to === name) return;
  leave();
  // Who a connection belongs to is settled when it opens. The farewell is on its way already,
  // but close() would take it back.
  const former = throng;
  setTimeout(() => former.close(), 2_000);
  takeName(to);
  connect();
  enter(room);
}

async function newRoom() {
  view.closeSide();
  const to = await view.ask({
    title: "New room",
    text: "A room is there as soon as somebody enters it. Whoever has the link can join.",
    label: "Name of the room",
    ok: "Enter",
    clean,
  });
  if (to) go(to);
}

async function share() {
  const url = String(roomUrl(room));
  if (navigator.share) {
    await navigator.share({ title: `${room} · Throng`, url }).catch(() => {});
    return;
  }
  try {
    // Only pages under TLS and on this machine have a clipboard.
    await navigator.clipboard.writeText(url);
    view.toast("Link copied");
  } catch {
    prompt("The link of this room:", url);
  }
}

function submit(event) {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text === "") return;
  $("text").value = "";
  view.fitText();
  say(text);
  $("text").focus();
}

function listen() {
  view.listenToPage();
  list.listenToPage(loadOlder);
  $("composer").addEventListener("submit", submit);
  $("text").addEventListener("keydown", (event) => {
    // While an input method composes, Enter only chooses a word.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  $("notice-retry").addEventListener("click", () => throng.connect());
  $("share").addEventListener("click", share);
  $("room-new").addEventListener("click", newRoom);
  $("me").addEventListener("click", changeName);
  addEventListener("popstate", () => enter(roomOfUrl()));
  addEventListener("pagehide", leave);
  // Back from the browser's cache, where the farewell was said.
  addEventListener("pageshow", ({ persisted }) => persisted && enter(room));
  document.addEventListener("visibilitychange", () => document.hidden || askPresence(0));
}

/** Shows the link to the status page where there is one: on loopback, without an admin listener. */
async function linkStatus() {
  if (!/^(localhost|.*\.localhost|127\.[\d.]+|\[::1\])$/i.test(location.hostname)) return;
  const link = $("status-link");
  const answer = await fetch(link.href, { method: "HEAD" }).catch(() => null);
  link.hidden = !answer?.ok;
}

function roomOfUrl() {
  return clean(new URLSearchParams(location.search).get("room") ?? "") || LOBBY;
}

async function start() {
  linkStatus();
  me = ownId();
  room = roomOfUrl();
  view.showRoom(room);
  showRooms();
  takeName(clean(recall("name") ?? "") || (await askName(true)));
  listen();
  connect();
  enter(room);
  view.fitText();
  // On a phone the keyboard would cover the room at once.
  if (matchMedia("(hover: hover)").matches) $("text").focus();
}

start();
