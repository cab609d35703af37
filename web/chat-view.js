/**
 * What the chat page shows: messages, people, the state of the connection, rooms, questions. It
 * knows the page and nothing of the server; `chat.js` tells it what to show.
 *
 * Layout: the pieces of a message, the list of messages, people and connection, rooms, questions,
 * controls.
 *
 * Invariants:
 * - Text of others enters the page only as text.
 * - A reader who is at the end stays there; one who has scrolled up is left where they are.
 */

/** More are taken away at the top, so that a page left open for days stays quick. */
const MESSAGES_MAX = 600;
/** Messages of one person within this time stand together. */
const GROUP_MS = 5 * 60_000;
/** A shorter loss of the connection is not worth a word. */
const NOTICE_DELAY_MS = 1_000;
const TOAST_MS = 2_500;
/** A line of comings and goings names the last of them. */
const NOTE_PEOPLE_MAX = 3;
/** So near to the end counts as at the end. */
const END_PX = 60;

/** A web address in a text; no other scheme becomes a link. */
const ADDRESS = /\bhttps?:\/\/[\p{L}\p{N}[][^\s<>"'`]*/giu;

const TRANSPORTS = { websocket: "WebSocket", sse: "SSE", poll: "Long-poll" };

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const exactFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const dayFormat = new Intl.DateTimeFormat(undefined, {
  weekday: "long",
  month: "long",
  day: "numeric",
});

let room = "";
let unreadHidden = 0;
let unreadBelow = 0;
let isAtEnd = true;
let noticeTimer;
let countdownTimer;
let toastTimer;

export const $ = (id) => document.getElementById(id);

function create(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/* The pieces of a message. */

function hueOf(from) {
  let sum = 0;
  for (const character of from) sum = (sum * 31 + character.codePointAt(0)) % 9973;
  return `hue-${sum % 8}`;
}

/** A letter on the person's colour. Read aloud it would only repeat the name beside it. */
function avatar(from) {
  const [initial = "?"] = from;
  const face = create("span", from ? `avatar ${hueOf(from)}` : "avatar", initial.toUpperCase());
  face.setAttribute("aria-hidden", "true");
  return face;
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

/** A message, to be put into the room or the outbox. `isOwn`: written under the reader's name. */
export function toElement({ from, text, ms, isOwn }) {
  const element = create("li", `message first last${isOwn ? " own" : ""}`);
  const bubble = create("div", "bubble");
  bubble.append(create("div", `author ${hueOf(from)}`, from || "somebody"), linked(text));
  bubble.append(timeOf(ms));
  element.append(avatar(from), bubble);
  element.dataset.from = from;
  element.dataset.time = ms;
  return element;
}

/** Marks a message as being sent. */
export function markPending(element) {
  element.classList.remove("failed");
  element.classList.add("pending");
  element.querySelector(".failure")?.remove();
}

export function markSent(element) {
  element.classList.remove("pending");
}

export function markFailed(element, reason, retry) {
  element.classList.replace("pending", "failed");
  const failure = create("div", "failure", "Not sent. ");
  const button = create("button", "", "Retry");
  button.type = "button";
  button.title = reason;
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

/** Puts an element at the end of the room's messages, under its day. */
export function append(element, ms) {
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
export function note(kind, from, ms) {
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

export function gap({ missed }) {
  const text = missed ? `${missed} messages are missing here` : "Messages may be missing here";
  append(create("li", "gap", text), Date.now());
  // What follows may push the line out of sight at once.
  toast("Some messages were missed");
}

/** Says so when nothing was said here. */
export function showWhetherEmpty() {
  $("empty").hidden = document.querySelector(".message") !== null;
}

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

function showTitle() {
  document.title = `${unreadHidden > 0 ? `(${unreadHidden}) ` : ""}${room} · Throng`;
}

/** Someone looks at the page. */
export function seen() {
  unreadHidden = 0;
  showTitle();
}

/* People and connection. */

/** Who is here, oneself first. */
export function showPeople({ users, more }, name) {
  const here = [...users].sort((a, b) => (b === name) - (a === name) || a.localeCompare(b));
  const people = here.map((user) => {
    const person = create("li");
    person.append(avatar(user), create("span", "name", user));
    if (user === name) person.append(create("span", "you", "you"));
    return person;
  });
  $("people").replaceChildren(...people);
  const count = more ? `more than ${users.length}` : `${users.length}`;
  $("here").textContent = users.length > 0 ? `${count} here` : "";
}

export function showMe(name) {
  $("me-name").textContent = name;
  $("me-avatar").replaceWith(Object.assign(avatar(name), { id: "me-avatar" }));
}

export function showState({ state, transport, delayMs }) {
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
  noticeTimer ??= setTimeout(showNotice, NOTICE_DELAY_MS);
  $("notice-retry").hidden = state === "connecting";
  if (state === "closed") notice("Disconnected.");
  else if (state === "connecting") notice("Connecting…");
  else countDown(delayMs);
}

/** Sets the words of the notice, which is shown when the state is bad for long. */
export function notice(text) {
  $("notice-text").textContent = text;
}

export function showNotice() {
  $("notice").hidden = false;
  keepEnd();
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

export function toast(text) {
  $("toast").textContent = text;
  $("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("shown"), TOAST_MS);
}

/* Rooms. */

export function showRoom(to) {
  room = to;
  $("room").textContent = room;
  showTitle();
}

/** Takes away everything of the room before. */
export function clearRoom() {
  for (const id of ["messages", "outbox", "people"]) $(id).replaceChildren();
  delete $("messages").dataset.day;
  $("here").textContent = "";
  $("empty").hidden = true;
  unreadHidden = 0;
  showEnd();
}

/** `rooms`: name and address of each. `go` is called with the name of the one that is chosen. */
export function showRooms(rooms, go) {
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
    return item;
  });
  $("rooms").replaceChildren(...links);
}

/* Questions. */

/**
 * Asks for one line; resolves with it as `clean` leaves it, or with nothing when it was cancelled.
 */
export function ask({ title, text, label, ok, clean, value = "", isRequired = false }) {
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

/** The field grows with its text. */
export function fitText() {
  const field = $("text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
  field.style.overflowY = field.scrollHeight > field.clientHeight + 2 ? "auto" : "hidden";
  $("send").disabled = field.value.trim() === "";
}

/** What the page does by itself, without a word to the server. */
export function listenToPage() {
  $("scroller").addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = $("scroller");
    isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    if (isAtEnd) showUnreadBelow(0);
  }, { passive: true });
  // The keyboard of a phone, or a growing text, takes room from below.
  new ResizeObserver(keepEnd).observe($("scroller"));
  $("text").addEventListener("input", fitText);
  $("to-end").addEventListener("click", showEnd);
  $("side-open").addEventListener("click", openSide);
  $("side-close").addEventListener("click", closeSide);
  $("scrim").addEventListener("click", closeSide);
  matchMedia("(min-width: 860px)").addEventListener("change", closeSide);
  addEventListener("keydown", ({ key }) => key === "Escape" && closeSide());
  document.addEventListener("visibilitychange", () => document.hidden || seen());
}
