/**
 * The chat page. A room is the channel `chat:{room}`; its messages are JSON:
 * `{"kind":"say","from","text","key"}` and `{"kind":"join"|"leave","from"}`. What others publish
 * there without that shape is shown as it is, from nobody.
 *
 * Layout: what is remembered, the view of the room (messages, people, state), what is said,
 * the way in and out of rooms, the controls.
 *
 * Invariants:
 * - Text of others enters the page only as text.
 * - What was written is on the page at once: in the outbox until the room has it, marked where it
 *   failed, and never twice (its `key` tells it from the room's copy).
 */

import { Throng } from "./throng.js";

const HISTORY_COUNT = 50;
/** More are taken away at the top, so that a page left open for days stays quick. */
const MESSAGES_MAX = 600;
const ROOMS_MAX = 12;
const FROM_LENGTH_MAX = 40;
const TEXT_LENGTH_MAX = 4_000;
/** Messages of one person within this time stand together. */
const GROUP_MS = 5 * 60_000;
const PRESENCE_MS = 15_000;
/** Everybody hears of a newcomer at once; their questions who is there are spread over this. */
const PRESENCE_SPREAD_MS = 1_500;
/** A shorter loss of the connection is not worth a word. */
const NOTICE_DELAY_MS = 1_000;
/** The room's copy of a sent message may be lost to a gap: then the page keeps its own. */
const COPY_DELAY_MS = 5_000;
/** A line of comings and goings names the last of them. */
const NOTE_PEOPLE_MAX = 3;
/** So near to the end counts as at the end. */
const END_PX = 60;

