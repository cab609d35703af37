/** Events by name. */

export const emit = Symbol("emit");

export class Emitter {
  #listeners = {};

  on(name, listener) {
    (this.#listeners[name] ??= new Set()).add(listener);
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

  [emit](name, value) {
    const listeners = [...(this.#listeners[name] ?? [])];
    // An error without a listener must not be lost.
    if (name === "error" && listeners.length === 0) console.error("throng:", value);
    for (const listener of listeners) {
      try {
        listener(value);
      } catch (error) {
        // Report the listener's error, but continue with the other listeners.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
