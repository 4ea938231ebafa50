// Pages of runs, sweeps, comparisons, histories and plans, from the runs in tests/data: charts, copies of their data, phones, dark screens.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { promisify } from "node:util";

const DATA = "tests/data/runs";
const SIDES = ["before", "after"].map((side) => [1, 2, 3].map((round) => `${DATA}/compare/${side}-${round}`));
const PAGES = {
  run: ["report", `${DATA}/chat`, "--html"],
  sweep: ["report", `${DATA}/sweep`, "--html"],
  comparison: ["compare", "--html", ...SIDES[0], "--", ...SIDES[1]],
  "comparison of sweeps": ["compare", "--html", `${DATA}/sweep`, "--", `${DATA}/sweep`],
  history: ["compare", "--html", "--trend", ...SIDES.flat()],
  plan: ["plan", "--measured", `${DATA}/sweep`, "--traffic", "tests/data/traces/azure/conv2023_first300s.csv", "--html"],
  "reuse of prefixes": ["trace", "reuse", "tests/data/captures/pod-a", "tests/data/captures/pod-b", "--cache-blocks", "400", "--html"],
};
// WCAG 2.2, 1.4.3.
const MIN_CONTRAST = 4.5;
const PATIENCE_MS = 10_000;
// More than any page has.
const MAX_TABS = 400;
// A4 without its margins, in pixels of 1/96 inch.
const PAPER_WIDTH = 718;

// The least contrast of a text to what is behind it, by the page's own colours.
function leastContrast() {
  const rgb = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("h1, h2, h3, p, dt, dd, th, td, button, summary, figcaption")].filter((element) => element.textContent.trim());
  const contrast = (element) => {
    const [light, dark] = [luminance(rgb(getComputedStyle(element).color)), luminance(behind(element))].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  return Math.min(...texts.map(contrast));
}

function allDrawn() {
  const figures = [...document.querySelectorAll("figure")];
  return figures.length > 0 && figures.every((figure) => {
    // The others are samples of lines in the legend.
    const canvas = [...figure.querySelectorAll("canvas")].find((canvas) => canvas.clientWidth > 100);
    return canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0);
  });
}

// Opens a file as a reader does, without a server; `wrong` gets its faults.
async function open(browser, file, wrong, { width = 1_200, scheme = "light" } = {}) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme });
  const page = await context.newPage();
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (message) => wrong.push(`console: ${message.text()}`));
  page.on("request", (request) => {
    if (request.url() !== `file://${file}`) wrong.push(`request to ${request.url()}`);
  });
  await page.goto(`file://${file}`);
  return page;
}

async function check(browser, file, wrong) {
  for (const [width, scheme] of [[1_200, "light"], [1_200, "dark"], [390, "dark"]]) {
    const page = await open(browser, file, wrong, { width, scheme });
    // A chart draws when the page has its size.
    await page.waitForFunction(allDrawn, undefined, { polling: 100, timeout: PATIENCE_MS }).catch(() => assert.fail(`an empty chart at ${width} px, ${scheme}`));
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.equal(overflow, 0, `horizontal scroll at ${width} px`);
    const contrast = await page.evaluate(leastContrast);
    assert.ok(contrast >= MIN_CONTRAST, `contrast ${contrast.toFixed(2)} in ${scheme}`);
  }
  await copiesByKeyboard(await open(browser, file, wrong));
  await prints(await open(browser, file, wrong, { width: PAPER_WIDTH, scheme: "dark" }));
}

// The numbers that each chart draws, row by row, and the names of its rows.
function ownData() {
  const figure = (of) => {
    const columns = JSON.parse(of.querySelector("script.data").textContent);
    const names = [...of.querySelectorAll("tbody th")].map((cell) => cell.textContent);
    return [of.id, columns[0].map((_, row) => [...(names.length ? [names[row] ?? ""] : []), ...columns.map((column) => String(column[row] ?? ""))])];
  };
  return [...document.querySelectorAll("figure")].map(figure);
}