/** A web address in a text; no other scheme becomes a link. */
const ADDRESS = /\bhttps?:\/\/[\p{L}\p{N}[][^\s<>"'`]*/giu;

const TRANSPORTS = { websocket: "WebSocket", sse: "SSE", poll: "Long-poll" };

const $ = (id) => document.getElementById(id);

const query = new URLSearchParams(location.search);
const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const exactFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const dayFormat = new Intl.DateTimeFormat(undefined, {
  weekday: "long",
  month: "long",
  day: "numeric",
});

let name = "";
let room = "";
let throng;
let chat;
/** The keys of messages on the page, so that the outbox and the room agree. */
const shown = new Set();
/** Elements in the outbox by key. */
const outbox = new Map();
let unreadHidden = 0;
let unreadBelow = 0;
let isAtEnd = true;
let noticeTimer;
let countdownTimer;
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

/* The view of the room. */

function create(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function hueOf(from) {
  let sum = 0;
  for (const character of from) sum = (sum * 31 + character.codePointAt(0)) % 9973;
  return `hue-${sum % 8}`;
}

function avatar(from) {
  const [initial = "?"] = from;
  return create("span", from ? `avatar ${hueOf(from)}` : "avatar", initial.toUpperCase());
}

/** Text with its web addresses as links; everything stays text. */
function linked(text) {
  const part = create("span", "text");
  let end = 0;
  for (const { 0: found, index } of text.matchAll(ADDRESS)) {
    // What ends the sentence, or closes the bracket around it, is not part of the address.
    let address = found.replace(/[.,;:!?]+$/, "");
    if (!address.includes("(")) address = address.replace(/\)[.,;:!?)]*$/, "");
    part.append(text.slice(end, index));
    const link = create("a", "", address);
    link.href = address;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    part.append(link);
    end = index + address.length;
  }
  part.append(text.slice(end));
  return part;
}

function timeOf(ms) {
  const time = create("time", "", timeFormat.format(ms));
  time.dateTime = new Date(ms).toISOString();
  time.title = exactFormat.format(ms);
  return time;
}

function messageElement(from, text, ms) {
  const element = create("li", `message first last${from === name ? " own" : ""}`);
  const bubble = create("div", "bubble");
  bubble.append(create("div", `author ${hueOf(from)}`, from || "somebody"), linked(text));
  bubble.append(timeOf(ms));
  const face = avatar(from);
  face.setAttribute("aria-hidden", "true");
  element.append(face, bubble);
  element.dataset.from = from;
  element.dataset.time = ms;
  return element;
}

function dayOf(ms) {
  const now = new Date();
  const then = new Date(ms);
  if (then.toDateString() === now.toDateString()) return "Today";
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  return then.toDateString() === yesterday.toDateString() ? "Yesterday" : dayFormat.format(ms);
}

/** Puts an element at the end of the room's messages, under its day. */
function append(element, ms) {
  const list = $("messages");
  const last = list.lastElementChild;
  const day = new Date(ms).toDateString();
  if (list.dataset.day !== day) {
    list.dataset.day = day;
    list.append(create("li", "day", dayOf(ms)));
  } else if (last?.classList.contains("message") && element.classList.contains("message")) {
    const isNear = ms - Number(last.dataset.time) < GROUP_MS;
    if (isNear && last.dataset.from === element.dataset.from) {
      last.classList.remove("last");
      element.classList.remove("first");
    }
  }
  list.append(element);
  while (list.childElementCount > MESSAGES_MAX) list.firstElementChild.remove();
  if (element.classList.contains("message")) $("empty").hidden = true;
  keepEnd();
}

/** Who came and who went, each person once in a row of such notes. */
function note(kind, from, ms) {
  let element = $("messages").lastElementChild;
  if (!element?.classList.contains("note")) {
    element = create("li", "note");
    element.people = new Map();
    append(element, ms);
  }
  element.people.delete(from);
  element.people.set(from, kind);
  const people = [...element.people].map(([who, what]) => {
    return `${who || "somebody"} ${what === "join" ? "joined" : "left"}`;
  });
  const others = people.length - NOTE_PEOPLE_MAX;
  if (others > 0) people.splice(0, others, `${others} more came or went`);
  element.textContent = people.join(" · ");
  element.title = exactFormat.format(ms);
  keepEnd();
}

function gap({ missed }) {
  const text = missed ? `${missed} messages are missing here` : "Messages may be missing here";
  append(create("li", "gap", text), Date.now());
  // What follows may push the line out of sight at once.
  toast("Some messages were missed");
}

function keepEnd() {
  const scroller = $("scroller");
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

function showEnd() {
  isAtEnd = true;
  showUnreadBelow(0);
  keepEnd();
}

function showUnreadBelow(count) {
  unreadBelow = count;
  $("to-end").hidden = count === 0;
  $("to-end-text").textContent = count === 1 ? "1 new message" : `${count} new messages`;
}

function countUnread(isOwn) {
  if (isOwn) return;
  if (document.hidden) unreadHidden += 1;
  if (!isAtEnd) showUnreadBelow(unreadBelow + 1);
  showTitle();
}

function showTitle() {
  document.title = `${unreadHidden > 0 ? `(${unreadHidden}) ` : ""}${room} · Throng`;
}

/* What is said. */

function receive({ data, time }) {
  const { kind, from, text, key } = toSay(data);
  if (kind !== "say") {
    note(kind, from, time);
    askPresence(Math.random() * PRESENCE_SPREAD_MS);
    return;
  }
  if (key && shown.has(key)) return;
  place(key, messageElement(from, text, time), time);
  countUnread(from === name);
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
  append(element, ms);
}

function say(text) {
  const key = randomKey();
  const element = messageElement(name, text, Date.now());
  outbox.set(key, element);
  $("outbox").append(element);
  $("empty").hidden = true;
  showEnd();
  send(key, text, element, `chat:${room}`);
}

async function send(key, text, element, channel) {
  element.classList.remove("failed");
  element.classList.add("pending");
  element.querySelector(".failure")?.remove();
  try {
    await throng.publish(channel, { kind: "say", from: name, text, key }, { key });
    element.classList.remove("pending");
    setTimeout(() => {
      if (outbox.get(key) === element) place(key, element, Number(element.dataset.time));
    }, COPY_DELAY_MS);
  } catch (error) {
    if (outbox.get(key) !== element) return;
    element.classList.replace("pending", "failed");
    const failure = create("div", "failure", "Not sent. ");
    const retry = create("button", "", "Retry");
    retry.type = "button";
    retry.title = error.message;
    retry.addEventListener("click", () => send(key, text, element, channel));
    failure.setAttribute("role", "alert");
    failure.append(retry);
    element.append(failure);
    keepEnd();
  }
}

/* Who is here, and how we are connected. */

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
      if (presence && asked === room) showPeople(presence);
    }
    askPresence(PRESENCE_MS);
  }, delayMs);
}

