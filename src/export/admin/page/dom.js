// Helpers that change the document. Text from the network is only set as text. Only changes are written, so that screen
// readers and selections are not disturbed.

export const byId = (id) => document.getElementById(id);

export function element(name, parent, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const time = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const clock = (milliseconds) => time.format(milliseconds);

// Formats three significant digits, or more if the integer part has more.
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 3), useGrouping: value >= 10000 });
}

export const percent = (part, of) => (of > 0 ? `${number((100 * part) / of)} %` : "–");

// A cell that is bad: a triangle for the eye and words for a screen reader, so that color is not needed.
export const bad = (text, why) => ({ text, why });

function setCell(cell, value) {
  const { text, why } = typeof value === "object" ? value : { text: value, why: "" };
  const key = `${text}\n${why}`;
  if (cell.dataset.shown === key) return;
  cell.dataset.shown = key;
  cell.textContent = text;
  cell.classList.toggle("bad", why !== "");
  if (!why) return;
  element("span", cell, " ▲", "mark").setAttribute("aria-hidden", "true");
  cell.title = why;
  element("span", cell, `, ${why}`, "unseen");
}

// Fills a table's body with rows. Each row has a heading, optionally with a second line, and cells; `headings` are the
// indexes of cells that are headings too.
export function fill(table, rows, nothing) {
  const body = table.tBodies[0];
  if (rows.length === 0) {
    if (body.dataset.rows === "none") return;
    body.dataset.rows = "none";
    const cell = element("td", element("tr"), nothing, "none");
    cell.colSpan = table.tHead.rows[0].cells.length;
    body.replaceChildren(cell.parentNode);
    return;
  }
  const shape = JSON.stringify(rows.map(({ name, about }) => [name, about]));
  if (body.dataset.rows !== shape) {
    body.dataset.rows = shape;
    body.replaceChildren(...rows.map(line));
  }
  rows.forEach(({ cells }, at) => cells.forEach((value, column) => setCell(body.rows[at].cells[column + 1], value)));
}

function line({ name, about, cells, headings = [], pressed }) {
  const row = document.createElement("tr");
  const heading = element("th", row);
  heading.scope = "row";
  if (pressed) {
    const button = element("button", heading, name, "name");
    button.type = "button";
    button.addEventListener("click", pressed);
  } else heading.textContent = name;
  if (about) element("small", heading, about);
  cells.forEach((_, at) => {
    const cell = element(headings.includes(at) ? "th" : "td", row);
    if (headings.includes(at)) cell.scope = "row";
  });
  return row;
}
