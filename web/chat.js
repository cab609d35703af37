/**
 * The chat page. A room is the channel `chat:{room}`; its messages are JSON:
 * `{"kind":"say","from","by","text","key"}`. `from` is a name, which several people may use. `by` is
 * the user of the token, or a random id of the browser: it distinguishes own messages, from any tab,
 * from those of a user with the same name. Messages in any other form are shown without a name.
 *
 * People, and who joined and left, come from the room's members, if the server has a list of them,
 * with what they show: a name from the token, "away". Otherwise they come from presence events, or
 * the client reads presence from time to time. Nothing of it is in the log.
 *
 * The browser remembers the last message that its reader has seen in each room, for all its tabs.
 *
 * This file talks to the server and decides; `chat-view.js` and `chat-list.js` display.
 *
 * On a server with access control the page needs a token, from the fragment of its URL (`#token=…`)
 * or from its reader. The token names the user; without a user, its reader chooses a name.
 *
 * Layout: storage, token, messages, unread messages, history, presence, rooms, the controls.
 *
 * Invariant: a sent message is on the page at once, and only once: in the outbox, marked if it
 * failed, until the room's copy arrives, which has the same `key`.
 */

import { Throng } from "./throng.js";
import * as list from "./chat-list.js";
import * as view from "./chat-view.js";
import { $ } from "./chat-view.js";

const HISTORY_COUNT = 50;
const ROOMS_MAX = 12;
const FROM_LENGTH_MAX = 40;
const TEXT_LENGTH_MAX = 4_000;
const TOKEN_LENGTH_MAX = 8_192;
/** Errors after which another token may help. */
const TOKEN_CODES = new Set([
  ...["unauthorized", "invalid_token", "token_expired", "token_revoked", "no_token", "forbidden"],
]);
/** A message that the server has not confirmed after this time is shown as waiting. */
const OVERDUE_MS = 2_000;
/** A gap may swallow the room's copy of a sent message: after this time the page keeps its own. */
const COPY_DELAY_MS = 5_000;
/** The history follows the subscription at once; if none has arrived by then, there is none. */
const HISTORY_DELAY_MS = 400;

/** The room of a page without a room in its URL. */
const LOBBY = "lobby";
const TRANSPORTS = ["websocket", "sse", "poll"];

const query = new URLSearchParams(location.search);

let name = "";
/** Unset on a server that asks for none. */
let token;
let isAskingToken = false;
let me = "";
let room = "";
let throng;
let chat;
/** The keys of the messages on the page, to recognise the room's copy of a sent message. */
const shown = new Set();
/** Elements in the outbox by key. */
const outbox = new Map();
/** The keys of messages that the server should have confirmed by now. */
const overdue = new Set();
/** The names in the room; unset before the first presence event. */
let here;
/** Whether the room has members, which show something of themselves. */
let hasMembers = false;
/** The id of the last message that the reader has seen in this room, and the newest of the page. */
let lastRead;
let newest;
/** What had been read when the page entered the room: older messages may arrive for a while. */
let readBefore;
/** Whether the reader has had time to see what has arrived. */
let isShown = false;
/** Whether there are messages before the oldest one on the page. */
let hasOlder = false;
let isLoadingOlder = false;

/* Storage. The browser may deny it; then nothing is remembered. */

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
    // Without storage only convenience is lost.
  }
}

/* Token. It stays in this tab: the page forgets it when the tab is closed. */

/** The token of the URL, which is removed from there, or the one of this tab. */
function takeToken() {
  const fromUrl = new URLSearchParams(location.hash.slice(1)).get("token");
  if (fromUrl) history.replaceState(history.state, "", location.pathname + location.search);
  try {
    if (fromUrl) sessionStorage.setItem("throng.token", fromUrl);
    return fromUrl ?? sessionStorage.getItem("throng.token") ?? undefined;
  } catch {
    return fromUrl ?? undefined;
  }
}

/** The user that the token names; undefined if there is none. Only the server verifies it. */
function userOf(jwt) {
  try {
    const payload = jwt.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
    const { sub } = JSON.parse(new TextDecoder().decode(bytes));
    return typeof sub === "string" ? sub : undefined;
  } catch {
    return undefined;
  }
}

