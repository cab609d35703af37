/**
 * The status page. Each second a sample arrives as an event. The history is fetched when the page
 * connects: first all of it, after a lost connection the missing part.
 *
 * Layout: the cards, the data, the display, the connection to the server.
 *
 * Invariant: `rows` has one row for each sample of at most the last 15 minutes, sorted by time.
 */

import { BehindCard } from "./status-behind.js";
import { CertificatesCard } from "./status-certificates.js";
import { ClusterCard } from "./status-cluster.js";
import { Chart, windowFor } from "./status-charts.js";
import * as words from "./status-words.js";

const WINDOW_MS = 15 * 60_000;
const HISTORY_MAX = 900;
/** Samples arrive every second; after this time without one the page warns. */
const STALE_MS = 4_000;
/** Minimum time before a reconnect after an error status, for which the browser has none. */
const RETRY_MS = 2_000;
/** How often the descriptions of charts, for screen readers, are renewed. */
const DESCRIBE_MS = 10_000;
const WORKERS_SHOWN = 64;
const TRANSPORTS = [
  ["websocket", "WebSocket"], ["sse", "SSE"], ["stream", "stream"], ["poll", "long-poll"],
];

const $ = (id) => document.getElementById(id);

/*
 * The cards. `value` is the large number, `aside` the text beside it. `now` of a line is its value
 * while nothing is pointed at, if that is not the one of the last second.
 */

