/** The nodes that share a stream in NATS, as the node that serves this page knows them. */

import * as words from "./status-words.js";

const TITLES = ["node", "version", "up", "connections", "messages late by", "heard", "state"];

/** Makes an element with a text. */
function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** How this node stands to the stream, in a sentence. */
export function standing(cluster, now) {
  const { open, since_ms, trouble, leader, revocations_age_ms, left_out } = cluster;
  const parts = [];
  if (open) {
    parts.push(leader === null ? "The stream is open" : `The stream is open, led by ${leader}`);
  } else {
    parts.push(`This node has been cut off from NATS for ${words.duration(now - since_ms)}`
      + `${trouble ? ` (${trouble})` : ""}: it accepts no messages, and its data about other nodes is old`);
  }
  if (revocations_age_ms !== null) {
    parts.push(`its revocations are ${words.duration(revocations_age_ms)} old`);
  }
  if (left_out > 0) parts.push(`${words.count(left_out)} more nodes`);
  return parts.join("; ");
}

/** Whole milliseconds below a second. */
function late(ms) {
  return ms < 1000 ? `${words.count(ms)} ms` : words.milliseconds(ms);
}

function cells(node, isThis) {
  const { name, id, version, up_ms, connections, lag_ms, silent_ms, status, suspect } = node;
  return [
    `${name || id}${isThis ? " (this one)" : ""}`,
    version || words.NONE,
    words.duration(up_ms),
    words.count(connections),
    late(lag_ms),
    isThis ? "now" : `${words.duration(silent_ms)} ago`,
    suspect.join("; ") || status || words.NONE,
  ];
}

export class ClusterCard {
  #place;
  #about;
  #body;

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

  show({ cluster, time_ms: now }) {
    this.#place.hidden = !cluster;
    if (!cluster) return;
    this.#about.textContent = standing(cluster, now);
    this.#about.classList.toggle("bad", !cluster.open);
    const rows = cluster.nodes.map((node, at) => {
      const row = document.createElement("tr");
      row.classList.toggle("bad", node.suspect.length > 0);
      cells(node, at === 0).forEach((text, index) => {
        const cell = element(index === 0 ? "th" : "td", text);
        if (index === 0) cell.scope = "row";
        row.append(cell);
      });
      return row;
    });
    this.#body.replaceChildren(...rows);
  }
}
