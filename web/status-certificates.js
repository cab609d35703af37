/** The certificates of a server that speaks TLS: when they expire, and how their renewal stands. */

import * as words from "./status-words.js";

const TITLES = ["name", "expires in", "next renewal in", "state"];

/** Less than this part of its life is left: it should have been renewed. */
const OVERDUE_PART = 1 / 4;
const OVERDUE_MS = 14 * 86_400_000;

/** Makes an element with a text. */
function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** What is wrong with a certificate, in words; nothing if all is well. */
export function problem({ not_before_ms, not_after_ms, renewal }, now) {
  const parts = [];
  if (not_after_ms === null) parts.push("not obtained yet");
  else if (not_after_ms <= now) parts.push("has expired");
  else {
    const life = not_after_ms - not_before_ms;
    const overdue = Math.min(OVERDUE_MS, life * OVERDUE_PART);
    if (not_after_ms - now < overdue) parts.push("is overdue");
  }
  if (renewal?.failures > 0) {
    const times = renewal.failures === 1 ? "once" : `${words.count(renewal.failures)} times`;
    parts.push(`failed ${times}${renewal.error ? `: ${renewal.error}` : ""}`);
  }
  return parts.join("; ");
}

function cells(certificate, now) {
  const { name, not_after_ms, renewal } = certificate;
  const until = (ms) => (ms === null ? words.NONE : words.duration(ms - now));
  return [
    name,
    until(not_after_ms),
    renewal === null ? "by its files" : until(renewal.next_ms),
    problem(certificate, now) || "good",
  ];
}

export class CertificatesCard {
  #place;
  #about;
  #body;
  #shown = "";

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

  show({ tls, time_ms: now }) {
    this.#place.hidden = !tls;
    if (!tls) return;
    const about = tls.error === null
      ? "Shown to clients now" : `The files have changed and are not used: ${tls.error}`;
    this.#about.textContent = tls.left_out === 0
      ? about : `${about}; and ${words.count(tls.left_out)} that expire later`;
    this.#about.classList.toggle("bad", tls.error !== null);
    const lines = tls.certificates.map((certificate) => cells(certificate, now));
    // Most seconds change nothing: then what a reader has selected stays.
    const shown = JSON.stringify(lines);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const rows = tls.certificates.map((certificate, at) => {
      const row = document.createElement("tr");
      row.classList.toggle("bad", problem(certificate, now) !== "");
      lines[at].forEach((text, index) => {
        const cell = element(index === 0 ? "th" : "td", text);
        if (index === 0) cell.scope = "row";
        row.append(cell);
      });
      return row;
    });
    this.#body.replaceChildren(...rows);
  }
}
