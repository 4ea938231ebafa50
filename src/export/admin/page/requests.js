// The last requests as a table that can be filtered, and one of them as a waterfall.

import { clock, byId, element, number, setText } from "./dom.js";
import { bars, phasesOf, showRequest } from "./waterfall.js";

// More rows would make every redraw slow; a filter finds the others.
const MOST_ROWS = 100;
const FILTERS = ["find", "of-route", "of-outcome"];

// Returns the value of a sorted list at a quantile, by nearest rank.
const rank = (sorted, q) => (sorted.length ? sorted[Math.max(1, Math.ceil(q * sorted.length)) - 1] : null);

export class Requests {
  constructor() {
    this.table = byId("requests");
    this.panel = byId("request");
    [this.find, this.route, this.outcome] = FILTERS.map(byId);
    this.hold = byId("hold");
    // Rows by the request's key.
    this.rows = new Map();
    [this.shown, this.chosen, this.all] = [[], null, []];
    for (const input of [this.find, this.route, this.outcome]) input.addEventListener("input", () => this.draw());
    this.hold.addEventListener("click", () => {
      const held = this.hold.getAttribute("aria-pressed") !== "true";
      this.hold.setAttribute("aria-pressed", String(held));
      if (!held) this.update(this.latest, this.model, this.slo);
    });
    byId("close-request").addEventListener("click", () => this.close());
    this.panel.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    // The table is one stop of the Tab key: arrows move within it.
    this.table.addEventListener("keydown", (event) => {
      const buttons = [...this.table.querySelectorAll("tbody button")];
      const at = buttons.indexOf(document.activeElement);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (at < 0 || to === undefined || !buttons[to]) return;
      event.preventDefault();
      this.stop(buttons[to]);
      buttons[to].focus();
    });
  }

  // Makes a row's button the stop of the Tab key.
  stop(button) {
    for (const other of this.table.querySelectorAll("tbody button")) other.tabIndex = other === button ? 0 : -1;
  }

  close() {
    const button = this.rows.get(this.chosen)?.querySelector("button");
    this.choose(null);
    (button ?? this.find).focus();
  }

  // `requests` are the latest first; `model` and `slo` are selected for the whole page, or null.
  update(requests, model, slo) {
    this.latest = requests;
    const isNewChoice = model !== this.model || slo !== this.slo;
    [this.model, this.slo] = [model, slo];
    if (this.hold.getAttribute("aria-pressed") !== "true") this.all = requests;
    else if (!isNewChoice) return;
    const routes = [...new Set(this.all.map(({ route }) => route).filter(Boolean))].sort();
    const known = JSON.stringify(routes);
    if (this.routes !== known) {
      this.routes = known;
      const chosen = this.route.value;
      if (chosen && !routes.includes(chosen)) routes.push(chosen);
      const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
      this.route.replaceChildren(option("", "All routes"), ...routes.map((route) => option(route, route)));
      this.route.value = chosen;
    }
    this.draw();
  }

  fits(request) {
    const words = this.find.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = [request.response_id, request.trace_id, request.model, request.route, request.status, request.outcome, request.fault].join(" ").toLowerCase();
    const isMissed = this.slo === null ? request.missed_slos.length > 0 : request.missed_slos.includes(this.slo);
    const kinds = { "": true, failed: request.fault !== null, missed: isMissed, good: request.outcome === "success" && !isMissed };
    return (this.model === null || request.model === this.model) && (!this.route.value || request.route === this.route.value) &&
      (kinds[this.outcome.value] ?? true) && words.every((word) => text.includes(word));
  }

  draw() {
    const fitting = this.all.filter((request) => this.fits(request));
    this.shown = fitting.slice(0, MOST_ROWS);
    const longest = Math.max(1, ...this.shown.map(({ duration_ms }) => duration_ms));
    const rows = new Map();
    for (const request of this.shown) {
      const row = this.rows.get(request.key) ?? this.row(request);
      rows.set(request.key, row);
      const place = row.querySelector(".bars");
      if (place.dataset.length !== String(longest)) {
        place.dataset.length = String(longest);
        bars(place, phasesOf(request), longest);
      }
    }
    this.rows = rows;
    const body = this.table.tBodies[0];
    this.place(body, [...rows.values()]);
    if (!body.querySelector("button[tabindex='0']")) this.stop(body.querySelector("button"));
    this.tell(fitting);
    this.choose(this.chosen);
  }

  // A row that moves would lose the focus: only rows that came or went are touched.
  place(body, wanted) {
    const text = this.all.length ? "No request fits the filter." : "No request has ended yet.";
    if (wanted.length === 0 && body.textContent === text) return;
    const kept = new Set(wanted);
    for (const row of [...body.rows]) if (!kept.has(row)) row.remove();
    wanted.forEach((row, at) => body.rows[at] !== row && body.insertBefore(row, body.rows[at] ?? null));
    if (wanted.length > 0) return;
    element("td", element("tr", body), text, "none").colSpan = this.table.tHead.rows[0].cells.length;
  }

  row(request) {
    const row = document.createElement("tr");
    const heading = element("th", row);
    heading.scope = "row";
    const button = element("button", heading, request.response_id ?? request.trace_id?.slice(0, 16) ?? "no id", "name");
    button.type = "button";
    button.setAttribute("aria-controls", "request");
    button.tabIndex = -1;
    button.addEventListener("click", () => {
      this.stop(button);
      this.choose(request.key);
    });
    element("td", row, clock(request.ended_unix_ms));
    element("td", row, request.model ?? "–", "text");
    element("td", row, request.route || "–", "text");
    const isBad = request.fault !== null && request.fault !== "client";
    const status = element("td", row, `${isBad ? "▲ " : ""}${request.status ?? "no status"} ${request.outcome}${request.fault ? `: ${request.fault}` : ""}`, "text");
    status.classList.toggle("bad", isBad);
    const missed = element("td", row, request.missed_slos.length ? `▲ ${request.missed_slos.join(", ")}` : "–", "text");
    missed.classList.toggle("bad", request.missed_slos.length > 0);
    for (const value of [request.ttft_ms, request.tpot_ms, request.duration_ms, request.output_tokens]) element("td", row, number(value));
    const place = element("div", element("td", row, undefined, "fall"), undefined, "bars");
    // The panel has the same as text.
    place.setAttribute("aria-hidden", "true");
    return row;
  }

  tell(fitting) {
    const sorted = (of) => fitting.map(of).filter((value) => value !== null).sort((a, b) => a - b);
    const ttft = sorted(({ ttft_ms }) => ttft_ms);
    const count = (of) => number(fitting.filter(of).length);
    const text = fitting.length === 0 ? "" : `; TTFT p50 ${number(rank(ttft, 0.5))} ms, p99 ${number(rank(ttft, 0.99))} ms; ${count(({ fault }) => fault !== null)} failed; ${count(({ missed_slos }) => missed_slos.length > 0)} missed an SLO`;
    const rows = fitting.length > MOST_ROWS ? `; the latest ${MOST_ROWS} are shown` : "";
    setText(byId("requests-summary"), `${number(fitting.length)} of the last ${number(this.all.length)} requests${text}${rows}.`);
  }

  choose(key) {
    const request = key === null ? null : (this.all.find((request) => request.key === key) ?? this.kept);
    for (const [of, row] of this.rows) row.classList.toggle("chosen", of === key);
    if (key === this.chosen && request === this.kept) return;
    [this.chosen, this.kept] = [key, request];
    showRequest(this.panel, request);
    if (request) this.panel.focus();
  }
}
