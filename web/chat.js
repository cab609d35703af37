/**
 * The chat page. A room is the channel `chat:{room}`; its messages are JSON:
 * `{"kind":"say","from","text","key"}` and `{"kind":"join"|"leave","from"}`. What others publish
 * there without that shape is shown as it is, from nobody.
 *
 * This file talks to the server and decides; `chat-view.js` draws.
 *
 * Layout: what is remembered, what is said, who is here, the way in and out of rooms, the controls.
 *
 * Invariant: what was written is on the page at once: in the outbox until the room has it, marked
 * where it failed, and never twice (its `key` tells it from the room's copy).
 */

import { Throng } from "./throng.js";
import * as view from "./chat-view.js";
import { $ } from "./chat-view.js";

const HISTORY_COUNT = 50;
const ROOMS_MAX = 12;
const FROM_LENGTH_MAX = 40;
const TEXT_LENGTH_MAX = 4_000;
const PRESENCE_MS = 15_000;
/** Everybody hears of a newcomer at once; their questions who is there are spread over this. */
const PRESENCE_SPREAD_MS = 1_500;
/** The room's copy of a sent message may be lost to a gap: then the page keeps its own. */
const COPY_DELAY_MS = 5_000;
/** The history is on its way right behind the subscription; without any by then, there is none. */
const HISTORY_DELAY_MS = 400;

const TRANSPORTS = ["websocket", "sse", "poll"];

const query = new URLSearchParams(location.search);

let name = "";
let room = "";
let throng;
let chat;
/** The keys of messages on the page, so that the outbox and the room agree. */
const shown = new Set();
/** Elements in the outbox by key. */
const outbox = new Map();
let presenceTimer;
let presenceDueAt = Infinity;

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

function receive({ data, time }) {
  const { kind, from, text, key } = toSay(data);
  if (kind !== "say") {
    view.note(kind, from, time);
    askPresence(Math.random() * PRESENCE_SPREAD_MS);
    return;
  }
  if (key && shown.has(key)) return;
  const isOwn = from === name;
  place(key, view.toElement({ from, text, ms: time, isOwn }), time);
  if (!isOwn) view.countUnread();
}

/** What others may have sent, brought into shape. */
function toSay(data) {
  const toText = (text) => text.slice(0, TEXT_LENGTH_MAX);
  if (typeof data === "string") return { kind: "say", from: "", text: toText(data) };
  if (data instanceof Uint8Array) return { kind: "say", from: "", text: `${data.length} bytes` };
  const from = typeof data?.from === "string" ? clean(data.from) : "";
  if (data?.kind === "join" || data?.kind === "leave") return { kind: data.kind, from };
  if (data?.kind !== "say" || typeof data.text !== "string") {
    return { kind: "say", from, text: toText(JSON.stringify(data)) };
  }
  const key = typeof data.key === "string" ? data.key : undefined;
  return { kind: "say", from, text: toText(data.text), key };
}

/** Into the room; out of the outbox, if it was written here. */
function place(key, element, ms) {
  if (key) {
    shown.add(key);
    outbox.get(key)?.remove();
    outbox.delete(key);
  }
  view.append(element, ms);
}

function say(text) {
  const key = randomKey();
  const element = view.toElement({ from: name, text, ms: Date.now(), isOwn: true });
  outbox.set(key, element);
  $("outbox").append(element);
  $("empty").hidden = true;
  view.showEnd();
  send(key, text, element, `chat:${room}`);
}

async function send(key, text, element, channel) {
  view.markPending(element);
  try {
    await throng.publish(channel, { kind: "say", from: name, text, key }, { key });
    view.markSent(element);
    setTimeout(() => {
      if (outbox.get(key) === element) place(key, element, Number(element.dataset.time));
    }, COPY_DELAY_MS);
  } catch (error) {
    if (outbox.get(key) !== element) return;
    view.markFailed(element, error.message, () => send(key, text, element, channel));
  }
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
      if (presence && asked === room) view.showPeople(presence, name);
    }
    askPresence(PRESENCE_MS);
  }, delayMs);
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
  view.clearRoom();
  view.showRoom(room);
  showRooms();
  const channel = `chat:${room}`;
  const entered = throng.subscribe(channel, { history: HISTORY_COUNT }, receive);
  chat = entered;
  chat.on("subscribed", () => {
    if (entered !== chat) return;
    throng.publish(channel, { kind: "join", from: name }).catch(() => {});
    askPresence(300);
    setTimeout(() => entered === chat && view.showWhetherEmpty(), HISTORY_DELAY_MS);
  });
  chat.on("gap", view.gap);
  chat.on("error", ({ message }) => {
    view.notice(`This room cannot be entered: ${message}.`);
    view.showNotice();
  });
}

/** The last word goes out by a request that outlives the page. */
function leave() {
  if (!chat) return;
  const word = { kind: "leave", from: name };
  throng.publish(`chat:${room}`, word, { keepalive: true }).catch(() => {});
  chat.unsubscribe();
  chat = undefined;
}

/** The rooms visited last, this one among them. */
function showRooms() {
  const rooms = [room, ...recentRooms().filter((each) => each !== room)].slice(0, ROOMS_MAX);
  remember("rooms", JSON.stringify(rooms));
  view.showRooms(rooms.map((each) => ({ name: each, url: roomUrl(each) })), go);
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

/** The status page is told at the server's own machine only. */
function isLocal() {
  return /^(localhost|.*\.localhost|127\.[\d.]+|\[::1\])$/i.test(location.hostname);
}

function roomOfUrl() {
  return clean(new URLSearchParams(location.search).get("room") ?? "") || "lobby";
}

async function start() {
  $("status-link").hidden = !isLocal();
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
