/**
 * The connections that are behind: their clients do not read what the server sends. The list is
 * fetched every few seconds while a sample says that there are any.
 */

import * as words from "./status-words.js";

const INTERVAL_MS = 3_000;
const SHOWN = 20;

const TITLES = ["connection", "behind", "messages", "waits", "in kernel", "user", "address", "channels"];

/** Makes an element with a text. */
function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** The first channels and inboxes of a connection, and how many more it follows. */
function followed({ channels, inboxes, subscriptions }) {
  const names = [...channels, ...inboxes.map((inbox) => `inbox of ${inbox}`)];
  const more = subscriptions - names.length;
  return names.join(", ") + (more > 0 ? ` and ${words.count(more)} more` : "");
}

function cells(connection, now) {
  return [
    connection.connection,
    words.duration(now - connection.behind_since),
    words.count(connection.messages),
    words.bytes(connection.bytes),
    words.bytes(connection.kernel_bytes),
    connection.user ?? words.NONE,
    (connection.address ?? words.NONE) + (connection.proxy ? ` via ${connection.proxy}` : ""),
    followed(connection),
  ];
}

export class BehindCard {
  #place;
  #about;
  #body;
  #askedAt = -Infinity;

  /** `place` is a hidden section with a paragraph and a table. */
  constructor(place) {
    this.#place = place;
    this.#about = place.querySelector(".about");
    const table = place.querySelector("table");
    const head = table.createTHead().insertRow();
    for (const title of TITLES) {
      const cell = element("th", title);
      cell.scope = "col";
      head.append(cell);
    }
    this.#body = table.createTBody();
  }

  /** Shows the list if this sample says that a connection is behind. */
  show(sample) {
    const count = sample.connections.behind ?? 0;
    this.#place.hidden = count === 0;
    if (count === 0) {
      this.#askedAt = -Infinity;
      this.#body.replaceChildren();
    } else if (performance.now() - this.#askedAt > INTERVAL_MS) {
      this.#askedAt = performance.now();
      this.#fetch(sample.time_ms);
    }
  }

  async #fetch(now) {
    const url = `connections?sort=behind&limit=${SHOWN}`;
    const response = await fetch(url, { cache: "no-store" }).catch(() => null);
    // The next sample asks again.
    if (!response?.ok) return;
    const { count, connections } = await response.json();
    const shown = count > connections.length ? `; the ${connections.length} with the largest backlog` : "";
    this.#about.textContent = `${words.count(count)} wait for clients that read too slowly${shown}`;
    const rows = connections.map((connection) => {
      const row = document.createElement("tr");
      cells(connection, now).forEach((text, index) => {
        const cell = element(index === 0 ? "th" : "td", text);
        if (index === 0) cell.scope = "row";
        row.append(cell);
      });
      return row;
    });
    this.#body.replaceChildren(...rows);
  }
}