/** The first one is what users feel, and the largest. */
const CARDS = [
  {
    title: "Publish to last write",
    about: "Time until the last subscriber of a message has it",
    isHero: true,
    value: (sample) => words.milliseconds(sample.latency.minute.p50_ms),
    aside: ({ latency: { minute } }) => (minute.p50_ms === null ? "nothing in the last minute"
      : `p50 of the last minute, p99 ${words.milliseconds(minute.p99_ms)}`),
    format: words.roundMilliseconds,
    isLog: true,
    lines: [
      { key: "latency_p50_ms", label: "p50", colour: "hue-0",
        now: (sample) => sample.latency.minute.p50_ms },
      { key: "latency_p99_ms", label: "p99", colour: "hue-1",
        now: (sample) => sample.latency.minute.p99_ms },
    ],
    legend: words.milliseconds,
  },
  {
    title: "Connections",
    value: (sample) => words.count(sample.connections.total),
    aside: (sample) => `capacity ${words.count(sample.connections.capacity)}`,
    format: words.compact,
    isStacked: true,
    lines: [
      { key: "websocket", label: "WebSocket", colour: "hue-0", isFilled: true },
      { key: "sse", label: "SSE", colour: "hue-1", isFilled: true },
      { key: "stream", label: "stream", colour: "hue-2", isFilled: true },
      { key: "poll", label: "long-poll", colour: "hue-3", isFilled: true },
      { key: "control", label: "HTTP", colour: "hue-4", isFilled: true },
      { key: "rest", label: "other", colour: "hue-5", isFilled: true },
    ],
    legend: words.count,
  },
  {
    title: "Deliveries",
    value: (sample) => words.rate(sample.deliveries.per_s),
    aside: (sample) => `${words.bytes(sample.sent_bytes.per_s)}/s`,
    format: words.compact,
    lines: [{ key: "deliveries_per_s", label: "per second", colour: "hue-0", isFilled: true }],
    legend: words.rate,
    note: (sample) => `${words.count(sample.deliveries.total)} since the start`,
  },
  {
    title: "Messages in",
    value: (sample) => words.rate(sample.messages_in.per_s),
    aside: (sample) => `${words.count(sample.channels)} ${sample.channels === 1 ? "channel" : "channels"}`,
    format: words.compact,
    lines: [{ key: "messages_in_per_s", label: "per second", colour: "hue-3", isFilled: true }],
    legend: words.rate,
    note: (sample) => `${words.count(sample.messages_in.total)} since the start`,
  },
  {
    title: "Accepted connections",
    value: (sample) => words.rate(sample.accepted.per_s),
    aside: () => "",
    format: words.compact,
    lines: [{ key: "accepted_per_s", label: "per second", colour: "hue-3", isFilled: true }],
    legend: words.rate,
    note: (sample) => `${words.count(sample.accepted.total)} since the start`,
  },
  {
    title: "Processor",
    value: (sample) => words.cores(sum(sample.cpu.workers) + (sample.cpu.control ?? 0)),
    aside: (sample) => `of ${words.count(sample.cpu.cores)} cores`,
    format: (value) => value.toFixed(1),
    floor: 0.3,
    isStacked: true,
    lines: [
      { key: "cpu_workers", label: "workers", colour: "hue-0", isFilled: true },
      { key: "cpu_control", label: "control plane", colour: "hue-4", isFilled: true },
    ],
    legend: words.cores,
  },
  {
    title: "HTTP requests",
    value: (sample) => words.rate(sample.http.per_s),
    aside: () => "",
    format: words.compact,
    lines: [{ key: "http_per_s", label: "per second", colour: "hue-4", isFilled: true }],
    legend: words.rate,
    note: (sample) => `${words.count(sample.http.total)} since the start`,
  },
  {
    title: "HTTP response time",
    value: (sample) => words.milliseconds(sample.http.minute.mean_ms),
    aside: (sample) => `p99 ${words.milliseconds(sample.http.minute.p99_ms)}, last minute`,
    format: words.roundMilliseconds,
    isLog: true,
    lines: [
      { key: "http_mean_ms", label: "mean", colour: "hue-4",
        now: (sample) => sample.http.minute.mean_ms },
      { key: "http_p99_ms", label: "p99", colour: "hue-1",
        now: (sample) => sample.http.minute.p99_ms },
    ],
    legend: words.milliseconds,
  },
  {
    title: "Memory",
    value: (sample) => words.bytes(sample.memory.resident_bytes),
    aside: (sample) => (sample.memory.per_connection_bytes === null
      ? "resident"
      : `${words.bytes(sample.memory.per_connection_bytes)} per connection`),
    format: words.roundBytes,
    floor: 1024,
    isBytes: true,
    lines: [
      { key: "resident_bytes", label: "server", colour: "hue-0" },
      { key: "tcp_buffer_bytes", label: "kernel TCP buffers", colour: "hue-4" },
    ],
    legend: words.bytes,
    note: ({ memory }) => (memory.step === "none" ? ""
      : `short, ${words.bytes(memory.used_bytes)} of ${words.bytes(memory.limit_bytes)} used: `
        + `gives up ${words.memoryStep(memory.step)}`),
  },
];

const REFUSALS = {
  title: "Refused and dropped",
  value: (sample) => words.rate(sample.refused_per_s + sample.dropped_per_s),
  aside: (sample) => (sample.draining ? "draining" : ""),
  format: words.compact,
  lines: [
    { key: "refused_per_s", label: "refused", colour: "hue-2" },
    { key: "dropped_per_s", label: "dropped", colour: "hue-1" },
  ],
  legend: words.rate,
};

const sum = (values) => values.reduce((all, value) => all + value, 0);

/** Makes an element with a class and a text. */
function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** A card on the page: a value, a chart and a table. */
class Card {
  #card;
  #value = element("p", "figure", words.NONE);
  #aside = element("p", "aside");
  #readings = new Map();
  #note = element("span", "note");
  #picture = element("div", "chart");
  #chart;
  #sample = null;
  #last = null;
  #pointed = null;
  #rows = [];
  #numbers = element("details", "numbers");
  #body;

