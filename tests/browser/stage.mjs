// What the page is tried on: the program's own processes, real requests, and a browser that nobody has used before.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

const running = new Set();

// A verb of the program that runs, and the first line of what it says that fits `sign`.
export async function start(program, args, sign) {
  const child = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"], env: { NO_COLOR: "1" } });
  running.add(child);
  child.once("exit", () => running.delete(child));
  let said = "";
  const match = await new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on("line", (line) => {
      said += `${line}\n`;
      const found = said.match(sign);
      if (found) resolve(found);
    });
    child.once("exit", (code) => reject(new Error(`${args.join(" ")} ended with ${code}:\n${said}`)));
  });
  return { child, match };
}

export async function stop({ child }) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
}

export const stopAll = () => Promise.all([...running].map((child) => stop({ child })));

export async function simulator(program, models, address = "127.0.0.1:0") {
  const args = ["sim", "--per-request-metrics", "--listen", address, ...models.flatMap((model) => ["--model", model])];
  const started = await start(program, args, /listening on http:\/\/([0-9.:]+)/);
  return { ...started, address: started.match[1] };
}

export async function proxy(program, upstream, address = "127.0.0.1:0", more = []) {
  const args = ["proxy", "--upstream", `http://${upstream}`, "--listen", "127.0.0.1:0", "--admin", address, "--slo", "chat: ttft<=2s", "--slo", "strict: ttft<=1ms",
    "--engine-metrics", `http://${upstream}/metrics`, ...more];
  const started = await start(program, args, /listen=([0-9.:]+) admin=([0-9.:]+)/);
  return { ...started, address: started.match[1], admin: started.match[2] };
}

// One streamed reply, read to its end. Never fails: what goes wrong is for the page to tell.
export async function ask(address, model, { tokens = 30, fault = "", messages = ["Hello"], asksUsage = false } = {}) {
  // The user begins, and the assistant answers.
  const said = messages.map((content, at) => ({ role: at % 2 ? "assistant" : "user", content }));
  const body = JSON.stringify({ model, stream: true, max_tokens: tokens, ignore_eos: true, messages: said, ...(asksUsage && { stream_options: { include_usage: true } }) });
  const headers = { "content-type": "application/json", ...(fault && { "x-sim-fault": fault }) };
  try {
    const reply = await fetch(`http://${address}/v1/chat/completions`, { method: "POST", headers, body });
    await reply.text();
  } catch {}
}

// A browser that keeps what it keeps among the parts. As it starts, chromium reads its environment in one thread and sets
// some of it in another, and crashes of that now and then: it has few variables here, and a second try.
export async function open() {
  const parts = process.env.STREAMGAUGE_PARTS ?? `${process.env.HOME}/.cache/streamgauge-parts`;
  const { chromium } = createRequire(`${parts}/npm/page/`)("playwright-core");
  const env = { PATH: process.env.PATH, HOME: `${parts}/home` };
  const launch = () => chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS, env });
  return launch().catch((error) => {
    process.stderr.write(`the browser did not start, and is started once more: ${error.message}\n`);
    return launch();
  });
}
