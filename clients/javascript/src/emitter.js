/** Events by name. */

import { checkWord } from "./options.js";

export const emit = Symbol("emit");
/** Whether anybody listens to an event. */
export const hears = Symbol("hears");

/** The promises that listeners return, while somebody waits for them. */
let promises;

/** Runs `work`. Returns the promises of the listeners that it calls; none of them rejects. */
export function promisesOf(work) {
  const outer = promises;
  promises = [];
  try {
    work();
    return promises;
  } finally {
    promises = outer;
  }
}

/** Reports the error of a listener, but continues with what is left to do. */
function report(error) {
  queueMicrotask(() => {
    throw error;
  });
}

export class Emitter {
  #listeners = {};

  /** `names` are the events that there are. */
  constructor(names) {
    for (const name of names) this.#listeners[name] = new Set();
  }

  on(name, listener) {
    checkWord(name, Object.keys(this.#listeners), "there is no event");
    this.#listeners[name].add(listener);
    return () => this.off(name, listener);
  }

  once(name, listener) {
    const off = this.on(name, (value) => {
      off();
      listener(value);
    });
    return off;
  }

  off(name, listener) {
    this.#listeners[name]?.delete(listener);
  }

  [hears](name) {
    return this.#listeners[name].size > 0;
  }

  [emit](name, value) {
    const listeners = [...this.#listeners[name]];
    // An error without a listener must not be lost.
    if (name === "error" && listeners.length === 0) console.error("throng:", value);
    for (const listener of listeners) {
      try {
        const result = listener(value);
        if (promises && typeof result?.then === "function") promises.push(result.then(() => {}, report));
      } catch (error) {
        report(error);
      }
    }
  }
}
