/** Tokens that an application signs for its users. */

import { createHmac } from "node:crypto";
import { toUser } from "../src/message.js";
import { checkNames } from "../src/options.js";

/** RFC 7518, section 3.2: a secret of the size of the hash. The server refuses shorter ones. */
const SECRET_BYTES_MIN = 32;
const GRANTS = ["subscribe", "publish", "history", "presence", "update"];

const encode = (part) => Buffer.from(JSON.stringify(part)).toString("base64url");

export function makeToken(secret, options = {}) {
  checkNames(options, ["user", ...GRANTS, "expiresInSeconds", "claims"], "makeToken");
  // A file of the secret may end with a line feed, which does not count on the server either.
  const key = Buffer.from(typeof secret === "string" ? secret.replace(/\n$/, "") : secret);
  if (key.length < SECRET_BYTES_MIN) {
    throw new TypeError(`the secret has ${key.length} bytes; HS256 needs ${SECRET_BYTES_MIN}`);
  }
  const { user, expiresInSeconds = 900, claims } = options;
  const grants = {};
  for (const name of GRANTS) {
    const channels = options[name] ?? [];
    if (!Array.isArray(channels)) throw new TypeError(`"${name}" is an array of channels`);
    if (channels.length > 0) grants[name] = channels;
  }
  const iat = Math.floor(Date.now() / 1000);
  const own = { iat, exp: iat + expiresInSeconds, sub: toUser(user), throng: grants, ...claims };
  const signed = `${encode({ alg: "HS256", typ: "JWT" })}.${encode(own)}`;
  return `${signed}.${createHmac("sha256", key).update(signed).digest("base64url")}`;
}
