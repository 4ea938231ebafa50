"""Serves the pages of tests/data/server_metrics at http://127.0.0.1:PORT/NAME, as if their servers were at work.

    engines.py PORT

Counters, and the sums and counts of histograms, grow by the page's values every 10 s. Gauges stay as they are.
"""

import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "data" / "server_metrics"
START = time.monotonic()
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")


def grown(page):
    kinds = dict(line.split(" ")[2:4] for line in page.splitlines() if line.startswith("# TYPE "))
    factor = (time.monotonic() - START) / 10
    lines = []
    for line in page.splitlines():
        if found := SAMPLE.match(line):
            name, labels, value = found[1], found[2] or "", float(found[3])
            family = re.sub(r"_(sum|count|bucket)$", "", name)
            if kinds.get(name) == "counter" or kinds.get(family) == "histogram" or name.endswith("_total"):
                value *= factor
            line = f"{name}{labels} {value}"
        lines.append(line)
    return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.strip("/")
        path = PAGES / f"{name}.txt"
        known = name in {page.stem for page in PAGES.glob("*.txt")}
        body = grown(path.read_text()).encode() if known else b""
        self.send_response(200 if known or not name else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