  constructor(card, place) {
    this.#card = card;
    const head = element("div", "head");
    head.append(this.#value, this.#aside);
    const legend = element("div", "legend");
    const list = element("dl", "");
    // With only one line, the large number is its value.
    for (const { key, label, colour } of card.lines.length > 1 ? card.lines : []) {
      const pair = element("div", colour);
      const reading = element("dd", "", words.NONE);
      pair.append(element("dt", "", label), reading);
      list.append(pair);
      this.#readings.set(key, reading);
    }
    if (list.children.length > 0) legend.append(list);
    legend.append(this.#note);
    this.#picture.setAttribute("role", "img");
    this.#picture.setAttribute("aria-label", `${card.title}: no data yet`);
    const about = card.about ? [element("p", "about", card.about)] : [];
    place.classList.toggle("hero", card.isHero ?? false);
    place.prepend(element("h2", "", card.title), ...about, head, this.#picture, legend,
      this.#table());
    this.#chart = new Chart(this.#picture, { ...card, onPoint: (row) => this.#point(row) });
  }

  show(sample, rows, windowMin) {
    this.#value.textContent = this.#card.value(sample);
    this.#aside.textContent = this.#card.aside(sample);
    this.#sample = sample;
    this.#last = rows.at(-1) ?? null;
    this.#chart.show(rows, windowMin);
    this.#read();
    this.#rows = rows;
    this.#showTable();
  }

  /** The chart as a table, for users without a pointer: a row a minute, filled while open. */
  #table() {
    const table = element("table", "");
    table.setAttribute("aria-label", `${this.#card.title}, by minute`);
    const head = table.createTHead().insertRow();
    for (const title of ["time", ...this.#card.lines.map(({ label }) => label)]) {
      const cell = element("th", "", title);
      cell.scope = "col";
      head.append(cell);
    }
    this.#body = table.createTBody();
    this.#numbers.append(element("summary", "", "as a table"), table);
    this.#numbers.addEventListener("toggle", () => this.#showTable());
    return this.#numbers;
  }

  #showTable() {
    if (!this.#numbers.open) return;
    const { lines, legend } = this.#card;
    const byMinute = new Map(this.#rows.map((row) => [Math.floor(row.time_ms / 60_000), row]));
    const last = [...byMinute.values()].reverse();
    showTable(this.#body, last.map((row) => [
      words.clock(row.time_ms), ...lines.map(({ key }) => legend(row[key] ?? undefined)),
    ]));
  }

  /** Describes the chart in words, for screen readers. */
  describe(rows, windowMin) {
    const { title, lines, legend } = this.#card;
    const parts = lines.map(({ key, label }) => {
      const values = rows.map((row) => row[key]).filter((value) => value != null);
      if (values.length === 0) return `${label}: no data`;
      const [least, most] = [Math.min(...values), Math.max(...values)];
      return `${label}: now ${legend(values.at(-1))}, from ${legend(least)} to ${legend(most)}`;
    });
    const label = `${title}, the last ${words.duration(windowMin * 60_000)}. ${parts.join("; ")}`;
    this.#picture.setAttribute("aria-label", label);
  }

  #point(row) {
    this.#pointed = row;
    this.#read();
  }

  /** Shows the values under the pointer below the chart, or the current ones. */
  #read() {
    const row = this.#pointed ?? this.#last;
    if (!row) return;
    for (const { key, now } of this.#card.lines) {
      const reading = this.#readings.get(key);
      const value = now && !this.#pointed ? now(this.#sample) : row[key];
      if (reading) reading.textContent = this.#card.legend(value ?? undefined);
    }
    const { note, lines, legend } = this.#card;
    if (this.#pointed) {
      const value = lines.length > 1 ? "" : ` ${legend(row[lines[0].key] ?? undefined)}`;
      this.#note.textContent = `${words.clock(row.time_ms)}${value}`;
    } else {
      this.#note.textContent = note?.(this.#sample) ?? "";
    }
  }
}

/* The data. */

let rows = [];
let newest = null;
/** When the newest sample arrived, by the clock of this page. */
let receivedAt = 0;
/** The samples of the last minute, for the changes since. */
let minute = [];