/** Asks for another token after the server has refused the client, and starts over with it. */
async function askToken(message) {
  if (isAskingToken) return;
  isAskingToken = true;
  const given = await view.ask({
    title: "This server requires a token",
    text: `${message}. A server that was started with --dev has printed one.`,
    label: "Token",
    ok: "Enter the room",
    clean: (text) => text.replace(/\s/g, ""),
    hint: "Paste the token.",
    lengthMax: TOKEN_LENGTH_MAX,
    value: token,
  });
  isAskingToken = false;
  if (!given) return;
  token = given;
  throng.close();
  try {
    sessionStorage.setItem("throng.token", given);
  } catch {
    // Without storage only convenience is lost.
  }
  const user = userOf(given);
  me = user ? `user ${user}` : ownId();
  if (user) view.showMe((name = user));
  connect();
  enter(room);
}

/** The id of this browser, which distinguishes its messages from those of a namesake. */
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

/** Cleans a name for use in a URL path: without slashes, and not only dots. */
function clean(text) {
  const plain = text.replace(/[\p{Cc}\p{Cf}/\\]/gu, "").replace(/\s+/g, " ").trim();
  return /^\.*$/.test(plain) ? "" : [...plain].slice(0, FROM_LENGTH_MAX).join("");
}

function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/* Messages. */

function receive({ id, data, time, replayed }) {
  const said = toSay(data);
  const { by, key } = said;
  newest = id;
  if (key && shown.has(key)) return seeNewest();
  const isOwn = by === me;
  const element = list.toElement({ ...said, id, ms: time, isOwn });
  const isUnread = !isOwn && (replayed ? isAfterRead(id) : !list.isSeeingEnd());
  place(key, element);
  if (isUnread) list.markUnread(element);
  if (!isOwn && !replayed) list.countUnread();
  if (!replayed) seeNewest();
}

/** Converts a message, which may have any form, into the one that this page shows. */
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

/** Adds a message to the room, and removes it from the outbox if it was sent by this page. */
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
  list.forgetUnread();
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
    // The key makes it safe to send the message again, even if it was published.
    list.markFailed(element, error, () => send(key, text, element, channel));
  } finally {
    clearTimeout(timer);
    overdue.delete(key);
    view.showOverdue(overdue.size > 0);
  }
}

/* Unread messages. */

/** Whether a message is newer than what the reader has seen; never in a room not visited before. */
function isAfterRead(id) {
  if (!readBefore) return false;
  const [[epoch, offset], [readEpoch, readOffset]] = [id.split("-"), readBefore.split("-")];
  return epoch !== readEpoch || Number(offset) > Number(readOffset);
}

/** Remembers what has been read once the reader sees the end of the list. */
function seeNewest() {
  if (!isShown || !newest || newest === lastRead || !list.isSeeingEnd()) return;
  lastRead = newest;
  remember(`read.${room}`, lastRead);
}

/** Another tab of this browser has shown the newest messages. */
function seeElsewhere({ key, newValue }) {
  if (key !== `throng.read.${room}` || !newValue) return;
  lastRead = newValue;
  if (lastRead === newest) list.forgetUnread();
}

/* History. */

/** Loads the messages before the oldest one on the page. Called when the reader scrolls near it. */
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

/* Presence. */

/** Shows the people, and notes who has joined or left since the last time. */
function showPresence(presence) {
  view.showPeople(presence, name);
  hasMembers = Boolean(presence.members);
  // Another tab is hidden, and this one is not.
  if (presence.members?.get(name)?.info?.is && !document.hidden) tellWhetherAway();
  // An incomplete list does not show who left.
  if (presence.more) {
    here = undefined;
    return;
  }
  const now = new Set(presence.users);
  if (here) {
    for (const user of now) if (!here.has(user) && user !== name) list.note("join", user);
    for (const user of here) if (!now.has(user) && user !== name) list.note("leave", user);
  }
  here = now;
}

/** Shows the others whether the page is hidden. With a token there might be no right to do so. */
function tellWhetherAway() {
  if (hasMembers && token === undefined) chat?.update(document.hidden ? { is: "away" } : {});
}

