/** Events by name. */

export const emit = Symbol("emit");

export class Emitter {
  #listeners = new Map();

  on(name, listener) {
    if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
    this.#listeners.get(name).add(listener);
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
    this.#listeners.get(name)?.delete(listener);
  }

  [emit](name, value) {
    const listeners = [...(this.#listeners.get(name) ?? [])];
    // An error that nothing listens for must not vanish.
    if (name === "error" && listeners.length === 0) console.error("throng:", value);
    for (const listener of listeners) {
      try {
        listener(value);
      } catch (error) {
        // The listener's fault must show, but must not stop the delivery of what follows.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