/** The chart values of a sample, named as in the server's history. */
function rowOf(sample) {
  return {
    time_ms: sample.time_ms,
    websocket: sample.connections.websocket,
    sse: sample.connections.sse,
    stream: sample.connections.stream,
    poll: sample.connections.poll,
    control: sample.connections.control,
    rest: sample.connections.status + sample.connections.other,
    accepted_per_s: sample.accepted.per_s,
    messages_in_per_s: sample.messages_in.per_s,
    deliveries_per_s: sample.deliveries.per_s,
    latency_p50_ms: sample.latency.second.p50_ms,
    latency_p99_ms: sample.latency.second.p99_ms,
    http_per_s: sample.http.per_s,
    http_mean_ms: sample.http.second.mean_ms,
    http_p99_ms: sample.http.second.p99_ms,
    cpu_workers: sum(sample.cpu.workers),
    cpu_control: sample.cpu.control,
    refused_per_s: sample.refused_per_s,
    dropped_per_s: sample.dropped_per_s,
    resident_bytes: sample.memory.resident_bytes,
    tcp_buffer_bytes: sample.kernel.tcp_buffer_bytes,
  };
}

/** Adds rows. They may be older than others, or known already. */
function addRows(more) {
  const byTime = new Map([...rows, ...more].map((row) => [row.time_ms, row]));
  rows = [...byTime.values()].sort((one, other) => one.time_ms - other.time_ms);
  const oldest = (rows.at(-1)?.time_ms ?? 0) - WINDOW_MS;
  rows = rows.filter((row) => row.time_ms >= oldest);
}

function addHistory(columns) {
  const names = Object.keys(columns);
  addRows(columns.time_ms.map((_, index) => Object.fromEntries(
    names.map((name) => [name, columns[name][index]]),
  )));
}

function addSample(sample) {
  if (sample.started_ms !== newest?.started_ms) minute = [];
  newest = sample;
  receivedAt = performance.now();
  minute = [...minute, sample].filter((other) => other.time_ms > sample.time_ms - 60_000);
  addRows([rowOf(sample)]);
}

/** How much the count of a reason has grown in the last minute. */
function growth(table, name) {
  return (newest[table][name] ?? 0) - (minute[0][table][name] ?? 0);
}

/* The display. */

function newCard() {
  const card = element("section", "card");
  $("cards").append(card);
  return card;
}

// Hidden in the HTML, because without this script they would be empty.
for (const id of ["link", "facts", "main"]) $(id).hidden = false;

const cards = [
  ...CARDS.map((card) => new Card(card, newCard())),
  new Card(REFUSALS, $("refusals")),
];
// On a phone the tables are folded: a page of charts is long enough.
if (matchMedia("(max-width: 620px)").matches) {
  for (const part of document.querySelectorAll("details.part")) part.open = false;
}
const behind = new BehindCard($("behind"));
const cluster = new ClusterCard($("cluster"));
const certificates = new CertificatesCard($("certificates"));
let describedAt = -Infinity;
/** Whether the request for the history has ended, with or without a response. */
let isHistoryKnown = false;

function show() {
  if (!newest || document.hidden) return;
  // Charts go on after an upgrade, and begin anew after a restart.
  const oldest = Math.min(newest.started_ms, rows[0].time_ms);
  const windowMin = windowFor(newest.time_ms - oldest);
  for (const card of cards) card.show(newest, rows, windowMin);
  // Descriptions are not renewed for a while, so the first one waits for the history.
  if (isHistoryKnown && performance.now() - describedAt > DESCRIBE_MS) {
    describedAt = performance.now();
    for (const card of cards) card.describe(rows, windowMin);
  }
  $("uptime").textContent = words.duration(newest.time_ms - newest.started_ms);
  $("version").textContent = newest.version;
  $("viewers").textContent = words.count(newest.connections.status);
  behind.show(newest);
  certificates.show(newest);
  cluster.show(newest);
  showWorkers();
  showMemory();
  showData();
  showCanary();
  showTable("refused", [...reasonRows("refused"), ...reasonRows("dropped")]);
  showTable("closed", reasonRows("closed"));
}

