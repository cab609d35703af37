/** What an application needs on its own servers: publishing, tokens for its users, and callouts. */

export { ThrongError } from "../src/errors.js";
export { Publisher } from "./publisher.js";
export { makeToken } from "./token.js";
export { Webhook, WebhookError } from "./webhook.js";
