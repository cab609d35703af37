/**
 * The part of the client that a page with a WebSocket may never need: the transports SSE and long
 * poll, and reading history and presence. A file of its own, loaded on first use.
 */

import { PollLink, StreamLink } from "./http-link.js";

export { followPresence } from "./presence.js";
export { change, diagnose, erase, mark, read, replayOlder } from "./read.js";

/** The links by transport. */
export const LINKS = { sse: StreamLink, poll: PollLink };
