// The live page in a real browser, with real requests behind it; then the pages of reports.
//
//     node tests/browser/check.mjs PROGRAM [FOLDER [PART OF A CHECK'S NAME]]
//
// Each check waits for what it wants to see; FOLDER gets pictures of four sizes, light and dark. tests/browser/run calls it.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";

import { checks as liveChecks } from "./live.mjs";
import { checks as reportChecks } from "./reports.mjs";
import * as stage from "./stage.mjs";

const HOSTILE = '<img src=x onerror="document.title=1">&=+ü';
const SIZES = { phone: [360, 800], "large-phone": [375, 812], tablet: [820, 1180], desktop: [1440, 900] };
const PATIENCE_MS = 20_000;

const [program, folder, only = ""] = process.argv.slice(2);
const wrong = [];

// A page of its own, whose every fault is noted.
async function visit(browser, admin, { size = SIZES.desktop, scheme = "light", path = "/", ...others } = {}) {
  const [width, height] = size;
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, ...others });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (message) => {
    const expected = page.mayFail && message.text().startsWith("Failed to load resource");
    if (["error", "warning"].includes(message.type()) && !expected) wrong.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (new URL(request.url()).host !== admin) wrong.push(`request to ${request.url()}`);
  });
  await page.goto(`http://${admin}${path}`);
  await page.waitForFunction(() => Number(document.body.dataset.seconds) > 0);
  return page;
}

const until = (page, what, argument) => page.waitForFunction(what, argument, { polling: 100 });

// The cells of a table's row, by its heading.
const cells = (page, table, row) =>
  page.locator(`#${table} tbody tr`, { has: page.locator("th", { hasText: row }) }).first().locator("td").allTextContents();

// A number of the page: `1,234`, `98.5 %`, `12.3 ▲, over a limit`.
const value = (text) => Number(text.match(/[\d,.]*\d/)[0].replaceAll(",", ""));

