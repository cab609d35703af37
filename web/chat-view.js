/**
 * The chat page around the messages: people, the state of the connection, rooms, the dialog. It does
 * not talk to the server; `chat.js` decides what it shows.
 *
 * Layout: people and connection, rooms, the dialog, controls.
 */

import { $, avatar, create } from "./chat-pieces.js";
import { showTitle } from "./chat-list.js";

export { $, toast } from "./chat-pieces.js";

/** The notice appears if the connection is lost for longer than this. */
const NOTICE_DELAY_MS = 1_000;

const TRANSPORTS = { websocket: "WebSocket", sse: "SSE", poll: "Long-poll" };

let room = "";
let noticeTimer;
let countdownTimer;
/** The state that the client reports, and whether messages wait for the server too long. */
let connection = { state: "idle" };
let isOverdue = false;
/** The browser took the machine for offline when a connection opened: it has only loopback. */
let isOnlineUnknown = false;

/* People and connection. */

/** Shows the people in the room, the user first. */
export function showPeople({ users, members, more, partial }, name) {
  const here = [...users].sort((a, b) => (b === name) - (a === name) || a.localeCompare(b));
  const people = here.map((user) => {
    const person = create("li");
    // What a member shows may be anything.
    const { name: shown, is } = members?.get(user)?.info ?? {};
    const isName = typeof shown === "string" && shown !== user;
    person.append(avatar(user), create("span", "name", isName ? `${shown} (${user})` : user));
    if (user === name) person.append(create("span", "you", "you"));
    if (is === "away") person.append(create("span", "you", "away"));
    return person;
  });
  $("people").replaceChildren(...people);
  // On a node that is cut off nobody knows who is on the others.
  const least = partial ? `at least ${users.length}` : `${users.length}`;
  const count = more ? `more than ${users.length}` : least;
  $("here").textContent = users.length > 0 ? `${count} here` : "";
}

export function showMe(name) {
  $("me-name").textContent = name;
  $("me-avatar").replaceWith(Object.assign(avatar(name), { id: "me-avatar" }));
}

/** Shows whether messages wait for the server too long. */
export function showOverdue(isWaiting) {
  isOverdue = isWaiting;
  showDot();
}

/** Shows the state of the connection: green only if messages get through, as far as is known. */
function showDot() {
  let { state } = connection;
  const texts = { closed: "Offline", waiting: "Offline", connecting: "Connecting…", idle: "" };
  let text = texts[state] ?? TRANSPORTS[connection.transport];
  const isOffline = !navigator.onLine && !isOnlineUnknown;
  if (state !== "idle" && isOffline) [state, text] = ["waiting", "Offline"];
  else if (state === "open" && isOverdue) [state, text] = ["waiting", "Waiting for the server…"];
  $("link").dataset.state = state;
  $("link-text").textContent = text;
}

export function showState(change) {
  const { state, delayMs } = change;
  connection = change;
  if (state === "open") isOnlineUnknown = !navigator.onLine;
  showDot();
  clearInterval(countdownTimer);
  if (state === "open" || state === "idle") {
    clearTimeout(noticeTimer);
    noticeTimer = undefined;
    $("notice").hidden = true;
    return;
  }
  noticeTimer ??= setTimeout(showNotice, NOTICE_DELAY_MS);
  $("notice-retry").hidden = state === "connecting";
  if (state === "closed") notice("Disconnected.");
  else if (state === "connecting") notice("Connecting…");
  else countDown(delayMs);
}

/** Sets the text of the notice, which appears when the connection is lost for some time. */
export function notice(text) {
  $("notice-text").textContent = text;
}

export function showNotice() {
  $("notice").hidden = false;
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

/* Rooms. */

export function showRoom(to) {
  room = to;
  $("room").textContent = room;
  showTitle();
}

/** Removes everything of the previous room. */
export function clearRoom() {
  $("people").replaceChildren();
  $("here").textContent = "";
}

/**
 * Shows the rooms, each with name and URL. `go` is called with the name of a chosen room, `forget`
 * with that of a room to remove from the list.
 */
export function showRooms(rooms, { go, forget }) {
  const byName = [...rooms].sort((a, b) => a.name.localeCompare(b.name));
  const links = byName.map(({ name, url }) => {
    const link = create("a");
    link.append(create("span", "", name));
    link.href = url;
    if (name === room) link.setAttribute("aria-current", "page");
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go(name);
    });
    const item = create("li");
    item.append(link);
    // The last room cannot be removed.
    if (rooms.length > 1) item.append(forgetButton(name, forget));
    return item;
  });
  $("rooms").replaceChildren(...links);
}

function forgetButton(name, forget) {
  const button = create("button", "forget", "×");
  button.type = "button";
  button.title = "Leave this room";
  button.setAttribute("aria-label", `Leave ${name}`);
  button.addEventListener("click", () => forget(name));
  return button;
}

/* The dialog. */

/**
 * Asks for a line of text. Resolves with the result of `clean`, or with nothing if cancelled.
 */
export function ask({ title, text, label, ok, clean, hint, lengthMax = 40, ...options }) {
  const { value = "", isRequired = false } = options;
  const dialog = $("ask");
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-label").textContent = label;
  $("ask-ok").textContent = ok;
  $("ask-error").textContent = "";
  $("ask-cancel").hidden = isRequired;
  $("ask-input").maxLength = lengthMax;
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
      else $("ask-error").textContent = hint ?? "Use letters or digits.";
    };
  });
}

/* Controls. */

function openSide() {
  document.body.classList.add("side-open");
  $("main").inert = true;
  $("side-open").setAttribute("aria-expanded", "true");
  $("side-close").focus();
}

export function closeSide() {
  if (!document.body.classList.contains("side-open")) return;
  document.body.classList.remove("side-open");
  $("main").inert = false;
  $("side-open").setAttribute("aria-expanded", "false");
  $("side-open").focus();
}

/** Fits the height of the text field to its text. */
export function fitText() {
  const field = $("text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
  field.style.overflowY = field.scrollHeight > field.clientHeight + 2 ? "auto" : "hidden";
  $("send").disabled = field.value.trim() === "";
}

/** Attaches the event handlers that do not need the server. */
export function listenToPage() {
  for (const event of ["online", "offline"]) addEventListener(event, showDot);
  $("text").addEventListener("input", fitText);
  $("side-open").addEventListener("click", openSide);
  $("side-close").addEventListener("click", closeSide);
  $("scrim").addEventListener("click", closeSide);
  matchMedia("(min-width: 860px)").addEventListener("change", closeSide);
  addEventListener("keydown", ({ key }) => key === "Escape" && closeSide());
}
