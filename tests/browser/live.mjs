// The live page's own parts: limits and marks, models, the last requests, range and zoom, the instance.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import * as stage from "./stage.mjs";

const json = async (admin, path) => (await fetch(`http://${admin}/api/${path}`)).json();
const until = (page, what, argument) => page.waitForFunction(what, argument, { polling: 100 });
// The last requests, when all that were sent are counted: the proxy counts one a moment after its client has the reply.
async function settledRequests(admin) {
  for (let before = -1; ; ) {
    const { requests, next } = await json(admin, "requests");
    if (next === before) return requests;
    before = next;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

const number = (text) => Number(text.match(/[\d.,]+/)[0].replaceAll(",", ""));
const requestRows = (page) => page.locator("#requests tbody tr:has(button)");

// The ends of the time axis in seconds.
const axis = (page) => page.locator("#chart-ttft .plot").evaluate(({ dataset }) => [Number(dataset.from), Number(dataset.to)]);

export const checks = (visit) => ({
  async "the limit of an SLO is a line at its value, and the filter of SLOs leaves one"({ browser, admin }) {
    const page = await visit(browser, admin);
    const lines = () => page.locator("#chart-ttft .plot").evaluate((plot) => {
      const { height } = plot.querySelector(".u-over").getBoundingClientRect();
      const [low, high] = [plot.dataset.low, plot.dataset.high].map(Number);
      const at = (limit) => (height * Math.log(high / limit)) / Math.log(high / low);
      return [...plot.querySelectorAll(".limit")].map((line) => ({ text: line.textContent, off: Math.abs(parseFloat(line.style.top) - at(line.textContent.match(/≤ (\d+)/)[1])) }));
    });
    await until(page, () => document.querySelectorAll("#chart-ttft .limit").length === 2);
    const drawn = await lines();
    assert.deepEqual(drawn.map(({ text }) => text), ["chat ≤ 2000 ms", "strict ≤ 1 ms"]);
    assert.ok(drawn.every(({ off }) => off < 1), JSON.stringify(drawn));
    assert.equal(await page.locator("#chart-tpot .limit").count(), 0, "no SLO limits the TPOT");
    await page.locator("#slo").selectOption({ label: "chat" });
    await until(page, () => document.querySelectorAll("#chart-ttft .limit").length === 1 && document.querySelectorAll("#slos tbody tr").length === 1);
    assert.deepEqual((await lines()).map(({ text }) => text), ["chat ≤ 2000 ms"]);
    await page.reload();
    await until(page, () => document.getElementById("slo").selectedOptions[0]?.textContent === "chat");
  },

  async "what is bad has a mark and words, and what is good has none"({ browser, admin, address, model }) {
    await stage.ask(address, model, { tokens: 5 });
    const page = await visit(browser, admin);
    await until(page, () => document.querySelector("#latency tbody td")?.textContent.includes("▲"));
    const row = page.locator("#latency tbody tr", { hasText: "TTFT" });
    assert.match(await row.locator("td").nth(0).textContent(), /^[\d.,]+ ▲, over strict ≤ 1 ms$/);
    assert.doesNotMatch(await page.locator("#latency tbody tr", { hasText: "TPOT" }).textContent(), /▲/);
    assert.match(await page.locator("#slos tbody tr", { hasText: "strict" }).locator("td").first().textContent(), /^0 % ▲, below the target of 99 %$/);
    assert.ok(await page.locator("#chart-ttft .plot").evaluate(({ dataset }) => Number(dataset.marks)) > 0);
    // The other SLO is met, so its view has no mark.
    await page.locator("#slo").selectOption({ label: "chat" });
    await until(page, () => document.querySelector("#chart-ttft .plot").dataset.marks === "0");
    assert.doesNotMatch(await row.textContent(), /▲/);
  },

  async "models stand side by side, and one of them can be selected"({ browser, admin, address, model, other }) {
    await Promise.all([model, model, other].map((name) => stage.ask(address, name, { tokens: 20 })));
    const page = await visit(browser, admin);
    const sums = async () => {
      const { seconds } = await json(admin, "history?by_model=true&seconds=10");
      const length = seconds.reduce((sum, second) => sum + second.length_ms, 0) / 1000;
      const tokens = (name) => seconds.reduce((sum, second) => sum + (second.by_model[name]?.tokens ?? 0), 0) / length;
      return [tokens(model), tokens(other)];
    };
    const cells = async (name) => page.locator("#models tbody tr", { has: page.getByRole("button", { name, exact: true }) }).locator("td").allTextContents();
    await until(page, (names) => names.every((name) => document.getElementById("models").textContent.includes(name)), [model, other]);
    // The page and this test may ask in different seconds.
    for (let tries = 0; ; tries++) {
      const [expected, shown] = [await sums(), [number((await cells(model))[1]), number((await cells(other))[1])]];
      if (expected.every((value, at) => Math.abs(value - shown[at]) <= 0.02 * value)) break;
      assert.ok(tries < 40, `${shown} for ${expected}`);
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
    await page.locator("#models").getByRole("button", { name: model, exact: true }).click();
    await until(page, (model) => document.getElementById("figures-of").textContent.startsWith(`${model}, `), model);
    assert.equal(await page.locator("#model").evaluate((select) => select.selectedOptions[0].textContent), model);
  },

  async "the last requests are those of the program, and the filter finds by id, outcome and route"({ browser, admin, address, model }) {
    await Promise.all([0, 1, 2].map(() => stage.ask(address, model, { fault: "status=503" })));
    await fetch(`http://${address}/v1/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ model, prompt: "Hello", max_tokens: 3 }) }).then((reply) => reply.text());
    const requests = await settledRequests(admin);
    const page = await visit(browser, admin);
    const shows = (count) => until(page, (count) => document.querySelectorAll("#requests tbody tr button").length === count, count);
    await shows(Math.min(100, requests.length));
    const failed = requests.filter(({ fault }) => fault !== null);
    assert.ok(failed.length >= 3 && failed.length < requests.length);
    await page.locator("#of-outcome").selectOption("failed");
    await shows(Math.min(100, failed.length));
    const outcomes = await requestRows(page).locator("td:nth-of-type(4)").allTextContents();
    assert.ok(outcomes.every((text) => text.startsWith("▲ ") && text.endsWith(": upstream")), outcomes[0]);
    assert.match(await page.locator("#requests-summary").textContent(), new RegExp(`^${failed.length} of the last ${requests.length} requests; .* ${failed.length} failed;`));
    await page.locator("#of-outcome").selectOption("");
    const one = requests.find(({ response_id, fault }) => response_id && fault === null);
    await page.locator("#find").fill(`${one.response_id} ${one.status}`);
    await shows(1);
    assert.equal(await page.locator("#requests tbody button").textContent(), one.response_id);
    await page.locator("#find").fill(`${one.response_id} no-such-word`);
    await until(page, () => document.querySelector("#requests tbody").textContent === "No request fits the filter.");
    await page.locator("#find").fill("");
    await page.locator("#of-route").selectOption("/v1/completions");
    await shows(requests.filter(({ route }) => route === "/v1/completions").length);
    // A held list stays, whatever comes.
    await page.locator("#hold").click();
    await page.locator("#of-route").selectOption("");
    await stage.ask(address, model, { tokens: 3 });
    const before = await page.locator("#requests-summary").textContent();
    const seconds = await page.evaluate(() => document.body.dataset.seconds);
    await until(page, (seconds) => document.body.dataset.seconds > seconds + 1, Number(seconds));
    assert.equal(await page.locator("#requests-summary").textContent(), before);
    await page.locator("#hold").click();
    await until(page, (before) => document.getElementById("requests-summary").textContent !== before, before);
  },

  async "the bars of a waterfall are as long as the phases"({ browser, admin, address, model }) {
    await stage.ask(address, model, { tokens: 40, asksUsage: true });
    const requests = await settledRequests(admin);
    const { response_id: id, phases_ms: at, engine_prefill_ms: prefill, duration_ms: all } = requests.find(({ outcome, output_tokens }) => outcome === "success" && output_tokens === 40);
    const page = await visit(browser, admin);
    await page.locator("#find").fill(id);
    await page.locator("#requests").getByRole("button", { name: id }).click();
    const phases = await page.locator("#phases tbody tr").evaluateAll((rows) => rows.map((row) => {
      const [place, bar] = [row.querySelector(".bars"), row.querySelector(".phase")].map((node) => node.getBoundingClientRect());
      return { name: row.cells[0].textContent, takes: row.cells[2].textContent, from: (bar.left - place.left) / place.width, share: bar.width / place.width, pixel: 1.01 / place.width };
    }));
    const begin = at.first_token - prefill;
    assert.ok(prefill > 0 && begin > at.sent, `a prefill of ${prefill} ms before ${at.first_token}`);
    const expected = [["request sent", 0, at.sent], ["queue", at.sent, begin], ["prefill, by the engine", begin, at.first_token], ["tokens", at.first_token, at.last_token], ["end of the stream", at.last_token, all]].filter(([, from, to]) => to > from);
    assert.deepEqual(phases.map(({ name }) => name), expected.map(([name]) => name));
    phases.forEach(({ takes, from, share, pixel }, i) => {
      const [name, begins, ends] = expected[i];
      assert.ok(Math.abs(number(takes) / (ends - begins) - 1) < 0.01, `${name} ${takes} for ${ends - begins}`);
      assert.ok(Math.abs(from - begins / all) <= pixel && Math.abs(share - (ends - begins) / all) <= pixel, `${name}: ${from} and ${share} of ${begins} to ${ends} in ${all}`);
    });
    assert.ok(phases.find(({ name }) => name === "tokens").share > 0.5, "40 tokens take longer than the first");
    const facts = await page.locator("#request dl").textContent();
    assert.ok(facts.includes(id) && facts.includes("strict"), facts);
  },

  async "a request is opened and closed with the keyboard, and the focus returns"({ browser, admin }) {
    const page = await visit(browser, admin);
    await page.locator("#hold").click();
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    const focused = () => page.evaluate(() => [...document.querySelectorAll("#requests tbody button")].indexOf(document.activeElement));
    assert.equal(await focused(), 0);
    for (const key of ["ArrowDown", "ArrowDown", "ArrowUp"]) await page.keyboard.press(key);
    assert.equal(await focused(), 1);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#request:not([hidden])");
    assert.equal(await page.evaluate(() => document.activeElement.id), "request");
    await page.keyboard.press("Escape");
    await page.waitForSelector("#request", { state: "hidden" });
    assert.equal(await focused(), 1);
  },

  async "range, zoom and a drag choose what the charts show"({ browser, admin }) {
    const page = await visit(browser, admin);
    await until(page, () => Number(document.body.dataset.seconds) > 10);
    await page.locator("#range").selectOption("60");
    await until(page, () => Math.abs(document.querySelector("#chart-ttft .plot").dataset.to - document.querySelector("#chart-ttft .plot").dataset.from - 60) < 0.01);
    await page.locator("#zoom-in").focus();
    await page.keyboard.press("Enter");
    const [from, to] = await axis(page);
    assert.ok(Math.abs(to - from - 30) < 0.01, `${to - from} s`);
    assert.equal(await page.locator("#range").inputValue(), "");
    // What is selected stays while time goes on.
    const seconds = await page.evaluate(() => Number(document.body.dataset.seconds));
    await until(page, (seconds) => Number(document.body.dataset.seconds) > seconds + 1, seconds);
    assert.deepEqual(await axis(page), [from, to]);
    const box = await page.locator("#chart-itl .u-over").boundingBox();
    await page.mouse.move(box.x + box.width * 0.25, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.75, box.y + 60, { steps: 5 });
    await page.mouse.up();
    const dragged = await axis(page);
    assert.ok(Math.abs(dragged[0] - (from + 7.5)) < 0.5 && Math.abs(dragged[1] - (to - 7.5)) < 0.5, `${dragged} of ${from} to ${to}`);
    await page.mouse.move(0, 0);
    assert.match(await page.locator("#moment-text").textContent(), /^[\d:]{8}, \d+ s ago$/);
    await page.locator("#whole").click();
    await until(page, () => document.getElementById("moment-text").textContent === "now");
    assert.equal(await page.locator("#range").inputValue(), "900");
  },

  async "the engine's own figures stand beside the proxy's"({ browser, admin, address, model }) {
    const held = stage.ask(address, model, { tokens: 1200 });
    const page = await visit(browser, admin);
    const cell = (name) => page.locator("#engine tbody tr", { has: page.locator("th", { hasText: name }) }).first().locator("td").textContent();
    // The program asks the engine every five seconds; the request takes twelve.
    await until(page, () => Number(document.querySelector("#engine tbody tr:nth-child(3) td")?.textContent) > 0);
    const { url, failed, samples } = await json(admin, "engine");
    assert.match(url, /\/metrics$/);
    assert.equal(failed, null);
    assert.equal(number(await cell("running")), samples.at(-1).figures.running);
    assert.equal(number(await page.locator("#chart-engine-queue .legend b").nth(1).textContent()), samples.at(-1).figures.running);
    await held;
  },

  async "it says which instance this is, and with which settings"({ browser, admin }) {
    const page = await visit(browser, admin);
    const { config_digest: digest, version } = await json(admin, "state");
    const told = await page.locator("#instance").textContent();
    assert.ok(told.includes(`digest ${digest}`) && told.includes(version), told);
    assert.match(told, /service\.instance\.id[0-9a-f-]{36}/);
    await page.locator("#settings summary").click();
    await until(page, () => document.querySelector("#settings pre").textContent.includes("slos:"));
    assert.ok((await page.locator("#settings pre").textContent()).includes(digest));
  },

  async "the sessions of a capture are those of the program, and without a capture there is no section"({ browser, admin, program, upstream, model }) {
    const without = await visit(browser, admin);
    assert.ok(await without.locator("#sessions").isHidden());
    const capture = await mkdtemp(join(tmpdir(), "streamgauge-sessions-"));
    const proxy = await stage.proxy(program, upstream.address, "127.0.0.1:0", ["--capture", capture]);
    await stage.ask(proxy.address, model, { messages: ["Hello"] });
    await stage.ask(proxy.address, model, { messages: ["Hello", "Hi", "How deep is the river?"] });
    await stage.ask(proxy.address, model, { messages: ["Another one"] });
    const page = await visit(browser, proxy.admin);
    await until(page, () => document.querySelectorAll("#latest-sessions tbody tr").length === 2 && /^2 with a turn/.test(document.getElementById("sessions-of").textContent));
    const { sessions } = await json(proxy.admin, "state");
    const rows = await page.locator("#latest-sessions tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent)));
    assert.deepEqual(rows, sessions.latest.map(({ session, turns }) => [session, String(turns)]));
    assert.deepEqual(rows.map(([, turns]) => turns), ["1", "2"], "the one with the latest turn first");
    const goodput = await page.locator("#session-goodput tbody tr").evaluateAll((rows) => rows.map((row) => [0, 2, 3].map((cell) => row.cells[cell].textContent)));
    assert.deepEqual(goodput, sessions.goodput.map(({ slo, met, counted }) => [slo, String(met), String(counted)]));
    assert.equal(goodput[0][0], "chat");
    await stage.stop(proxy);
    await rm(capture, { recursive: true });
  },

  async "a proxy without traffic says so everywhere"({ browser, program, upstream }) {
    const quiet = await stage.proxy(program, upstream.address);
    const page = await visit(browser, quiet.admin);
    const texts = await page.locator("td.none").allTextContents();
    assert.deepEqual(texts, ["None has ended yet.", "None has ended yet.", "No model was active.", "No request has ended yet."]);
    assert.equal(await page.locator("#chart-errors .empty").textContent(), "no request has failed in this time");
    assert.equal(await page.locator(".mark").count(), 0);
    await page.context().close();
    await stage.stop(quiet);
  },

  async "all parts of the page together are at most 400 KB"({ browser, admin }) {
    const page = await browser.newContext().then((context) => context.newPage());
    const sizes = [];
    page.on("response", (response) => response.url().includes("/api/") || sizes.push(response.body().then((body) => body.length)));
    await page.goto(`http://${admin}/`);
    await page.waitForFunction(() => Number(document.body.dataset.seconds) > 0);
    const all = (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
    assert.ok(sizes.length > 15 && all > 100_000 && all <= 400 * 1024, `${all} bytes in ${sizes.length} parts`);
  },
});