function showPeople({ users, more }) {
  const here = [...users].sort((a, b) => (b === name) - (a === name) || a.localeCompare(b));
  const people = here.map((user) => {
    const person = create("li");
    const face = avatar(user);
    face.setAttribute("aria-hidden", "true");
    person.append(face, create("span", "name", user));
    if (user === name) person.append(create("span", "you", "you"));
    return person;
  });
  $("people").replaceChildren(...people);
  const count = more ? `more than ${users.length}` : `${users.length}`;
  $("here").textContent = users.length > 0 ? `${count} here` : "";
}

function showState({ state, transport, delayMs }) {
  const texts = { open: TRANSPORTS[transport], closed: "Offline", waiting: "Offline" };
  $("link").dataset.state = state;
  $("link-text").textContent = texts[state] ?? "Connecting…";
  clearInterval(countdownTimer);
  if (state === "open" || state === "idle") {
    clearTimeout(noticeTimer);
    noticeTimer = undefined;
    $("notice").hidden = true;
    return;
  }
  noticeTimer ??= setTimeout(() => {
    $("notice").hidden = false;
    keepEnd();
  }, NOTICE_DELAY_MS);
  $("notice-retry").hidden = state === "connecting";
  if (state === "closed") notice("Disconnected.");
  else if (state === "connecting") notice("Connecting…");
  else countDown(delayMs);
}

function notice(text) {
  $("notice-text").textContent = text;
}

function countDown(delayMs) {
  const end = Date.now() + delayMs;
  const tell = () => {
    const seconds = Math.ceil((end - Date.now()) / 1_000);
    notice(seconds > 1 ? `Connection lost. Next try in ${seconds} s.` : "Connection lost.");
  };
  tell();
  countdownTimer = setInterval(tell, 1_000);
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
  const forced = (query.get("transports") ?? "").split(",").filter((each) => each in TRANSPORTS);
  const options = forced.length > 0 ? { transports: forced } : {};
  const client = new Throng({ user: name, ...options });
  client.on("state", (change) => client === throng && showState(change));
  client.on("error", ({ message }) => client === throng && notice(`Disconnected: ${message}.`));
  throng = client;
}

