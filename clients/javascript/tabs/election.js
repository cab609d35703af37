/**
 * Elects one of the tabs with the same name. The browser holds a lock for the one that leads, and gives
 * it to the next one when that tab is closed or crashes.
 */

export class Election {
  #name;
  #lead;
  #resign;
  /** The current request for the lock; undefined after `stop`. */
  #turn;

  /** `lead` is called when this tab is elected, `resign` when it no longer is. */
  constructor(name, lead, resign) {
    this.#name = name;
    this.#lead = lead;
    this.#resign = resign;
  }

  start() {
    if (!this.#turn) this.#request(false);
  }

  stop() {
    const turn = this.#turn;
    this.#turn = undefined;
    turn?.queued.abort();
    if (!turn?.release) return;
    this.#resign();
    turn.release();
  }

  /** Takes the lead from a tab that does not answer. */
  seize() {
    if (!this.#turn || this.#turn.release) return;
    this.#turn.queued.abort();
    this.#request(true);
  }

  async #request(steal) {
    const turn = { queued: new AbortController() };
    this.#turn = turn;
    const hold = () => {
      if (this.#turn !== turn) return undefined;
      return new Promise((resolve) => {
        turn.release = resolve;
        this.#lead();
      });
    };
    const options = steal ? { steal } : { signal: turn.queued.signal };
    // Rejects when withdrawn, or when another tab has seized the lead.
    await navigator.locks.request(this.#name, options, hold).catch(() => {});
    if (this.#turn !== turn) return;
    if (turn.release) this.#resign();
    this.#request(false);
  }
}