/* Entering and leaving rooms. */

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
  // With a token a connection belongs to the user whom that names, if any.
  const user = token === undefined ? name : userOf(token);
  const client = new Throng({ user, token, ...options });
  client.on("state", (change) => client === throng && view.showState(change));
  client.on("error", ({ code, message }) => {
    if (client !== throng) return;
    view.notice(`Disconnected: ${message}.`);
    if (TOKEN_CODES.has(code)) askToken(message);
  });
  throng = client;
}

function enter(to) {
  leave();
  room = to;
  outbox.clear();
  shown.clear();
  overdue.clear();
  here = newest = undefined;
  hasMembers = false;
  lastRead = readBefore = recall(`read.${room}`);
  isShown = false;
  list.clear();
  view.clearRoom();
  view.showOverdue(false);
  view.showRoom(room);
  showRooms();
  let replayed = 0;
  hasOlder = false;
  list.showOlder("none");
  const options = { history: HISTORY_COUNT, presence: true };
  const entered = throng.subscribe(`chat:${room}`, options, (message) => {
    receive(message);
    // The history is as long as requested, so there may be more.
    if (message.replayed && ++replayed === HISTORY_COUNT) showOlder(true);
  });
  chat = entered;
  entered.on("presence", showPresence);
  entered.on("subscribed", () => {
    setTimeout(() => {
      if (entered !== chat) return;
      isShown = true;
      list.showWhetherEmpty();
      list.showUnread();
      seeNewest();
    }, HISTORY_DELAY_MS);
  });
  entered.on("gap", list.gap);
  entered.on("error", ({ code, message }) => {
    if (code !== "forbidden" && TOKEN_CODES.has(code)) return askToken(message);
    view.notice(`This room cannot be entered: ${message}.`);
    view.showNotice();
  });
}

function leave() {
  chat?.unsubscribe();
  chat = undefined;
}

/** Shows the last visited rooms, including the current one. */
function showRooms() {
  const rooms = [room, ...recentRooms().filter((each) => each !== room)].slice(0, ROOMS_MAX);
  remember("rooms", JSON.stringify(rooms));
  view.showRooms(rooms.map((each) => ({ name: each, url: roomUrl(each) })), { go, forget });
}

/** Removes a room from the list, and leaves it if it is the current one. */
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
    text: isRequired ? `What should people in #${room} call you?` : "Everyone in the room sees it.",
    label: "Your name",
    ok: isRequired ? "Enter the room" : "Save",
    clean,
    value: name,
    isRequired,
  });
}

async function changeName() {
  view.closeSide();
  if (token && userOf(token)) return view.toast("Your name comes from your token");
  const to = await askName(false);
  if (!to || to === name) return;
  leave();
  // The user of a connection is fixed when it opens, so a new one is needed.
  throng.close();
  takeName(to);
  connect();
  enter(room);
}

async function newRoom() {
  view.closeSide();
  const to = await view.ask({
    title: "New room",
    text: "A room exists as soon as someone enters it. Everyone with the link can join.",
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
    // Only pages over TLS or from this machine may use the clipboard.
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
  list.listenToPage(loadOlder, seeNewest);
  $("composer").addEventListener("submit", submit);
  $("text").addEventListener("keydown", (event) => {
    // While an input method is composing, Enter selects a word.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  $("notice-retry").addEventListener("click", () => throng.connect());
  $("share").addEventListener("click", share);
  $("room-new").addEventListener("click", newRoom);
  $("me").addEventListener("click", changeName);
  addEventListener("popstate", () => enter(roomOfUrl()));
  addEventListener("pagehide", leave);
  // The page returns from the back/forward cache, before which it left the room.
  addEventListener("pageshow", ({ persisted }) => persisted && enter(room));
  addEventListener("storage", seeElsewhere);
  document.addEventListener("visibilitychange", tellWhetherAway);
}

function roomOfUrl() {
  return clean(new URLSearchParams(location.search).get("room") ?? "") || LOBBY;
}

async function start() {
  room = roomOfUrl();
  view.showRoom(room);
  showRooms();
  token = takeToken();
  const user = token && userOf(token);
  me = user ? `user ${user}` : ownId();
  if (user) view.showMe((name = user));
  else takeName(clean(recall("name") ?? "") || (await askName(true)));
  listen();
  connect();
  enter(room);
  view.fitText();
  // Not on phones, where the keyboard would cover the room.
  if (matchMedia("(hover: hover)").matches) $("text").focus();
}

start();
