/**
 * The status page. One sample a second comes as an event; what was before is asked for once, and
 * again for what was missed while the server was away.
 *
 * Layout: the cards, what is known, what is shown, the way to the server.
 *
 * Invariant: `rows` are in the order of time, one a sample, at most a quarter of an hour.
 */

import { Chart } from "./status-charts.js";
import * as words from "./status-words.js";

const WINDOW_MS = 15 * 60_000;
const HISTORY_MAX = 900;
/** Samples come every second; without one for so long something is wrong. */
const STALE_MS = 4_000;
/** After a refusal the browser does not try again by itself. */
const RETRY_MS = 2_000;
/** Descriptions of charts are for reading, not for following. */
const DESCRIBE_MS = 10_000;
const WORKERS_SHOWN = 64;

const $ = (id) => document.getElementById(id);

/* The cards. `figure` is the number that counts, `aside` what stands beside it. */

const CARDS = [
  {
    title: "Connections",
    figure: (it) => words.count(it.connections.total),
    aside: (it) => `room for ${words.count(it.connections.room)}`,
    format: words.compact,
    isStacked: true,
    lines: [
      { key: "websocket", label: "WebSocket", colour: "hue-0", isFilled: true },
      { key: "sse", label: "SSE", colour: "hue-1", isFilled: true },
      { key: "stream", label: "stream", colour: "hue-2", isFilled: true },
      { key: "poll", label: "long-poll", colour: "hue-3", isFilled: true },
      { key: "control", label: "HTTP", colour: "hue-4", isFilled: true },
    ],
    legend: words.count,
  },
  {
    title: "Deliveries",
    figure: (it) => words.rate(it.deliveries.per_s),
    aside: (it) => `${words.bytes(it.sent_bytes.per_s)}/s`,
    format: words.compact,
    lines: [{ key: "deliveries_per_s", label: "a second", colour: "hue-0", isFilled: true }],
    legend: words.rate,
    note: (it) => `${words.count(it.deliveries.total)} since the start`,
  },
  {
    title: "Publish to last write",
    figure: (it) => words.milliseconds(it.latency.minute.p50_ms),
    aside: (it) => `p99 ${words.milliseconds(it.latency.minute.p99_ms)}, last minute`,
    format: words.roundMilliseconds,
    isLog: true,
    lines: [
      { key: "latency_p50_ms", label: "p50", colour: "hue-0" },
      { key: "latency_p99_ms", label: "p99", colour: "hue-1" },
    ],
    legend: words.milliseconds,
  },
  {
    title: "Messages in",
    figure: (it) => words.rate(it.messages_in.per_s),
    aside: (it) => `${words.count(it.channels)} channels`,
    format: words.compact,
    lines: [{ key: "messages_in_per_s", label: "a second", colour: "hue-3", isFilled: true }],
    legend: words.rate,
    note: (it) => `${words.count(it.messages_in.total)} since the start`,
  },
  {
    title: "Accepted connections",
    figure: (it) => words.rate(it.accepted.per_s),
    aside: () => "",
    format: words.compact,
    lines: [{ key: "accepted_per_s", label: "a second", colour: "hue-3", isFilled: true }],
    legend: words.rate,
    note: (it) => `${words.count(it.accepted.total)} since the start`,
  },
  {
    title: "Processor",
    figure: (it) => words.cores(sum(it.cpu.workers) + (it.cpu.control ?? 0)),
    aside: (it) => `of ${words.count(it.cpu.cores)} cores`,
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
    figure: (it) => words.rate(it.http.per_s),
    aside: () => "",
    format: words.compact,
    lines: [{ key: "http_per_s", label: "a second", colour: "hue-4", isFilled: true }],
    legend: words.rate,
    note: (it) => `${words.count(it.http.total)} since the start`,
  },
  {
    title: "HTTP response time",
    figure: (it) => words.milliseconds(it.http.minute.mean_ms),
    aside: (it) => `p99 ${words.milliseconds(it.http.minute.p99_ms)}, last minute`,
    format: words.roundMilliseconds,
    isLog: true,
    lines: [
      { key: "http_mean_ms", label: "mean", colour: "hue-4" },
      { key: "http_p99_ms", label: "p99", colour: "hue-1" },
    ],
    legend: words.milliseconds,
  },
  {
    title: "Memory",
    figure: (it) => words.bytes(it.memory.resident_bytes),
    aside: (it) => (it.memory.per_connection_bytes === null
      ? "resident"
      : `${words.bytes(it.memory.per_connection_bytes)} a connection`),
    format: words.roundBytes,
    floor: 1024,
    isBytes: true,
    lines: [
      { key: "resident_bytes", label: "server", colour: "hue-0" },
      { key: "tcp_buffer_bytes", label: "kernel’s TCP buffers", colour: "hue-4" },
    ],
    legend: words.bytes,
  },
];

