// Asks /api/history once a second and keeps what it got: the last quarter of an hour of the model that is looked at.

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const MOST_SECONDS = 900;

export class Feed {
  // `changed` is called after every answer and every failure.
  constructor(changed) {
    this.changed = changed;
    this.model = null;
    this.seconds = [];
    this.models = [];
    this.state = null;
    this.next = null;
    // When the connection was lost, by this machine's clock, and why.
    this.lost = null;
    this.asking = null;
    this.timer = null;
    // A tab that nobody looks at is hardly ever woken: catch up as soon as somebody does.
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
    window.addEventListener("online", () => this.ask());
  }

  // Looks at a model, or with null at all of them.
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
      // A space as %20: a plus sign is a plus sign in a model's name.
      const url = `api/history?${query.toString().replaceAll("+", "%20")}`;
      const response = await fetch(url, { signal: asking.signal, cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      const told = await response.json();
      if (asking !== this.asking) return;
      this.take(told);
      this.lost = null;
    } catch (error) {
      // Somebody has asked again in the meantime.
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
