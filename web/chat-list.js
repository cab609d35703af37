/**
 * The messages of a room: those in the room, those on their way, and how the reader moves among
 * them. It knows nothing of the server; `chat.js` tells it what to show.
 *
 * Layout: the pieces of a message, the list, its two ends.
 *
 * Invariants:
 * - Text of others enters the page only as text.
 * - A reader who is at the end stays there; one who has scrolled up is left where they are.
 */

import { $, avatar, create, hueOf, toast } from "./chat-pieces.js";

/** More are taken away at the top, so that a page left open for days stays quick. */
const MESSAGES_MAX = 600;
/** Messages of one person within this time stand together. */
const GROUP_MS = 5 * 60_000;
/** A line of comings and goings names the last of them. */
const NOTE_PEOPLE_MAX = 3;
/** So near to the end counts as at the end. */
const END_PX = 60;
/** Older messages are loaded when the reader is this near to the first. */
const OLDER_MARGIN = "400px 0px 0px 0px";
/** What is put in at the top is not news, and must not be read aloud. */
const QUIET_MS = 500;

/** A web address in a text; no other scheme becomes a link. */
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
let isAtEnd = true;
let quietTimer;

/* The pieces of a message. */

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

/** A message, to be put into the room or the outbox. `isOwn`: written in this browser. */
export function toElement({ id, from, by, text, ms, isOwn }) {
  const element = create("li", `message first last${isOwn ? " own" : ""}`);
  const bubble = create("div", "bubble");
  bubble.append(create("div", `author ${hueOf(from)}`, from || "somebody"), linked(text));
  bubble.append(timeOf(ms));
  element.append(avatar(from), bubble);
  // Namesakes do not stand together.
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
 * Sets how two neighbours stand: messages of one person together, a line where a day begins.
 * Returns that line, which goes between them, or nothing. `previous` may be unset.
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
 * Puts an element at the end of the room's messages, under its day. Returns whether others had to
 * go at the top.
 */
export function append(element) {
  const messages = $("messages");
  const day = arrange(messages.lastElementChild ?? undefined, element);
  if (day) messages.append(day);
  messages.append(element);
  // Who reads further up would lose their place.
  const isTooLong = isAtEnd && messages.childElementCount > MESSAGES_MAX;
  while (isTooLong && messages.childElementCount > MESSAGES_MAX) messages.firstElementChild.remove();
  if (element.classList.contains("message")) $("empty").hidden = true;
  keepEnd();
  return isTooLong;
}

/** Puts older messages, oldest first, before the others. The reader's place stays. */
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

/** The id of the oldest message here. */
export function oldestId() {
  return document.querySelector("#messages [data-id]")?.dataset.id;
}

/** Who came and who went, each person once in a row of such notes. */
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
    return `${who || "somebody"} ${what === "join" ? "joined" : "left"}`;
  });
  const others = people.length - NOTE_PEOPLE_MAX;
  if (others > 0) people.splice(0, others, `${others} more came or went`);
  element.textContent = people.join(" · ");
  element.title = exactFormat.format(ms);
  keepEnd();
}

export function gap({ missed }) {
  const text = missed ? `${missed} messages are missing here` : "Messages may be missing here";
  const element = create("li", "gap", text);
  element.dataset.time = Date.now();
  append(element);
  // What follows may push the line out of sight at once.
  toast("Some messages were missed");
}

/** Takes away everything of the room before. */
export function clear() {
  for (const id of ["messages", "outbox"]) $(id).replaceChildren();
  $("empty").hidden = true;
  unreadHidden = 0;
  showEnd();
}

/** Says so when nothing was said here. */
export function showWhetherEmpty() {
  $("empty").hidden = document.querySelector(".message") !== null;
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

/** One more message that its reader may not have seen. */
export function countUnread() {
  if (document.hidden) unreadHidden += 1;
  if (!isAtEnd) showUnreadBelow(unreadBelow + 1);
  showTitle();
}

export function showTitle() {
  const room = $("room").textContent;
  document.title = `${unreadHidden > 0 ? `(${unreadHidden}) ` : ""}${room} · Throng`;
}

/** What stands before the first message: `none`, `loading` or `failed`. */
export function showOlder(what) {
  const older = $("older");
  older.hidden = what === "none";
  $("older-text").textContent = what === "failed" ? "Older messages could not be loaded." : "Loading…";
  $("older-retry").hidden = what !== "failed";
  keepEnd();
}

/** `loadOlder` is called when the reader comes near to the first message. */
export function listenToPage(loadOlder) {
  const scroller = $("scroller");
  scroller.addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = scroller;
    isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    if (isAtEnd) showUnreadBelow(0);
  }, { passive: true });
  // The keyboard of a phone, or a growing text, takes room from below.
  new ResizeObserver(keepEnd).observe(scroller);
  // After each page it may still be near, which no event would tell.
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
    if (document.hidden) return;
    unreadHidden = 0;
    showTitle();
  });
}
