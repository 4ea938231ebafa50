// Polls the admin port once a second: the last 15 minutes of the selected model, the models of one moment, the last
// requests, the engine's own figures, and the sessions.

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const MOST_SECONDS = 900;
const MOST_REQUESTS = 500;
const MOST_SAMPLES = 180;

export class Feed {
  // `changed` is called after every reply and every failure.
  constructor(changed) {
    this.changed = changed;
    this.model = null;
    // End of the window of `byModel` in ms since 1970; null is now.
    this.until = null;
    this.seconds = [];
    this.models = [];
    // Seconds with the figures of each model.
    this.byModel = [];
    // Latest first.
    this.requests = [];
    this.state = null;
    // The last reply of /api/engine, with all samples.
    this.engine = { url: null, samples: [] };
    [this.next, this.nextRequests] = [null, null];
    // Time of the connection loss on the browser's clock, and its reason.
    this.lost = null;
    this.request = null;
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
    this.request?.abort();
    const request = (this.request = new AbortController());
    const began = performance.now();
    const impatient = setTimeout(() => request.abort(new Error(`no answer within ${PATIENCE_MS / 1000} s`)), PATIENCE_MS);
    const get = async (path, query) => {
      const given = Object.entries(query).filter(([, value]) => value !== null);
      // A space must be %20, because a plus sign may be part of a model's name.
      const url = `${path}?${new URLSearchParams(given).toString().replaceAll("+", "%20")}`;
      const response = await fetch(url, { signal: request.signal, cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      return response.json();
    };
    try {
      const answers = await Promise.all([
        get("api/history", { model: this.model, after: this.next }),
        get("api/history", { by_model: true, seconds: 10, until: this.until }),
        get("api/requests", { after: this.nextRequests }),
        get("api/engine", { after: this.engine.samples.at(-1)?.unix_ms ?? null }),
        get("api/state", {}),
      ]);
      if (request !== this.request) return;
      this.take(...answers);
      this.lost = null;
    } catch (error) {
      // A newer request has started.
      if (request !== this.request) return;
      this.lost ??= { since: Date.now() };
      this.lost.reason = error.message;
    } finally {
      clearTimeout(impatient);
      if (request === this.request) {
        this.request = null;
        this.timer = setTimeout(() => this.ask(), Math.max(100, EVERY_MS - (performance.now() - began)));
      }
    }
    this.changed();
  }

  take({ seconds, models, next, whole, ...state }, { seconds: byModel }, recent, engine, { sessions }) {
    this.seconds = whole ? seconds : this.seconds.concat(seconds).slice(-MOST_SECONDS);
    if (models) this.models = models;
    this.next = next;
    this.state = state;
    this.byModel = byModel;
    this.sessions = sessions;
    this.engine = { ...engine, samples: this.engine.samples.concat(engine.samples).slice(-MOST_SAMPLES) };
    this.nextRequests = recent.next;
    // The position of a request among all of the process identifies it.
    const [run, added] = recent.next.split("-");
    recent.requests.forEach((request, at) => (request.key = `${run}-${added - at}`));
    this.requests = (recent.whole ? recent.requests : recent.requests.concat(this.requests)).slice(0, MOST_REQUESTS);
  }
}
