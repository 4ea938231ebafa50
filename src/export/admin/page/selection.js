// The selected model and SLO. The address has them, so that a reload or a link shows the same.

import { byId } from "./dom.js";

export class Selection {
  // `changed` is called with "model" or "slo".
  constructor(changed) {
    this.inputs = { model: byId("model"), slo: byId("slo") };
    this.none = { model: "All models", slo: "All SLOs" };
    this.names = { model: null, slo: null };
    this.changed = changed;
    this.model = null;
    this.slo = null;
    for (const pair of location.hash.slice(1).split("&")) {
      const [key, value] = pair.split("=");
      try {
        if (key in this.inputs && value) this[key] = decodeURIComponent(value);
      } catch {}
    }
    for (const [key, input] of Object.entries(this.inputs)) {
      // The prefix keeps names apart from the value for all.
      input.addEventListener("change", () => this.set(key, input.value === "all" ? null : input.value.slice(1)));
    }
  }

  // Selects a model.
  choose(name) {
    this.set("model", name);
    this.names.model = null;
    this.inputs.model.focus();
  }

  set(key, name) {
    this[key] = name;
    const chosen = Object.keys(this.inputs).filter((key) => this[key] !== null);
    const hash = chosen.map((key) => `${key}=${encodeURIComponent(this[key])}`).join("&");
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
    this.changed(key);
  }

  // Fills both lists with what there is.
  offer(models, slos) {
    for (const [key, known] of [["model", models], ["slo", slos]]) {
      const names = [...known];
      // The selected one stays in the list even after long inactivity.
      if (this[key] !== null && !names.includes(this[key])) names.push(this[key]);
      const shown = JSON.stringify(names);
      if (shown === this.names[key]) continue;
      this.names[key] = shown;
      const option = (text, value) => Object.assign(document.createElement("option"), { textContent: text, value });
      this.inputs[key].replaceChildren(option(this.none[key], "all"), ...names.map((name) => option(name, `=${name}`)));
      this.inputs[key].value = this[key] === null ? "all" : `=${this[key]}`;
    }
    byId("slo-choice").hidden = slos.length === 0;
  }
}
