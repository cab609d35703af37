/** Who follows a channel, where the client gets no presence events: read from time to time. */

import { delay, isTemporary } from "./http.js";
import { read } from "./read.js";

/** Time between two reads. */
const PRESENCE_MS = 15_000;

/** Those of `users` that are not among `others`. */
const without = (users, others) => users.filter((user) => !others.includes(user));

/**
 * Reads who follows the channel of `cursor` until the signal is aborted, the channel is left, or the
 * server refuses. A page that nobody sees reads nothing.
 */
export async function followPresence(client, cursor, signal) {
  const { connection } = cursor;
  const isOver = () => signal.aborted || cursor.connection !== connection;
  let before;
  while (!isOver()) {
    try {
      if (!globalThis.document?.hidden) {
        const here = await read(client, cursor.target, "presence", {});
        if (isOver()) return;
        const changes = {};
        // An incomplete list does not show who left.
        if (before && !before.more && !here.more) {
          changes.joined = without(here.users, before.users);
          const now = Date.now();
          changes.left = without(before.users, here.users).map((user) => ({ user, last_seen: now }));
        }
        if (JSON.stringify(here) !== JSON.stringify(before)) {
          cursor.see({ ...here, time: Date.now(), ...changes });
        }
        before = here;
      }
    } catch (error) {
      if (isOver()) return;
      if (error.status && !isTemporary(error)) {
        const nobody = { ...cursor.target, time: Date.now(), connections: 0, users: [], more: true };
        cursor.see({ ...nobody, error });
        return;
      }
    }
    await delay(PRESENCE_MS, signal);
  }
}
