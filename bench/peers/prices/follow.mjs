// Follows all channels with the library that a server's project offers, and keeps the age of each message when it is
// handled. For pages and for Node, which pass the library.

export const CHANNELS = Array.from({ length: 200 }, (_, number) => `prices/${number}`);

/** Milliseconds since 1970, to a tenth: the clock of all processes on this machine. */
export const now = () => performance.timeOrigin + performance.now();

/**
 * Follows the channels. Calls `handle(channel, data)` for each message, `gap()` where the library tells of a gap, or where it
 * subscribes again without asking for what it has missed, and `skip(count)` where it tells of messages that were skipped for newer
 * ones; resolves when all are subscribed.
 */
const FOLLOW = {
  throng(url, { Throng, WebSocket }, handle, gap, skip) {
    const throng = new Throng(url, WebSocket ? { WebSocket } : {});
    const follow = (channel) => new Promise((resolve) => {
      const subscription = throng.subscribe(channel, ({ data }) => handle(channel, data));
      subscription.on("gap", gap);
      subscription.on("conflated", ({ count }) => skip(count));
      subscription.once("subscribed", resolve);
    });
    return Promise.all(CHANNELS.map(follow));
  },
  centrifugo(url, { Centrifuge, WebSocket }, handle, gap) {
    const options = WebSocket ? { websocket: WebSocket } : {};
    const centrifuge = new Centrifuge(`${url.replace("http", "ws")}/connection/websocket`, options);
    centrifuge.connect();
    const follow = (channel) => new Promise((resolve) => {
      const subscription = centrifuge.newSubscription(channel);
      subscription.on("publication", ({ data }) => handle(channel, data));
      subscription.once("subscribed", () => {
        resolve();
        subscription.on("subscribed", gap);
      });
      subscription.subscribe();
    });
    return Promise.all(CHANNELS.map(follow));
  },
};

export class Reader {
  /** Times and ages of all messages, in the order in which they were handled. */
  #times = [];
  #ages = [];
  /** The time of the newest message of each channel: they do not come in one order. */
  #newest = new Map(CHANNELS.map((channel) => [channel, now()]));
  #gaps = 0;
  #skipped = 0;

  follow(library, url, parts) {
    const handle = (channel, { at }) => {
      const time = now();
      this.#times.push(time);
      this.#ages.push(time - at);
      this.#newest.set(channel, at);
    };
    const skip = (count) => { this.#skipped += count; };
    return FOLLOW[library](url, parts, handle, () => { this.#gaps += 1; }, skip);
  }

  /** What came since a time. `counts(time)` says which messages count for the ages; all if absent. */
  summary(since, counts = () => true) {
    const taken = this.#ages.filter((_, index) => this.#times[index] >= since && counts(this.#times[index]));
    const ages = taken.sort((one, other) => one - other);
    const at = (share) => ages[Math.min(ages.length - 1, Math.floor(share * ages.length))] ?? null;
    const handled = this.#times.filter((time) => time >= since).length;
    return {
      rate: handled / ((now() - since) / 1000),
      p50_ms: at(0.5),
      p99_ms: at(0.99),
      max_ms: at(1),
      behind_ms: now() - Math.min(...this.#newest.values()),
      gaps: this.#gaps,
      skipped: this.#skipped,
    };
  }
}