const REFUSALS = {
  title: "Refused and dropped",
  figure: (it) => words.rate(it.refused_per_s + it.dropped_per_s),
  aside: (it) => (it.draining ? "draining" : ""),
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

/** A card on the page: shows samples and rows. */
class Card {
  #card;
  #figure = element("p", "figure", words.NONE);
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
    head.append(this.#figure, this.#aside);
    const legend = element("div", "legend");
    const list = element("dl", "");
    // Where there is one line, the figure says what it is.
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
    this.#picture.setAttribute("aria-label", `${card.title}: nothing yet`);
    place.prepend(element("h2", "", card.title), head, this.#picture, legend,
      this.#table());
    this.#chart = new Chart(this.#picture, { ...card, onPoint: (row) => this.#point(row) });
  }

  show(sample, rows) {
    this.#figure.textContent = this.#card.figure(sample);
    this.#aside.textContent = this.#card.aside(sample);
    this.#sample = sample;
    this.#last = rows.at(-1) ?? null;
    this.#chart.show(rows);
    this.#read();
    this.#rows = rows;
    this.#showTable();
  }

  /** What the chart shows, for those who cannot point at it: a row a minute, made while open. */
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

  /** Says in words what the chart shows. */
  describe(rows) {
    const { title, lines, legend } = this.#card;
    const told = lines.map(({ key, label }) => {
      const values = rows.map((row) => row[key]).filter((value) => value != null);
      if (values.length === 0) return `${label}: nothing`;
      const [least, most] = [Math.min(...values), Math.max(...values)];
      return `${label}: now ${legend(values.at(-1))}, from ${legend(least)} to ${legend(most)}`;
    });
    const label = `${title}, the last 15 minutes. ${told.join("; ")}`;
    this.#picture.setAttribute("aria-label", label);
  }

  #point(row) {
    this.#pointed = row;
    this.#read();
  }

  /** Under the chart stands what is under the pointer, or what is now. */
  #read() {
    const row = this.#pointed ?? this.#last;
    if (!row) return;
    for (const [key, reading] of this.#readings) {
      reading.textContent = this.#card.legend(row[key] ?? undefined);
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

/* What is known. */

let rows = [];
let newest = null;
/** When the newest sample came, by this page's clock. */
let takenAt = 0;
/** Samples of the last minute, for what has changed since. */
let minute = [];

/** What the charts draw of a sample, as the server's history has it. */
function rowOf(it) {
  return {
    time_ms: it.time_ms,
    websocket: it.connections.websocket,
    sse: it.connections.sse,
    stream: it.connections.stream,
    poll: it.connections.poll,
    control: it.connections.control,
    accepted_per_s: it.accepted.per_s,
    messages_in_per_s: it.messages_in.per_s,
    deliveries_per_s: it.deliveries.per_s,
    latency_p50_ms: it.latency.second.p50_ms,
    latency_p99_ms: it.latency.second.p99_ms,
    http_per_s: it.http.per_s,
    http_mean_ms: it.http.second.mean_ms,
    http_p99_ms: it.http.second.p99_ms,
    cpu_workers: sum(it.cpu.workers),
    cpu_control: it.cpu.control,
    refused_per_s: it.refused_per_s,
    dropped_per_s: it.dropped_per_s,
    resident_bytes: it.memory.resident_bytes,
    tcp_buffer_bytes: it.kernel.tcp_buffer_bytes,
  };
}

/** Takes rows in that may be known already, from before or in between. */
function take(more) {
  const byTime = new Map([...rows, ...more].map((row) => [row.time_ms, row]));
  rows = [...byTime.values()].sort((one, other) => one.time_ms - other.time_ms);
  const oldest = (rows.at(-1)?.time_ms ?? 0) - WINDOW_MS;
  rows = rows.filter((row) => row.time_ms >= oldest);
}

function takeHistory(columns) {
  const names = Object.keys(columns);
  take(columns.time_ms.map((_, nth) => Object.fromEntries(
    names.map((name) => [name, columns[name][nth]]),
  )));
}

function takeSample(sample) {
  if (sample.started_ms !== newest?.started_ms) minute = [];
  newest = sample;
  takenAt = performance.now();
  minute = [...minute, sample].filter((it) => it.time_ms > sample.time_ms - 60_000);
  take([rowOf(sample)]);
}

/** By how much a reason's count has grown within the last minute. */
function grown(table, name) {
  return (newest[table][name] ?? 0) - (minute[0][table][name] ?? 0);
}

/* What is shown. */

function newCard() {
  const card = element("section", "card");
  $("cards").append(card);
  return card;
}

// Without this script they would stand there empty.
for (const id of ["link", "facts", "main"]) $(id).hidden = false;

const cards = [
  ...CARDS.map((card) => new Card(card, newCard())),
  new Card(REFUSALS, $("refusals")),
];
let describedAt = -Infinity;
/** Whether the server has been asked for what was before this page: its answer, or none. */
let isHistoryAsked = false;

function show() {
  if (!newest || document.hidden) return;
  for (const card of cards) card.show(newest, rows);
  // A description holds for a while, so it waits for the history instead of leaving it out.
  if (isHistoryAsked && performance.now() - describedAt > DESCRIBE_MS) {
    describedAt = performance.now();
    for (const card of cards) card.describe(rows);
  }
  $("uptime").textContent = words.duration(newest.time_ms - newest.started_ms);
  $("version").textContent = newest.version;
  $("viewers").textContent = words.count(newest.connections.status);
  showWorkers();
  showMemory();
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
  shown.forEach((share, nth) => {
    const [name, bar, value, held] = list.children[nth].children;
    name.textContent = nth;
    bar.firstElementChild.style.width = `${Math.min(100, share * 100)}%`;
    value.textContent = words.percent(share);
    held.textContent = words.count(newest.connections.workers[nth]);
  });
  list.dataset.size = shown.length > 8 ? "many" : "few";
  const rest = workers.length - shown.length;
  $("workers-rest").textContent = rest > 0
    ? `and ${words.count(rest)} more; the busiest of all ${words.percent(Math.max(...workers))}`
    : "";
}

function showMemory() {
  const { memory, kernel } = newest;
  const each = memory.per_connection_bytes;
  showTable("memory", [
    ["resident", words.bytes(memory.resident_bytes)],
    ["private", words.bytes(memory.private_bytes)],
    ["private at the start", words.bytes(memory.private_at_start_bytes)],
    ["messages kept", words.bytes(memory.log_bytes)],
    ["a connection", each === null ? "from 1,000 on" : words.bytes(each)],
    ["kernel: what waits in TCP buffers", words.bytes(kernel.tcp_buffer_bytes)],
    ["kernel: the sockets themselves", kernel.socket_slab_bytes === null
      ? "told to root only" : words.bytes(kernel.socket_slab_bytes)],
    ["kernel: TCP sockets in use", words.count(kernel.tcp_sockets)],
  ]);
}

function reasonRows(table) {
  return words.reasons(table, newest[table]).map((name) => {
    const more = grown(table, name);
    const text = words.reason(table, name);
    return [table === "dropped" ? `message ${text}` : text,
      more > 0 ? `+${words.count(more)}` : "", words.count(newest[table][name])];
  });
}

/** Rows of a heading and values; those that are there already keep their elements. */
function showTable(place, lines) {
  const body = typeof place === "string" ? $(place) : place;
  const all = lines.length > 0 ? lines : [["nothing so far"]];
  body.classList.toggle("none", lines.length === 0);
  while (body.rows.length > all.length) body.deleteRow(-1);
  all.forEach((line, nth) => {
    const row = body.rows[nth] ?? body.insertRow();
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

/* The way to the server. */

let events;
let heardAt = performance.now();

/** Asks for what is not known: all of it, or what came since the newest row. */
async function askForHistory() {
  // The server's clock may be another than this machine's.
  const missing = newest ? Math.ceil((performance.now() - takenAt) / 1000) + 5 : HISTORY_MAX;
  const count = Math.min(HISTORY_MAX, Math.max(5, missing));
  try {
    const response = await fetch(`status.json?history=${count}`, { cache: "no-store" });
    if (response.ok) {
      const { history, ...sample } = await response.json();
      takeHistory(history);
      if (!newest || sample.time_ms > newest.time_ms) takeSample(sample);
      describedAt = -Infinity;
    }
  } catch {
    // The stream says when the server is there again, and asks anew.
  }
  isHistoryAsked = true;
  show();
}

function lost(since) {
  const notice = newest
    ? `The server does not answer since ${words.clock(since)}. What you see is from before; `
      + "this page goes on by itself when the server is back."
    : "The server does not answer. This page goes on by itself when it does.";
  showLink("lost", "lost", notice);
}

function connect() {
  events = new EventSource("status/stream");
  events.onopen = () => {
    heardAt = performance.now();
    askForHistory();
  };
  events.onmessage = ({ data }) => {
    heardAt = performance.now();
    takeSample(JSON.parse(data));
    showLink(newest.draining ? "draining" : "live", newest.draining ? "stopping" : "live",
      newest.draining ? "The server is stopping." : "");
    show();
  };
  events.onerror = () => {
    lost(newest?.time_ms);
    if (events.readyState === EventSource.CLOSED) {
      setTimeout(connect, RETRY_MS + Math.random() * RETRY_MS);
    }
  };
}

setInterval(() => {
  const isLive = $("link").dataset.state === "live";
  if (isLive && performance.now() - heardAt > STALE_MS) {
    showLink("late", "late", "No sample has come for some seconds: the server or the way to it is "
      + "slow.");
  }
}, 1000);

document.addEventListener("visibilitychange", show);
$("address").textContent = location.host;
connect();
