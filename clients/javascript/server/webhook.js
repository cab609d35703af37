/** Verification of callouts, which Throng signs by the Standard Webhooks convention. */

import { createHmac, timingSafeEqual } from "node:crypto";

/** How old a request may be, or how far ahead its clock, in seconds. */
const TOLERANCE_S = 300;

/** The request is not one that Throng has signed. */
export class WebhookError extends Error {
  constructor(message) {
    super(message);
    this.name = "WebhookError";
  }
}

function keyOf(secret) {
  const text = String(secret).trim().replace(/^whsec_/, "");
  const key = Buffer.from(text, "base64");
  // `Buffer` skips what is not base64.
  const isWhole = key.toString("base64").replace(/=+$/, "") === text.replace(/=+$/, "");
  if (key.length === 0 || !isWhole) throw new TypeError("a secret is `whsec_` and base64");
  return key;
}

function isEqual(one, other) {
  return one.length === other.length && timingSafeEqual(one, other);
}

function fail(message) {
  throw new WebhookError(message);
}

export class Webhook {
  #keys;

  constructor(secrets) {
    this.#keys = [secrets].flat().map(keyOf);
    if (this.#keys.length === 0) throw new TypeError("give at least one secret");
  }

  verify(body, headers, { nowMs = Date.now() } = {}) {
    const entries = typeof headers.entries === "function" ? headers.entries() : Object.entries(headers);
    const named = new Map(Array.from(entries, ([name, value]) => [name.toLowerCase(), String(value)]));
    const [id, time, signatures] = ["id", "timestamp", "signature"].map((name) =>
      named.get(`webhook-${name}`),
    );
    if (!id || !time || !signatures) fail("the request has no signature");
    if (!/^\d{1,15}$/.test(time)) fail("the time of the request is malformed");
    const ageS = nowMs / 1000 - Number(time);
    if (Math.abs(ageS) > TOLERANCE_S) fail(`the request is ${Math.round(ageS)} s old; is a clock wrong?`);
    const raw = Buffer.from(body);
    const sign = (key) =>
      createHmac("sha256", key).update(`${id}.${time}.`).update(raw).digest("base64");
    const own = this.#keys.map((key) => Buffer.from(`v1,${sign(key)}`));
    const shown = signatures.split(" ").map((text) => Buffer.from(text));
    // Compares all, so that the time says nothing about which of them is right.
    const matches = own.flatMap((mine) => shown.map((other) => isEqual(mine, other)));
    if (!matches.includes(true)) fail("the signature is wrong");
    try {
      return JSON.parse(raw.toString());
    } catch (error) {
      return fail(`the body is no JSON: ${error.message}`);
    }
  }
}