const checks = {
  async "a quarter of an hour with little traffic is drawn without stripes"() {
    const { averaged, secondsOfMark, secondsOfPoint } = await import("../../src/export/admin/page/figures.js");
    // A request every eight seconds: marks of 30 s touch one another. With traffic in every second they are as narrow as
    // can be seen, and a minute is drawn second by second.
    assert.deepEqual([secondsOfMark(900, 112, 600), secondsOfMark(900, 900, 600), secondsOfMark(60, 60, 600)], [30, 5, 1]);
    assert.deepEqual([secondsOfPoint(900), secondsOfPoint(60)], [15, 1]);
    const comb = Array.from({ length: 900 }, (_, at) => (at % 8 === 0 ? 1 : 0));
    const line = averaged(comb, secondsOfPoint(900)).slice(15);
    assert.ok(Math.min(...line) > 0.06 && Math.max(...line) < 0.14, `${Math.min(...line)} ${Math.max(...line)}`);
    assert.deepEqual(averaged([2, 4, null, 0], 2), [2, 3, 2, 0]);
  },

  async "what it shows is what a scrape says"({ browser, admin }) {
    // Nobody asks any more: the counts stand still, and the page catches up with them.
    const scrape = await (await fetch(`http://${admin}/metrics`)).text();
    const sum = (name, label = "") =>
      scrape.split("\n").filter((line) => line.startsWith(`${name}{`) && line.includes(label)).reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
    const page = await visit(browser, admin);
    const ended = sum("streamgauge_stream_terminations_total", 'reason="done"');
    assert.ok(ended > 0);
    await until(page, (ended) => [...document.querySelectorAll("#endings tbody tr")].some((row) => row.cells[0].textContent === "done" && row.cells[2].textContent === String(ended)), ended);
    const failed = sum("streamgauge_stream_terminations_total", 'reason="error_event"');
    assert.equal(value((await cells(page, "endings", "error_event"))[1]), failed);
  },

  async "quantiles and verdicts of the last ten seconds are those that the program has"({ browser, admin, address, model }) {
    const live = await fetch(`http://${admin}/api/live`);
    const events = live.body.pipeThrough(new TextDecoderStream()).getReader();
    // An odd number: the median of an even one may lie at either end of the gap between two buckets.
    const asking = Promise.all([0, 1, 2, 3, 4].map(() => stage.ask(address, model, { tokens: 60 })));
    const page = await visit(browser, admin, { path: `/#model=${encodeURIComponent(model)}` });
    let [told, text] = [null, ""];
    await asking;
    // The long window begins with the first reader; here it has all of these requests.
    while (told?.requests !== 5) {
      const { value, done } = await events.read();
      assert.ok(!done, text);
      text += value;
      for (const event of text.split("\n\n").slice(0, -1)) told = JSON.parse(event.slice(6)).models[model]?.last_10s ?? told;
      text = text.slice(text.lastIndexOf("\n\n") + 2);
    }
    await events.cancel();
    await until(page, () => document.querySelector("#latency tbody tr")?.cells[4].textContent === "5");
    for (const [name, of] of [["TTFT", told.ttft_ms], ["TPOT", told.tpot_ms]]) {
      const [p50, , p99] = (await cells(page, "latency", name)).map(value);
      // The program's buckets are those of the page, but for the limits of the SLOs.
      assert.ok(Math.abs(p50 / of.p50 - 1) < 0.1, `${name} p50 ${p50} for ${of.p50}`);
      assert.ok(Math.abs(p99 / of.p99 - 1) < 0.1, `${name} p99 ${p99} for ${of.p99}`);
    }
    const [met, , , target] = await cells(page, "slos", "chat");
    const [strict, , , missed] = await cells(page, "slos", "strict");
    assert.deepEqual([met, strict, target, missed], ["100 %", "0 % ▲, below the target of 99 %", "99 %", "99 %"]);
  },

  async "open streams are shown by phase, and for their model alone"({ browser, admin, address, model }) {
    const held = stage.ask(address, model, { tokens: 40, fault: "stall=4s@5" });
    const page = await visit(browser, admin, { path: `/#model=${encodeURIComponent(model)}` });
    const streaming = (count) => until(page, (count) => [...document.querySelectorAll("#traffic tr")].some((row) => row.cells[2]?.textContent === "streaming" && row.cells[3].textContent === count), count);
    await streaming("1");
    await page.locator("#model").selectOption({ label: HOSTILE });
    await streaming("0");
    await held;
  },

  async "a name that is a script is text"({ browser, admin }) {
    const page = await visit(browser, admin);
    await until(page, (name) => [...document.querySelectorAll("#model option")].some((option) => option.textContent === name), HOSTILE);
    await page.locator("#model").selectOption({ label: HOSTILE });
    await until(page, (name) => document.getElementById("figures-of").textContent.startsWith(name), HOSTILE);
    assert.equal(await page.locator("main img, #model img").count(), 0);
    assert.ok((await page.title()).startsWith("Streamgauge"));
    // A reload stays with the model and has the history that was there.
    const before = await page.evaluate(() => Number(document.body.dataset.seconds));
    await page.reload();
    await until(page, (before) => Number(document.body.dataset.seconds) >= before, before);
    assert.equal(await page.locator("#model").evaluate((select) => select.selectedOptions[0].textContent), HOSTILE);
  },

  async "a server that answers 503 is failing, and the page says by whose fault"({ browser, admin, address, model }) {
    const page = await visit(browser, admin);
    const { seconds } = await (await fetch(`http://${admin}/api/history`)).json();
    const before = seconds.reduce((sum, { figures }) => sum + (figures?.responses?.["5xx"] ?? 0), 0);
    for (let i = 0; i < 7; i++) await stage.ask(address, model, { fault: "status=503" });
    await until(page, () => document.getElementById("connection").textContent === "Failing");
    assert.match(await page.locator("#upstream-fails").textContent(), /^Upstream fails: .* answers 5xx/);
    // The page may have asked between two of the requests.
    for (const name of ["5xx", "failed, 5xx: upstream"]) {
      await until(page, ([name, count]) => [...document.querySelectorAll("#responses tbody tr")].some((row) => row.cells[0].textContent === name && row.cells[2].textContent === String(count)), [name, before + 7]);
    }
    assert.equal(await page.locator("#proxy-fails").count(), 0);
    await until(page, () => document.getElementById("connection").textContent === "Live");
    assert.equal(await page.locator("#upstream-fails").count(), 0);
  },

  async "simulated data says so"({ browser, admin }) {
    const page = await visit(browser, admin);
    assert.match(await page.locator("#simulated").textContent(), /^Simulated: /);
  },

  async "everything can be reached and used with the keyboard"({ browser, admin }) {
    const page = await visit(browser, admin);
    const order = [];
    for (let i = 0; i < 60; i++) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => {
        const { activeElement: at } = document;
        if (at === document.body) return null;
        const name = at.id || (at.closest("table") ? `a name in ${at.closest("table").id}` : at.textContent && !at.classList.contains("scroll") ? at.textContent : at.getAttribute("aria-labelledby"));
        return { name, outline: getComputedStyle(at).outlineStyle };
      });
      if (!at) break;
      assert.notEqual(at.outline, "none", `${at.name} shows that it has the focus`);
      if (order.at(-1) !== at.name) order.push(at.name);
    }
    const expected = ["Skip to the figures", "model", "slo", "range", "zoom-in", "zoom-out", "moment", "models-title", "a name in models",
      "find", "of-route", "of-outcome", "hold", "requests-title", "a name in requests", "Settings in force, without secrets", "metrics", "readiness", "the last requests"];
    // Models that were not active in the last ten seconds have no row.
    assert.deepEqual(order, expected.filter((name) => name !== "a name in models" || order.includes(name)));
    await page.locator("#moment").focus();
    for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowLeft");
    await until(page, () => /, [0-9]+ s ago$/.test(document.getElementById("moment").getAttribute("aria-valuetext")));
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await until(page, () => document.getElementById("moment-text").textContent === "now");
  },

  async "a screen reader finds landmarks, headings, tables, and is told of changes only"({ browser, admin }) {
    const page = await visit(browser, admin);
    const found = await page.evaluate(() => ({
      landmarks: ["header", "main", "footer"].map((name) => document.querySelectorAll(`body > ${name}`).length),
      headings: [...document.querySelectorAll("h1, h2, h3")].map((heading) => heading.tagName).join(" "),
      captions: [...document.querySelectorAll("table")].every((table) => table.caption && table.querySelector("thead th[scope=col]")),
      charts: [...document.querySelectorAll(".plot")].every((plot) => plot.getAttribute("role") === "img" && plot.getAttribute("aria-label")),
      live: [...document.querySelectorAll("[aria-live], [role=status], [role=alert]")].map((node) => node.id),
      lang: document.documentElement.lang,
    }));
    assert.deepEqual(found.landmarks, [1, 1, 1]);
    assert.match(found.headings, /^H1 H2 H2( H3){10} H2 H2 H2 H3 H2$/);
    assert.ok(found.captions && found.charts && found.lang === "en");
    assert.deepEqual(found.live, ["banners"]);
    const told = await page.evaluate(async () => {
      let told = 0;
      new MutationObserver((changes) => (told += changes.length)).observe(document.getElementById("banners"), { childList: true, subtree: true, characterData: true });
      const before = document.getElementById("figures-of").textContent;
      while (document.getElementById("figures-of").textContent === before) await new Promise((resolve) => setTimeout(resolve, 50));
      return told;
    });
    assert.equal(told, 0);
  },

  async "every size can be read, by day and by night"({ browser, admin }) {
    for (const [name, size] of Object.entries(SIZES)) {
      for (const scheme of ["light", "dark"]) {
        const page = await visit(browser, admin, { size, scheme });
        await until(page, () => document.querySelectorAll("#latency tbody tr").length === 3);
        await page.locator("#requests tbody button").first().click();
        const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth, getComputedStyle(document.body).backgroundColor]);
        assert.ok(wide[0] <= wide[1], `${name}: ${wide[0]} > ${wide[1]}`);
        const light = value(wide[2].match(/\d+/)[0]) > 128;
        assert.equal(light, scheme === "light", `${name} ${scheme}: ${wide[2]}`);
        const charts = await page.locator(".plot canvas").evaluateAll((all) => all.filter((one) => one.clientWidth > 150).length);
        assert.equal(charts, 10);
        if (folder) await page.screenshot({ path: `${folder}/${name}-${scheme}.png`, fullPage: true });
        await page.context().close();
      }
    }
  },

  async "a tab that was hidden catches up"({ browser, admin }) {
    const page = await visit(browser, admin);
    const show = (hidden) => page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    // As a browser does: nothing comes through while it is hidden.
    await page.route("**/api/history*", (route) => new Promise(() => {}));
    await show(true);
    const before = await page.evaluate(() => Number(document.body.dataset.seconds));
    const at = async () => (await (await fetch(`http://${admin}/api/history`)).json()).seconds.length;
    while ((await at()) < before + 3) await new Promise((resolve) => setTimeout(resolve, 200));
    await page.unroute("**/api/history*");
    await show(false);
    await until(page, (least) => Number(document.body.dataset.seconds) >= least, before + 3);
  },

  async "an upstream that is down is told, with the reason, and so is its return"({ browser, admin, address, model, upstream }, scene) {
    const page = await visit(browser, admin);
    assert.equal(await page.locator("#upstream-down").count(), 0);
    await stage.stop(upstream);
    // The proxy learns of it when it wants to connect.
    await stage.ask(address, model);
    await page.waitForSelector("#upstream-down");
    assert.match(await page.locator("#upstream-down").textContent(), /^Upstream down since [\d:]{8}: cannot connect to 127\.0\.0\.1:\d+: Connection refused/);
    if (folder) await page.screenshot({ path: `${folder}/desktop-upstream-down.png` });
    scene.upstream = await stage.simulator(program, [model, HOSTILE], upstream.address);
    await page.waitForSelector("#upstream-down", { state: "detached" });
  },

  async "a proxy that is gone is told, and the page goes on with the next one"({ browser, admin, proxy, upstream }, scene) {
    const page = await visit(browser, admin);
    page.mayFail = true;
    await stage.stop(proxy);
    await page.waitForSelector("#disconnected");
    assert.match(await page.locator("#disconnected").textContent(), /^Disconnected since [\d:]{8}: /);
    assert.equal(await page.locator("#connection").textContent(), "Disconnected");
    assert.match(await page.title(), /^Disconnected: /);
    scene.proxy = await stage.proxy(program, upstream.address, admin);
    await page.waitForSelector("#disconnected", { state: "detached" });
    assert.equal(await page.locator("#connection").textContent(), "Live");
  },
};

