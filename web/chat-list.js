/**
 * The list of messages: those in the room, those being sent, and scrolling. It does not talk to the
 * server; `chat.js` decides what it shows.
 *
 * Layout: the parts of a message, the list, unread messages, its two ends.
 *
 * Invariants:
 * - Text of other people enters the page as text, never as HTML.
 * - A reader at the end stays at the end; a reader who has scrolled up keeps their position.
 */

import { $, avatar, create, hueOf, toast } from "./chat-pieces.js";

/** Beyond this number the oldest messages are removed, so that a page open for days stays fast. */
const MESSAGES_MAX = 600;
/** Messages of one person within this time are grouped. */
const GROUP_MS = 5 * 60_000;
/** Maximum number of names in a note of people who joined and left: the last ones. */
const NOTE_PEOPLE_MAX = 3;
/** Maximum distance from the end that counts as at the end. */
const END_PX = 60;
/** Older messages are loaded within this distance of the first message. */
const OLDER_MARGIN = "400px 0px 0px 0px";
/** Screen readers do not announce older messages: announcements are off for this time. */
const QUIET_MS = 500;

/** Web addresses in a text. Other schemes do not become links. */
const ADDRESS = /\bhttps?:\/\/[\p{L}\p{N}[][^\s<>"'`]*/giu;

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const exactFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const dayFormat = new Intl.DateTimeFormat(undefined, {
  weekday: "long",
  month: "long",
  day: "numeric",
});

let unreadHidden = 0;
let unreadBelow = 0;
/** The line before the first unread message, and how many there are after it. */
let unreadLine;
let unreadCount = 0;
let isAtEnd = true;
let quietTimer;

/* The parts of a message. */

/** A text whose web addresses are links. */
function linked(text) {
  const part = create("span", "text");
  let end = 0;
  for (const { 0: found, index } of text.matchAll(ADDRESS)) {
    // Punctuation after the address, or a closing bracket around it, is not part of it.
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

/** An element for a message, in the room or the outbox. `isOwn`: sent from this browser. */
export function toElement({ id, from, by, text, ms, isOwn }) {
  const element = create("li", `message first last${isOwn ? " own" : ""}`);
  const bubble = create("div", "bubble");
  bubble.append(create("div", `author ${hueOf(from)}`, from || "someone"), linked(text));
  bubble.append(timeOf(ms));
  element.append(avatar(from), bubble);
  // Messages of namesakes are not grouped.
  element.dataset.from = `${from} ${by ?? ""}`;
  element.dataset.time = ms;
  if (id) element.dataset.id = id;
  return element;
}

/** Marks a message as being sent. */
export function markPending(element) {
  element.classList.remove("failed");
  element.classList.add("pending");
  element.querySelector(".failure")?.remove();
  if (element.querySelector(".clock")) return;
  const clock = create("span", "clock");
  clock.setAttribute("role", "img");
  clock.setAttribute("aria-label", "not sent yet");
  clock.title = "Not sent yet";
  element.querySelector("time").before(clock);
}

/** Marks a message that the server should have confirmed by now. */
export function markOverdue(element) {
  if (!element.classList.contains("pending") || element.querySelector(".overdue")) return;
  element.append(create("div", "overdue", "Waiting for the server…"));
  keepEnd();
}

export function markSent(element) {
  element.classList.remove("pending");
  element.querySelector(".overdue")?.remove();
  element.querySelector(".clock")?.remove();
}

export function markFailed(element, { message, outcome }, retry) {
  markSent(element);
  element.classList.add("failed");
  const text = outcome === "unknown" ? "Not confirmed. " : "Not sent. ";
  const failure = create("div", "failure", text);
  const button = create("button", "", "Retry");
  button.type = "button";
  button.title = message;
  button.addEventListener("click", retry);
  failure.setAttribute("role", "alert");
  failure.append(button);
  element.append(failure);
  keepEnd();
}

/* The list of messages. */

function dayOf(ms) {
  const now = new Date();
  const then = new Date(ms);
  if (then.toDateString() === now.toDateString()) return "Today";
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  return then.toDateString() === yesterday.toDateString() ? "Yesterday" : dayFormat.format(ms);
}

/**
 * Groups two consecutive elements if they are messages of one person. Returns a heading to put
 * between them if a day begins. `previous` may be unset.
 */
function arrange(previous, element) {
  const ms = Number(element.dataset.time);
  const before = Number(previous?.dataset.time);
  const isNewDay = new Date(ms).toDateString() !== new Date(before).toDateString();
  if (!previous || isNewDay) return create("li", "day", dayOf(ms));
  const areMessages = [previous, element].every((each) => each.classList.contains("message"));
  const isNear = Math.abs(ms - before) < GROUP_MS;
  if (areMessages && isNear && previous.dataset.from === element.dataset.from) {
    previous.classList.remove("last");
    element.classList.remove("first");
  }
  return undefined;
}

/**
 * Appends an element to the messages of the room, under its day. Returns whether older messages were
 * removed.
 */
export function append(element) {
  const messages = $("messages");
  const day = arrange(messages.lastElementChild ?? undefined, element);
  if (day) messages.append(day);
  messages.append(element);
  // A reader further up would lose their position.
  const isTooLong = isAtEnd && messages.childElementCount > MESSAGES_MAX;
  while (isTooLong && messages.childElementCount > MESSAGES_MAX) messages.firstElementChild.remove();
  if (element.classList.contains("message")) $("empty").hidden = true;
  keepEnd();
  return isTooLong;
}

/** Inserts older messages, oldest first, before the others. Keeps the reader's position. */
export function prepend(elements) {
  const messages = $("messages");
  const log = $("log");
  const scroller = $("scroller");
  const { scrollHeight, scrollTop } = scroller;
  log.setAttribute("aria-live", "off");
  if (messages.firstElementChild?.classList.contains("day")) messages.firstElementChild.remove();
  const next = messages.firstElementChild;
  const older = document.createDocumentFragment();
  let previous;
  for (const element of [...elements, ...(next ? [next] : [])]) {
    const day = arrange(previous, element);
    if (day) older.append(day);
    if (element !== next) older.append(element);
    previous = element;
  }
  messages.prepend(older);
  if (!isAtEnd) scroller.scrollTop = scrollTop + scroller.scrollHeight - scrollHeight;
  keepEnd();
  clearTimeout(quietTimer);
  quietTimer = setTimeout(() => log.setAttribute("aria-live", "polite"), QUIET_MS);
}

/** The id of the oldest message on the page. */
export function oldestId() {
  return document.querySelector("#messages [data-id]")?.dataset.id;
}

/** Notes that a person joined or left. Consecutive notes are one, with each person once. */
export function note(kind, from) {
  const ms = Date.now();
  let element = $("messages").lastElementChild;
  if (!element?.classList.contains("note")) {
    element = create("li", "note");
    element.people = new Map();
    element.dataset.time = ms;
    append(element);
  }
  element.people.delete(from);
  element.people.set(from, kind);
  const people = [...element.people].map(([who, what]) => {
    return `${who || "someone"} ${what === "join" ? "joined" : "left"}`;
  });
  const others = people.length - NOTE_PEOPLE_MAX;
  if (others > 0) people.splice(0, others, `${others} more joined or left`);
  element.textContent = people.join(" · ");
  element.title = exactFormat.format(ms);
  keepEnd();
}

export function gap({ missed }) {
  const text = missed ? `${missed} messages are missing here` : "Messages may be missing here";
  const element = create("li", "gap", text);
  element.dataset.time = Date.now();
  append(element);
  // Newer messages may scroll the line out of view at once.
  toast("Some messages were missed");
}

/** Removes everything of the previous room. */
export function clear() {
  for (const id of ["messages", "outbox"]) $(id).replaceChildren();
  $("empty").hidden = true;
  unreadHidden = 0;
  forgetUnread();
  showEnd();
}

/** Shows a text if the room has no messages. */
export function showWhetherEmpty() {
  $("empty").hidden = document.querySelector(".message") !== null;
}

/* Unread messages. */

/** Counts an unread message of the list. A line stands before the first one. */
export function markUnread(element) {
  unreadCount += 1;
  if (unreadLine) return;
  unreadLine = create("li", "unread");
  unreadLine.append(create("span", "", "New"));
  unreadLine.dataset.time = element.dataset.time;
  // A message after the line begins a group of its own.
  element.previousElementSibling?.classList.add("last");
  element.classList.add("first");
  element.before(unreadLine);
  keepEnd();
}

/** Scrolls to the first unread message, if it is above what the reader sees. */
export function showUnread() {
  if (!unreadLine?.isConnected) return;
  const scroller = $("scroller");
  const above = scroller.getBoundingClientRect().top - unreadLine.getBoundingClientRect().top;
  if (above <= 0) return;
  isAtEnd = false;
  scroller.scrollTop -= above;
  showUnreadBelow(unreadCount);
}

/** Removes the line: all has been read. */
export function forgetUnread() {
  unreadLine?.remove();
  unreadLine = undefined;
  unreadCount = 0;
}

/** Whether the reader sees the newest message, as far as the page can know. */
export function isSeeingEnd() {
  return isAtEnd && !document.hidden;
}

/* The two ends. */

function keepEnd() {
  const scroller = $("scroller");
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

export function showEnd() {
  isAtEnd = true;
  showUnreadBelow(0);
  keepEnd();
}

function showUnreadBelow(count) {
  unreadBelow = count;
  $("to-end").hidden = count === 0;
  $("to-end-text").textContent = count === 1 ? "1 new message" : `${count} new messages`;
}

/** Counts a message that the reader may not have seen. */
export function countUnread() {
  if (document.hidden) unreadHidden += 1;
  if (!isAtEnd) showUnreadBelow(unreadBelow + 1);
  showTitle();
}

export function showTitle() {
  const room = $("room").textContent;
  document.title = `${unreadHidden > 0 ? `(${unreadHidden}) ` : ""}${room} · Throng`;
}

/** Sets the state of the line before the first message: `none`, `loading` or `failed`. */
export function showOlder(what) {
  const older = $("older");
  older.hidden = what === "none";
  $("older-text").textContent = what === "failed" ? "Older messages could not be loaded." : "Loading…";
  $("older-retry").hidden = what !== "failed";
  keepEnd();
}

/**
 * Attaches the event handlers. `loadOlder` is called near the first message, `seeNewest` when the
 * reader may see the last one.
 */
export function listenToPage(loadOlder, seeNewest) {
  const scroller = $("scroller");
  scroller.addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = scroller;
    isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    if (!isAtEnd) return;
    showUnreadBelow(0);
    seeNewest();
  }, { passive: true });
  // The keyboard of a phone, or a longer text, makes the list smaller.
  new ResizeObserver(keepEnd).observe(scroller);
  // Observe again after each page: if the line is still near, there would be no event.
  const watch = new IntersectionObserver(async ([{ isIntersecting }]) => {
    if (!isIntersecting || $("older").hidden) return;
    await loadOlder();
    watch.unobserve($("older"));
    if ($("older-retry").hidden) watch.observe($("older"));
  }, { root: scroller, rootMargin: OLDER_MARGIN });
  watch.observe($("older"));
  $("older-retry").addEventListener("click", () => {
    showOlder("loading");
    watch.unobserve($("older"));
    watch.observe($("older"));
  });
  $("to-end").addEventListener("click", showEnd);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      // What comes now is new.
      if (isAtEnd) forgetUnread();
      return;
    }
    unreadHidden = 0;
    showTitle();
    seeNewest();
  });
}
