/**
 * Parses an event stream (SSE) from chunks, which may be split anywhere. `push` returns the events
 * that a chunk completes.
 */
export class EventStreamParser {
  #decoder = new TextDecoder();
  #line = "";
  #endedWithReturn = false;
  #event = "";
  #data = [];
  /** The last `retry:` of the stream, in milliseconds. */
  retryMs;

  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    // A line feed after a carriage return in the previous chunk is part of the same line end.
    if (this.#endedWithReturn && text[0] === "\n") text = text.slice(1);
    if (text !== "") this.#endedWithReturn = text.endsWith("\r");
    else this.#endedWithReturn = false;
    const lines = (this.#line + text).split(/\r\n|\r|\n/);
    this.#line = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line !== "") this.#field(line);
      else if (this.#data.length > 0 || this.#event !== "") this.#finish(events);
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
  }

  #finish(events) {
    if (this.#data.length > 0) {
      events.push({ event: this.#event || "message", data: this.#data.join("\n") });
    }
    this.#event = "";
    this.#data = [];
  }
}
