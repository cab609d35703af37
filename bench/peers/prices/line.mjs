// A slow line in front of a server: passes so many bytes a second to each client, and everything from it at once.
import { once } from "node:events";
import { connect, createServer } from "node:net";

/** Less than what arrives at once on a line of 1 Mbit/s may be late by 16 ms. */
const CHUNK_BYTES = 2048;

/** Passes connections on to `url`. Returns the URL of the line. Buffers of the kernel have the system's sizes. */
export async function slowLine(url, bytesPerSecond) {
  const { hostname, port } = new URL(url);
  const line = createServer((client) => {
    client.setNoDelay();
    let freeAt = performance.now();
    const pass = (bytes, buffer) => {
      client.write(Buffer.from(buffer.subarray(0, bytes)));
      freeAt = Math.max(freeAt, performance.now() - 10) + (bytes / bytesPerSecond) * 1000;
      setTimeout(() => server.resume(), freeAt - performance.now());
      return false;
    };
    const onread = { buffer: Buffer.alloc(CHUNK_BYTES), callback: pass };
    const server = connect({ host: hostname, port, noDelay: true, onread });
    client.pipe(server);
    server.on("end", () => client.end());
    for (const [one, other] of [[client, server], [server, client]]) {
      one.on("error", () => other.destroy()).on("close", () => other.destroy());
    }
  });
  await once(line.listen(0, "127.0.0.1"), "listening");
  line.unref();
  return `http://127.0.0.1:${line.address().port}`;
}