// Walks through the page with the Tab key alone: selects a row of each chart, and copies the data of each.
async function copiesByKeyboard(page) {
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  const [selected, copied] = [new Map(), new Map()];
  for (let presses = 0; presses < MAX_TABS; presses++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const { activeElement: element } = document;
      return { kind: element.className || element.tagName, figure: element.closest("figure")?.id, outline: getComputedStyle(element).outlineStyle };
    });
    if (at.kind === "BODY") break;
    assert.notEqual(at.outline, "none", `the focus is seen on ${at.kind} of ${at.figure}`);
    const figure = page.locator(`#${at.figure}`);
    if (at.kind === "plot") {
      await page.keyboard.press("ArrowRight");
      selected.set(at.figure, await figure.locator(".readout").textContent());
    }
    if (at.kind === "copy") {
      await page.evaluate(() => navigator.clipboard.writeText(""));
      await page.keyboard.press("Enter");
      await figure.locator("button", { hasText: /^Copied$/ }).waitFor({ timeout: PATIENCE_MS });
      copied.set(at.figure, await page.evaluate(() => navigator.clipboard.readText()));
    }
  }
  const own = await page.evaluate(ownData);
  assert.deepEqual([...copied.keys()], own.map(([id]) => id), "the Tab key reaches the copy of every chart, in their order");
  for (const [id, rows] of own) {
    const [head, ...lines] = copied.get(id).replace(/\n$/, "").split("\n").map((line) => line.split("\t"));
    assert.equal(lines.length, rows.length, `rows of ${id}`);
    assert.deepEqual(lines, rows, `values of ${id}`);
    assert.ok(head.every((name) => name) && lines.every((line) => line.length === head.length), `${id}: ${head}`);
    assert.ok(rows.length === 0 || selected.get(id), `an arrow key selects a row of ${id}`);
  }
}

// On paper every section and chart is there, and nothing that a hand could use. The script draws for paper as it hears of it.
async function prints(page) {
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  await page.waitForFunction(allDrawn, undefined, { polling: 100, timeout: PATIENCE_MS }).catch(() => assert.fail("an empty chart on paper"));
  const { hidden, controls, background, overflow } = await page.evaluate(() => {
    const isShown = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility === "visible";
    const name = (element) => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`;
    const all = (selector) => [...document.querySelectorAll(selector)];
    // The tables of a chart's data are folded.
    const content = all("h1, h2, h3, dt, dd, .warning, figure, figure canvas, body > .wide table").filter((element) => !element.closest("li"));
    return {
      hidden: content.filter((element) => !isShown(element)).map(name),
      controls: all("button, summary, details, input, select, .skip, .readout, .mark, footer").filter(isShown).map(name),
      background: getComputedStyle(document.body).backgroundColor,
      overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    };
  });
  assert.deepEqual(hidden, [], "every section is on paper");
  assert.deepEqual(controls, [], "no control is on paper");
  assert.equal(background, "rgb(255, 255, 255)", "paper is white on a dark screen too");
  assert.equal(overflow, 0, "nothing is cut at the edge of the paper");
}

// Charts of one time window share the cursor.
async function pointsAtOneTime({ browser, program, wrong }) {
  await withPage(program, [...PAGES.run, "--slo", "chat: ttft<=200ms e2e<=2s"], async (file) => {
    const page = await open(browser, file, wrong);
    const plot = page.locator("figure", { hasText: "Goodput over time" }).locator(".u-over");
    await plot.hover({ position: { x: 150, y: 50 } });
    const times = await page.evaluate(() => [...document.querySelectorAll("figure[data-x-from] .readout")].map((readout) => readout.textContent.match(/^time ([\d.]+) s, /)?.[1]));
    assert.equal(times.length, 7, "one chart for each figure over time");
    const [first] = times;
    assert.ok(times.every((time) => Math.abs(time - first) <= 2), `within a slice of one another: ${times}`);
  });
}

async function withPage(program, args, use) {
  const folder = await mkdtemp(`${tmpdir()}/streamgauge-page-`);
  try {
    const { stdout } = await promisify(execFile)(program, args, { maxBuffer: 64 << 20 });
    await writeFile(`${folder}/page.html`, stdout);
    await use(`${folder}/page.html`);
  } finally {
    await rm(folder, { recursive: true });
  }
}

const drawn = Object.fromEntries(
  Object.entries(PAGES).map(([name, args]) => [
    `the page of a ${name} draws, fits, contrasts, copies and prints`,
    ({ browser, program, wrong }) => withPage(program, args, (file) => check(browser, file, wrong)),
  ]),
);
export const checks = { ...drawn, "charts over time show one moment": pointsAtOneTime };