function enter(to) {
  leave();
  room = to;
  for (const id of ["messages", "outbox", "people"]) $(id).replaceChildren();
  delete $("messages").dataset.day;
  outbox.clear();
  shown.clear();
  $("here").textContent = "";
  $("room").textContent = room;
  $("empty").hidden = true;
  unreadHidden = 0;
  showEnd();
  showTitle();
  showRooms();
  chat = throng.subscribe(`chat:${room}`, { history: HISTORY_COUNT }, receive);
  const channel = `chat:${room}`;
  const entered = chat;
  chat.on("subscribed", () => {
    if (entered !== chat) return;
    throng.publish(channel, { kind: "join", from: name }).catch(() => {});
    askPresence(300);
    // The history is on its way right behind; if there is none, say so.
    setTimeout(() => {
      $("empty").hidden = document.querySelector(".message") !== null;
    }, 400);
  });
  chat.on("gap", gap);
  chat.on("error", ({ message }) => {
    $("notice").hidden = false;
    notice(`This room cannot be entered: ${message}.`);
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

function showRooms() {
  const rooms = [room, ...recentRooms().filter((each) => each !== room)].slice(0, ROOMS_MAX);
  remember("rooms", JSON.stringify(rooms));
  const links = [...rooms].sort((a, b) => a.localeCompare(b)).map((each) => {
    const link = create("a");
    link.append(create("span", "", each));
    link.href = roomUrl(each);
    if (each === room) link.setAttribute("aria-current", "page");
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go(each);
    });
    const item = create("li");
    item.append(link);
    return item;
  });
  $("rooms").replaceChildren(...links);
}

function go(to) {
  closeSide();
  if (to === room) return;
  history.pushState(null, "", roomUrl(to));
  enter(to);
}

function takeName(to) {
  name = to;
  remember("name", name);
  $("me-name").textContent = name;
  $("me-avatar").className = `avatar ${hueOf(name)}`;
  $("me-avatar").textContent = [...name][0].toUpperCase();
}

/* The controls. */

/** Asks for one line; resolves with it cleaned, or with nothing when it was cancelled. */
function ask({ title, text, label, ok, value = "", isRequired = false }) {
  const dialog = $("ask");
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-label").textContent = label;
  $("ask-ok").textContent = ok;
  $("ask-error").textContent = "";
  $("ask-cancel").hidden = isRequired;
  $("ask-input").value = value;
  dialog.showModal();
  $("ask-input").select();
  return new Promise((resolve) => {
    const done = (answer) => {
      dialog.close();
      dialog.oncancel = $("ask-form").onsubmit = $("ask-cancel").onclick = null;
      resolve(answer);
    };
    dialog.oncancel = (event) => {
      event.preventDefault();
      if (!isRequired) done();
    };
    $("ask-cancel").onclick = () => done();
    $("ask-form").onsubmit = (event) => {
      event.preventDefault();
      const answer = clean($("ask-input").value);
      if (answer) done(answer);
      else $("ask-error").textContent = "Use letters or digits.";
    };
  });
}

function askName(isRequired) {
  return ask({
    title: isRequired ? "Welcome" : "Change your name",
    text: isRequired ? `What shall people in #${room} call you?` : "The room will see it.",
    label: "Your name",
    ok: isRequired ? "Enter the room" : "Save",
    value: name,
    isRequired,
  });
}

async function changeName() {
  closeSide();
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
  closeSide();
  const to = await ask({
    title: "New room",
    text: "A room is there as soon as somebody enters it. Whoever has the link can join.",
    label: "Name of the room",
    ok: "Enter",
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
    toast("Link copied");
  } catch {
    prompt("The link of this room:", url);
  }
}

let toastTimer;
function toast(text) {
  $("toast").textContent = text;
  $("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("shown"), 2_500);
}

function openSide() {
  document.body.classList.add("side-open");
  $("main").inert = true;
  $("side-open").setAttribute("aria-expanded", "true");
  $("side-close").focus();
}

function closeSide() {
  if (!document.body.classList.contains("side-open")) return;
  document.body.classList.remove("side-open");
  $("main").inert = false;
  $("side-open").setAttribute("aria-expanded", "false");
  $("side-open").focus();
}

function fitText() {
  const field = $("text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
  field.style.overflowY = field.scrollHeight > field.clientHeight + 2 ? "auto" : "hidden";
  $("send").disabled = field.value.trim() === "";
}

function submit(event) {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text === "") return;
  $("text").value = "";
  fitText();
  say(text);
  $("text").focus();
}

function listen() {
  $("composer").addEventListener("submit", submit);
  $("text").addEventListener("input", fitText);
  $("text").addEventListener("keydown", (event) => {
    // While an input method composes, Enter only chooses a word.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  $("scroller").addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = $("scroller");
    isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    if (isAtEnd) showUnreadBelow(0);
  }, { passive: true });
  // The keyboard of a phone, or a growing text, takes room from below.
  new ResizeObserver(keepEnd).observe($("scroller"));
  $("to-end").addEventListener("click", showEnd);
  $("notice-retry").addEventListener("click", () => throng.connect());
  $("share").addEventListener("click", share);
  $("room-new").addEventListener("click", newRoom);
  $("me").addEventListener("click", changeName);
  $("side-open").addEventListener("click", openSide);
  $("side-close").addEventListener("click", closeSide);
  $("scrim").addEventListener("click", closeSide);
  matchMedia("(min-width: 860px)").addEventListener("change", closeSide);
  addEventListener("keydown", ({ key }) => key === "Escape" && closeSide());
  addEventListener("popstate", () => enter(roomOfUrl()));
  addEventListener("pagehide", leave);
  // Back from the browser's cache, where the farewell was said.
  addEventListener("pageshow", ({ persisted }) => persisted && enter(room));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    unreadHidden = 0;
    showTitle();
    askPresence(0);
  });
}

function roomOfUrl() {
  return clean(new URLSearchParams(location.search).get("room") ?? "") || "lobby";
}

async function start() {
  room = roomOfUrl();
  $("room").textContent = room;
  showTitle();
  showRooms();
  takeName(clean(recall("name") ?? "") || (await askName(true)));
  listen();
  connect();
  enter(room);
  fitText();
  // On a phone the keyboard would cover the room at once.
  if (matchMedia("(hover: hover)").matches) $("text").focus();
}

start();
