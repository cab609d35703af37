/**
 * A bounded queue of messages that are published in the background, in order.
 *
 * Invariant: each message that was taken is counted once more, as published or as failed, and a
 * failure is told.
 */

import { ThrongError } from "../src/errors.js";

export class Queue {
  #max;
  #partMax;
  #onError;
  #publish;
  #waiting = [];
  /** The messages on their way. */
  #sending = 0;
  #isRunning = false;
  /** The calls of `flush` that wait, each for so many messages. */
  #flushes = [];
  #isClosed = false;
  #published = 0;
  #failed = 0;
  #refused = 0;

  /** `publish` sends at most `partMax` lines; each has its result then. */
  constructor(max, partMax, onError, publish) {
    this.#max = max;
    this.#partMax = partMax;
    this.#onError = onError;
    this.#publish = publish;
  }

  get counts() {
    return {
      queued: this.#waiting.length + this.#sending,
      published: this.#published,
      failed: this.#failed,
      refused: this.#refused,
    };
  }

  add(line) {
    const { queued } = this.counts;
    const isFull = queued >= this.#max;
    if (this.#isClosed || isFull) {
      this.#refused += 1;
      const full = `${queued} messages wait to be published`;
      throw this.#isClosed
        ? new ThrongError("closed", "the publisher is closed")
        : new ThrongError("queue_full", full);
    }
    this.#waiting.push(line);
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#run();
  }

  /** Resolves once all that were added until now are published or have failed. */
  flush() {
    const { queued, published, failed } = this.counts;
    const until = queued + published + failed;
    return new Promise((resolve) => {
      this.#flushes.push({ until, resolve });
      this.#tell();
    });
  }

  close() {
    this.#isClosed = true;
    return this.flush();
  }

  async #run() {
    // Messages of one turn of the event loop travel together.
    await undefined;
    while (this.#waiting.length > 0) {
      const lines = this.#waiting.splice(0, this.#partMax);
      this.#sending = lines.length;
      await this.#publish(lines);
      this.#sending = 0;
      for (const { result } of lines) this.#count(result);
      this.#tell();
    }
    this.#isRunning = false;
  }

  /** Ends the flushes that have all they wait for. */
  #tell() {
    const done = this.#published + this.#failed;
    for (const { resolve } of this.#flushes.filter(({ until }) => until <= done)) resolve();
    this.#flushes = this.#flushes.filter(({ until }) => until > done);
  }

  #count(result) {
    if (!(result instanceof ThrongError)) {
      this.#published += 1;
      return;
    }
    this.#failed += 1;
    try {
      this.#onError(result);
    } catch (error) {
      queueMicrotask(() => {
        throw error;
      });
    }
  }
}
