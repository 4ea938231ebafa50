// Reads every query of a board with the grammar that Grafana's editor uses, and names those that it cannot read.
//
//     node tests/deploy/promql.mjs BOARD DIRECTORY      packages are in DIRECTORY/node_modules
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [board, packages] = process.argv.slice(2);
const { parser } = createRequire(`${packages}/`)("@prometheus-io/lezer-promql");

// Grafana puts a duration in its place.
const filled = (query) => query.replaceAll("$__rate_interval", "1m");

let bad = 0, read = 0;
JSON.parse(readFileSync(board, "utf8"), (key, value) => {
  if (key !== "expr") return value;
  read += 1;
  parser.parse(filled(value)).iterate({
    enter(node) {
      if (!node.type.isError) return;
      console.error(`not PromQL at character ${node.from + 1}: ${value}`);
      bad += 1;
    },
  });
  return value;
});
if (read === 0) console.error(`${board}: no query`);
process.exit(bad > 0 || read === 0 ? 1 : 0);
