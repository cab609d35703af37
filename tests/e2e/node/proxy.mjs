// A TCP proxy for browsers, whose connections a test can lose.
import { connect, createServer } from "node:net";

/** A TCP proxy that can lose its connections and come back. */
export class Proxy {
  #pairs = new Set();
  #isCut = false;

  static async to(url) {
    const proxy = new Proxy();
    const { hostname, port } = new URL(url);
    proxy.server = createServer((near) => proxy.#accept(near, hostname, port));
    await new Promise((done) => proxy.server.listen(0, "127.0.0.1", done));
    proxy.url = `http://127.0.0.1:${proxy.server.address().port}`;
    return proxy;
  }

  #accept(near, host, port) {
    near.on("error", () => {});
    if (this.#isCut) return near.resetAndDestroy();
    const far = connect({ host, port });
    far.on("error", () => {});
    const pair = { near, far };
    this.#pairs.add(pair);
    near.pipe(far).pipe(near);
    for (const side of [near, far]) {
      side.on("close", () => {
        near.destroy();
        far.destroy();
        this.#pairs.delete(pair);
      });
    }
  }

  cut() {
    this.#isCut = true;
    for (const { near, far } of this.#pairs) {
      near.resetAndDestroy();
      far.destroy();
    }
  }

  heal() {
    this.#isCut = false;
  }
}
