// Makes the picture of the live page for README.md: what a browser shows after three minutes of the real demo.
//
//     cargo build --release && node tests/browser/picture.mjs target/release/streamgauge
//
// Look at it before it is committed.

import * as stage from "./stage.mjs";

const SECONDS = 180;
const TARGET = new URL("../pictures/page.png", import.meta.url).pathname;

const [program] = process.argv.slice(2);
try {
  const demo = await stage.start(program, ["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], /open (http:\/\/[0-9.:]+\/) in a browser/);
  const browser = await stage.open();
  const page = await browser.newPage({ viewport: { width: 1200, height: 860 } });
  await page.goto(demo.match[1]);
  await page.waitForFunction((seconds) => Number(document.body.dataset.seconds) >= seconds, SECONDS, { timeout: 2_000 * SECONDS });
  await page.screenshot({ path: TARGET });
  await browser.close();
} finally {
  await stage.stopAll();
}
process.exit();