async function main() {
  if (!program) throw new Error("usage: node tests/browser/check.mjs PROGRAM [FOLDER [PART OF A CHECK'S NAME]]");
  if (folder) await mkdir(folder, { recursive: true });
  const model = "sim-chat";
  const upstream = await stage.simulator(program, [model, HOSTILE]);
  const proxy = await stage.proxy(program, upstream.address);
  const scene = { program, wrong, upstream, proxy, model, other: HOSTILE, admin: proxy.admin, address: proxy.address, browser: await stage.open() };
  // What was before the page is opened.
  const asked = [0, 1, 2, 3, 4, 5].map((i) => stage.ask(proxy.address, i % 3 ? model : HOSTILE, { fault: i === 1 ? "error@5" : "" }));
  await Promise.all(asked);
  let failed = 0;
  for (const [name, check] of Object.entries({ ...liveChecks(visit), ...checks, ...reportChecks })) {
    if (!name.includes(only)) continue;
    const began = performance.now();
    wrong.length = 0;
    let outcome = "ok";
    try {
      await check(scene, scene);
      assert.deepEqual(wrong, []);
    } catch (error) {
      failed += 1;
      outcome = `FAILED: ${[...new Set(wrong), error.stack].join("\n")}`;
    } finally {
      await Promise.all(scene.browser.contexts().map((context) => context.close()));
    }
    process.stderr.write(`page: ${name}: ${outcome} (${((performance.now() - began) / 1000).toFixed(1)} s)\n`);
  }
  await scene.browser.close();
  return failed;
}

try {
  process.exitCode = (await main()) ? 1 : 0;
} finally {
  await stage.stopAll();
}
process.exit();