function showWorkers() {
  const { workers } = newest.cpu;
  const shown = workers.slice(0, WORKERS_SHOWN);
  const list = $("workers");
  while (list.children.length > shown.length) list.lastElementChild.remove();
  while (list.children.length < shown.length) {
    const item = element("li", "");
    const bar = element("span", "bar");
    bar.append(element("span", ""));
    item.append(element("span", "name"), bar, element("span", "value"), element("span", "held"));
    list.append(item);
  }
  shown.forEach((share, index) => {
    const [name, bar, value, held] = list.children[index].children;
    name.textContent = index;
    bar.firstElementChild.style.width = `${Math.min(100, share * 100)}%`;
    value.textContent = words.percent(share);
    held.textContent = words.count(newest.connections.workers[index]);
  });
  list.dataset.size = shown.length > 8 ? "many" : "few";
  const rest = workers.length - shown.length;
  $("workers-rest").textContent = rest > 0
    ? `and ${words.count(rest)} more; the busiest worker: ${words.percent(Math.max(...workers))}`
    : "";
}

function showMemory() {
  const { memory, kernel } = newest;
  const each = memory.per_connection_bytes;
  showTable("memory", [
    ["resident", words.bytes(memory.resident_bytes)],
    ["private", words.bytes(memory.private_bytes)],
    ["private at the start", words.bytes(memory.private_at_start_bytes)],
    ["used of its limit", memory.limit_bytes === null ? words.NONE
      : `${words.bytes(memory.used_bytes)} of ${words.bytes(memory.limit_bytes)}`],
    ["given up for lack of memory", words.memoryStep(memory.step)],
    ["messages in logs", words.bytes(memory.log_bytes)],
    ["keys of states here", memory.state_keys === undefined ? words.NONE
      : `${words.count(memory.state_keys)}, ${words.bytes(memory.state_bytes)}`],
    ["of them, members", memory.members === undefined ? words.NONE : words.count(memory.members)],
    ["per connection", each === null ? "from 1,000 connections" : words.bytes(each)],
    ["kernel: data in TCP buffers", words.bytes(kernel.tcp_buffer_bytes)],
    ["kernel: TCP sockets", kernel.socket_slab_bytes === null
      ? "root only" : words.bytes(kernel.socket_slab_bytes)],
    ["kernel: number of TCP sockets", words.count(kernel.tcp_sockets)],
  ]);
}

function showData() {
  const data = newest.data ?? null;
  $("data-part").hidden = data === null;
  if (data === null) return;
  const { disk_bytes, limit_bytes, messages, message_bytes, commits } = data;
  const { p50_ms, p99_ms } = commits.minute;
  const taken = words.bytes(disk_bytes);
  showTable("data", [
    ["on the disk", limit_bytes === null ? taken : `${taken} of ${words.bytes(limit_bytes)}`],
    ["messages written", words.count(messages.total)],
    ["messages written now", words.rate(messages.per_s)],
    ["bytes of their bodies", `${words.bytes(message_bytes.per_s)}/s`],
    ["write and sync, p50", words.milliseconds(p50_ms)],
    ["write and sync, p99", words.milliseconds(p99_ms)],
    ["new messages and changes", words.dataState(data.refuses)],
  ]);
  [...$("data").rows].at(-1).classList.toggle("bad", data.refuses !== null);
}

function showCanary() {
  const canary = newest.canary ?? null;
  $("canary-part").hidden = canary === null;
  if (canary === null) return;
  const reports = TRANSPORTS.map(([name, label]) => [label, canary[name]]);
  showTable("canary", reports.map(([label, { p50_ms, p99_ms, arrived_ms, failing }]) => {
    const last = arrived_ms === null
      ? "not yet" : `${words.duration(newest.time_ms - arrived_ms)} ago`;
    return [label, words.milliseconds(p50_ms), words.milliseconds(p99_ms),
      failing ? `fails, ${last}` : last];
  }));
  reports.forEach(([, { failing }], index) => {
    $("canary").rows[index].classList.toggle("bad", failing);
  });
}

