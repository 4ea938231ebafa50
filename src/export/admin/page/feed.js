// Polls /api/history once a second and stores the last 15 minutes of the selected model.

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const MOST_SECONDS = 900;

export class Feed {
  // `changed` is called after every reply and every failure.
  constructor(changed) {
    this.changed = changed;
    this.model = null;
    this.seconds = [];
    this.models = [];
    this.state = null;
    this.next = null;
    // Time of the connection loss on the browser's clock, and its reason.
    this.lost = null;
    this.asking = null;
    this.timer = null;
    // Browsers rarely wake a hidden tab: catch up as soon as it is visible.
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
    window.addEventListener("online", () => this.ask());
  }

  // Selects a model, or all models with null.
  look(model) {
    this.model = model;
    this.next = null;
    this.ask();
  }

  async ask() {
    clearTimeout(this.timer);
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const began = performance.now();
    const impatient = setTimeout(() => asking.abort(new Error(`no answer within ${PATIENCE_MS / 1000} s`)), PATIENCE_MS);
    try {
      const query = new URLSearchParams();
      if (this.model !== null) query.set("model", this.model);
      if (this.next !== null) query.set("after", this.next);
      // A space must be %20, because a plus sign may be part of a model's name.
      const url = `api/history?${query.toString().replaceAll("+", "%20")}`;
      const response = await fetch(url, { signal: asking.signal, cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      const told = await response.json();
      if (asking !== this.asking) return;
      this.take(told);
      this.lost = null;
    } catch (error) {
      // A newer request has started.
      if (asking !== this.asking) return;
      this.lost ??= { since: Date.now() };
      this.lost.reason = error.message;
    } finally {
      clearTimeout(impatient);
      if (asking === this.asking) {
        this.asking = null;
        this.timer = setTimeout(() => this.ask(), Math.max(100, EVERY_MS - (performance.now() - began)));
      }
    }
    this.changed();
  }

  take(told) {
    const { seconds, models, next, whole, ...state } = told;
    this.seconds = whole ? seconds : this.seconds.concat(seconds).slice(-MOST_SECONDS);
    if (models) this.models = models;
    this.next = next;
    this.state = state;
  }
}
