// What the seconds of /api/history come to: windows of them, rates, quantiles.

export const WINDOW_SECONDS = 10;
export const LATENCIES = ["ttft", "itl", "tpot"];
export const QUANTILES = [
  ["p50", 0.5],
  ["p90", 0.9],
  ["p99", 0.99],
];
// Ends of the range of the buckets; what is outside of it is in the bucket beyond.
const LOWEST = -161;
const HIGHEST = 96;

// The upper bound of a bucket, in milliseconds.
export const bound = (bucket) => 1000 * 2 ** ((bucket + 1) / 8);

// Calls `each` with every bucket that has a count, and its count.
export function buckets(distribution, each) {
  if (!distribution) return;
  let [at] = distribution;
  for (const number of distribution.slice(1)) {
    if (number < 0) at -= number;
    else each(at++, number);
  }
}

// Sums of consecutive seconds.
export class Window {
  constructor() {
    this.milliseconds = 0;
    this.requests = 0;
    this.tokens = 0;
    this.ended = new Map();
    this.slos = new Map();
    this.counts = Object.fromEntries(LATENCIES.map((name) => [name, new Map()]));
  }

  add(second) {
    const figures = second.figures ?? {};
    this.milliseconds += second.length_ms;
    this.requests += figures.requests ?? 0;
    this.tokens += figures.tokens ?? 0;
    for (const [how, count] of Object.entries(figures.ended ?? {})) bump(this.ended, how, count);
    for (const [slo, counts] of Object.entries(figures.slos ?? {})) {
      const sums = this.slos.get(slo) ?? [0, 0, 0, 0];
      this.slos.set(slo, sums.map((sum, at) => sum + counts[at]));
    }
    for (const name of LATENCIES) {
      buckets(figures[name], (bucket, count) => bump(this.counts[name], bucket, count));
    }
  }

  perSecond(count) {
    return this.milliseconds > 0 ? (1000 * count) / this.milliseconds : 0;
  }

  // How many values there are of a latency.
  count(name) {
    let sum = 0;
    for (const count of this.counts[name].values()) sum += count;
    return sum;
  }

  // Quantiles of a latency in milliseconds, as the program computes them: within the bucket of the nearest rank. Nulls
  // where there is nothing.
  quantiles(name) {
    const sorted = [...this.counts[name]].sort(([a], [b]) => a - b);
    const all = sorted.reduce((sum, [, count]) => sum + count, 0);
    return QUANTILES.map(([, q]) => {
      const rank = Math.max(1, Math.ceil(q * all));
      let below = 0;
      for (const [bucket, count] of sorted) {
        if (below + count >= rank) {
          const smallest = bucket <= LOWEST ? 0 : bound(bucket - 1);
          const width = bucket >= HIGHEST ? 0 : bound(bucket) - smallest;
          return smallest + (width * (rank - below - 0.5)) / count;
        }
        below += count;
      }
      return null;
    });
  }

  // What an SLO found: requests that met it, that missed it, that do not count, and the tokens of those that met it.
  verdicts(slo) {
    return this.slos.get(slo) ?? [0, 0, 0, 0];
  }
}

function bump(counts, key, by) {
  counts.set(key, (counts.get(key) ?? 0) + by);
}

// The window that ends with a second.
export function windowAt(seconds, at, length = WINDOW_SECONDS) {
  const window = new Window();
  for (let i = Math.max(0, at - length + 1); i <= at; i++) window.add(seconds[i]);
  return window;
}

// Requests that are open: streams that wait for a first token, streams that have one, and the others.
export function phases(second) {
  const [requests, waiting, streaming] = second?.figures?.open ?? [0, 0, 0];
  return [waiting, streaming, Math.max(0, requests - waiting - streaming)];
}