function reasonRows(table) {
  return words.reasons(table, newest[table]).map((name) => {
    const more = growth(table, name);
    const text = words.reason(table, name);
    return [table === "dropped" ? `message ${text}` : text,
      more > 0 ? `+${words.count(more)}` : "", words.count(newest[table][name])];
  });
}

/** Fills a table with rows of a heading and values. Existing rows keep their elements. */
function showTable(place, lines) {
  const body = typeof place === "string" ? $(place) : place;
  const all = lines.length > 0 ? lines : [["none so far"]];
  body.classList.toggle("none", lines.length === 0);
  while (body.rows.length > all.length) body.deleteRow(-1);
  all.forEach((line, index) => {
    const row = body.rows[index] ?? body.insertRow();
    while (row.cells.length < line.length) {
      const cell = row.cells.length === 0 ? element("th", "") : element("td", "");
      if (row.cells.length === 0) cell.scope = "row";
      row.append(cell);
    }
    line.forEach((text, at) => { row.cells[at].textContent = text; });
    for (let at = line.length; at < row.cells.length; at += 1) row.cells[at].textContent = "";
  });
}

function showLink(state, text, notice = "") {
  const link = $("link");
  if (link.dataset.state !== state) {
    link.dataset.state = state;
    $("link-text").textContent = text;
    document.body.dataset.state = state;
  }
  if ($("notice").textContent !== notice) $("notice").textContent = notice;
  $("notice").hidden = notice === "";
}

/* The connection to the server. */

let events;
let heardAt = performance.now();

/** Fetches the history: all of it, or what is missing since the newest row. */
async function fetchHistory() {
  // By the clock of this page: the server's clock may differ.
  const missing = newest ? Math.ceil((performance.now() - receivedAt) / 1000) + 5 : HISTORY_MAX;
  const count = Math.min(HISTORY_MAX, Math.max(5, missing));
  try {
    const response = await fetch(`status.json?history=${count}`, { cache: "no-store" });
    if (response.ok) {
      const { history, ...sample } = await response.json();
      addHistory(history);
      if (!newest || sample.time_ms > newest.time_ms) addSample(sample);
      describedAt = -Infinity;
    }
  } catch {
    // The page fetches it again when the stream reconnects.
  }
  isHistoryKnown = true;
  show();
}

function lost(since) {
  const notice = newest
    ? `The server has not answered since ${words.clock(since)}. This page shows earlier data and `
      + "reconnects by itself."
    : "The server does not answer. This page reconnects by itself.";
  showLink("lost", "lost", notice);
}

function connect() {
  events = new EventSource("status/stream");
  events.onopen = () => {
    heardAt = performance.now();
    fetchHistory();
  };
  events.onmessage = ({ data }) => {
    heardAt = performance.now();
    addSample(JSON.parse(data));
    showLink(newest.draining ? "draining" : "live", newest.draining ? "stopping" : "live",
      newest.draining ? words.departure(newest.departure)
        : words.upgrade(newest.upgrade, newest.time_ms));
    show();
  };
  events.onerror = () => {
    lost(newest?.time_ms);
    if (events.readyState === EventSource.CLOSED) {
      setTimeout(reconnect, RETRY_MS + Math.random() * RETRY_MS);
    }
  };
}

/** Connects again, unless the login is over: then the server has the login page for this URL. */
async function reconnect() {
  const response = await fetch("status.json", { cache: "no-store" }).catch(() => null);
  if (response?.status === 401) location.reload();
  else connect();
}

setInterval(() => {
  const isLive = $("link").dataset.state === "live";
  if (isLive && performance.now() - heardAt > STALE_MS) {
    showLink("late", "late", "No sample has arrived for several seconds: the server or the "
      + "network is slow.");
  }
}, 1000);

document.addEventListener("visibilitychange", show);
$("address").textContent = location.host;
connect();
