// Computes windows, rates and quantiles from the seconds of /api/history.

export const WINDOW_SECONDS = 10;
export const LATENCIES = ["ttft", "itl", "tpot"];
export const QUANTILES = [
  ["p50", 0.5],
  ["p90", 0.9],
  ["p99", 0.99],
];
// Ends of the bucket range; values outside are in the next bucket.
const LOWEST = -161;
const HIGHEST = 96;

// Returns a bucket's upper bound in milliseconds.
export const bound = (bucket) => 1000 * 2 ** ((bucket + 1) / 8);

// Calls `each` with every nonempty bucket and its count.
export function buckets(distribution, each) {
  if (!distribution) return;
  let [at] = distribution;
  for (const number of distribution.slice(1)) {
    if (number < 0) at -= number;
    else each(at++, number);
  }
}

// Returns the share of values above a limit in ms. The bucket that contains the limit counts as below.
export function shareOver(distributions, limit) {
  let [over, all] = [0, 0];
  for (const distribution of distributions) {
    buckets(distribution, (bucket, count) => {
      all += count;
      if (bound(bucket - 1) >= limit) over += count;
    });
  }
  return all > 0 ? over / all : 0;
}

// Returns the SLOs as {name, text, target, limits}; only the one with the name `only`, unless it is null. Each limit has
// the share of values that may be above it.
export function slosOf(state, only) {
  const names = Object.keys(state.slos).filter((name) => only === null || name === only);
  return names.map((name) => {
    const target = state.slo_targets[name];
    const limits = (state.slo_limits[name] ?? []).map(({ metric, percentile, limit_ms }) => {
      const allowed = percentile === null ? 1 - target : 1 - percentile / 100;
      const of = percentile === null ? "" : percentile === 100 ? " longest" : ` p${percentile}`;
      return { slo: name, metric, limit_ms, allowed, text: `${name}${of} ≤ ${Number(limit_ms.toPrecision(4))} ms` };
    });
    return { name, text: state.slos[name], target, limits };
  });
}

// Sums over consecutive seconds.
export class Window {
  constructor() {
    this.milliseconds = 0;
    this.requests = 0;
    this.tokens = 0;
    this.ended = new Map();
    this.responses = new Map();
    this.failures = new Map();
    this.errors = new Map();
    this.slos = new Map();
    this.counts = Object.fromEntries(LATENCIES.map((name) => [name, new Map()]));
  }

  add(second) {
    const figures = second.figures ?? {};
    this.milliseconds += second.length_ms;
    this.requests += figures.requests ?? 0;
    this.tokens += figures.tokens ?? 0;
    for (const counts of ["ended", "responses", "failures", "errors"]) {
      for (const [key, count] of Object.entries(figures[counts] ?? {})) bump(this[counts], key, count);
    }
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

  // Returns the number of values of a latency.
  count(name) {
    let sum = 0;
    for (const count of this.counts[name].values()) sum += count;
    return sum;
  }

  // Returns quantiles of a latency in milliseconds by the program's own rule: within the bucket of the nearest rank.
  // They are null without values.
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

  // Returns an SLO's result: requests that met it, missed it and are excluded, and the output tokens of those that met
  // it.
  verdicts(slo) {
    return this.slos.get(slo) ?? [0, 0, 0, 0];
  }
}

function bump(counts, key, by) {
  counts.set(key, (counts.get(key) ?? 0) + by);
}

// Returns the window that ends with a second.
export function windowAt(seconds, at, length = WINDOW_SECONDS) {
  const window = new Window();
  for (let i = Math.max(0, at - length + 1); i <= at; i++) window.add(seconds[i]);
  return window;
}

// Possible lengths of a mark in seconds. They are few, so that the length seldom changes.
const STEPS = [1, 2, 3, 5, 10, 15, 20, 30];
const step = (least) => STEPS.find((step) => step >= least) ?? STEPS.at(-1);

// Returns the number of seconds per mark. Single marks with gaps would look like stripes. So a mark is wide enough to
// be visible, and long enough to contain data if only `filled` of the `seconds` do.
export function secondsOfMark(seconds, filled, pixels) {
  const visible = (seconds * 2.5) / pixels;
  const together = filled > 0 ? (3 * seconds) / filled - 2 : 1;
  return step(Math.max(visible, Math.min(together, seconds / 30)));
}

// Returns the number of seconds that a point of a line averages. Without averaging the line would jump with every
// request.
export const secondsOfPoint = (seconds) => step(seconds / 60);

// Returns each value as the mean of the last `length` values up to it.
export function averaged(values, length) {
  let sum = 0;
  return values.map((value, at) => {
    sum += (value ?? 0) - (at >= length ? (values[at - length] ?? 0) : 0);
    // A rounding error remains after many additions; it is not traffic.
    return Math.abs(sum) < 1e-9 ? 0 : sum / Math.min(length, at + 1);
  });
}

// Returns the open requests: streams that wait for a first token, streams that have one, and others.
export function phases(second) {
  const [requests, waiting, streaming] = second?.figures?.open ?? [0, 0, 0];
  return [waiting, streaming, Math.max(0, requests - waiting - streaming)];
}
