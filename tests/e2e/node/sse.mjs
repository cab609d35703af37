// A Node program with the `eventsource` package: prints one JSON line per event.
// Usage: node sse.mjs URL
import { EventSource } from "eventsource";

const print = (line) => console.log(JSON.stringify(line));
const source = new EventSource(process.argv[2]);
source.onopen = () => print({ event: "open" });
source.onerror = (event) => print({ event: "error", code: event.code ?? null });
for (const name of ["message", "binary", "resumed", "welcome", "gap"]) {
  source.addEventListener(name, (event) =>
    print({ event: name, id: event.lastEventId, data: event.data }),
  );
}
