// The visible part of the time axis: the last minutes, or a selection.

const LEAST_MS = 15_000;

export class View {
  constructor() {
    this.seconds = 900;
    // The two ends of a selection in ms, or null.
    this.selection = null;
  }

  // Returns the indexes of the first and the last visible row, and the two ends of the axis in seconds.
  of(rows) {
    const last = rows.at(-1).unix_ms;
    const length = Math.min(1000 * this.seconds, Math.max(60_000, last - rows[0].unix_ms));
    const [from, to] = this.selection ?? [last - length, last];
    let first = rows.findIndex((row) => row.unix_ms >= from);
    if (first < 0) first = rows.length - 1;
    let end = rows.findLastIndex((row) => row.unix_ms <= to);
    if (end < first) end = first;
    return { first, end, span: [from / 1000, to / 1000] };
  }

  // Shows the last seconds.
  last(seconds) {
    [this.seconds, this.selection] = [seconds, null];
  }

  // Shows what is between two times in ms.
  select(from, to) {
    const more = Math.max(0, LEAST_MS - (to - from)) / 2;
    this.selection = [from - more, to + more];
  }

  // Shows `factor` times as much around a moment, within the history.
  zoom(factor, at, rows) {
    const { span } = this.of(rows);
    const [oldest, latest] = [rows[0].unix_ms, rows.at(-1).unix_ms];
    const length = Math.max(LEAST_MS, 1000 * (span[1] - span[0]) * factor);
    if (length >= latest - oldest && factor > 1) return this.last(900);
    const to = Math.min(latest, Math.max(oldest + length, at + length / 2));
    this.selection = [to - length, to];
  }
}
