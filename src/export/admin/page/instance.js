// Which instance this is, and its settings.

import { byId, clock, element } from "./dom.js";

const day = new Intl.DateTimeFormat("sv", { dateStyle: "short" });

export class Instance {
  constructor() {
    this.list = byId("instance");
    this.settings = byId("settings");
    this.settings.addEventListener("toggle", () => this.settings.open && this.load());
  }

  update(state) {
    const started = state.started_unix_ms;
    const facts = [
      ...Object.entries(state.instance),
      ["upstream", state.upstream.url ?? "the original destinations"],
      ["version", state.version],
      ["started", `${day.format(started)} ${clock(started)}`],
      ["settings", state.config_digest ? `digest ${state.config_digest}` : "of the command line"],
    ];
    const key = JSON.stringify(facts);
    if (this.key === key) return;
    // Settings that were loaded again are shown again.
    if (this.key && this.settings.open) this.load();
    this.key = key;
    this.list.replaceChildren();
    for (const [name, text] of facts) {
      element("dt", this.list, name);
      element("dd", this.list, text);
    }
  }

  async load() {
    const place = this.settings.querySelector("pre");
    try {
      const response = await fetch("config", { cache: "no-store" });
      if (response.status === 404) place.textContent = "A run has no settings: its run.json has its flags.";
      else if (!response.ok) throw new Error(`status ${response.status}`);
      else place.textContent = await response.text();
    } catch (error) {
      place.textContent = `The settings cannot be read: ${error.message}. Open this again.`;
    }
  }
}
