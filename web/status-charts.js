/**
 * The charts of the status page: small ones of the last 15 minutes, drawn by uPlot, which lies beside
 * this file. All of them share one pointer: what is under it is told in each card.
 */

const WINDOW_S = 15 * 60;
const HEIGHT_PX = 104;
const MINUTE_S = 60;
/** Two samples that are further apart than this have a hole between them. */
const HOLE_S = 2.5;

/** How much of their colour areas have: in a stack, and under a line. */
const STACK_SHARE = 0.7;
const FILL_SHARE = 0.14;

const darkScheme = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function faded(hex, share) {
  const alpha = Math.round(share * 255).toString(16).padStart(2, "0");
  return `${hex}${alpha}`;
}

/**
 * One chart in `element`. `lines` are `{key, label, colour, isFilled}`; with `isStacked` each stands
 * on those before it. `format` writes a value at the axis, `onPoint` is told which row the pointer is
 * at, or null.
 */
export class Chart {
  #element;
  #options;
  #plot = null;
  #rows = [];

  constructor(element, options) {
    this.#element = element;
    this.#options = options;
    new ResizeObserver(() => this.#resize()).observe(element);
    darkScheme.addEventListener("change", () => this.#rebuild());
  }

  /** Shows these rows, oldest first. */
  show(rows) {
    this.#rows = rows;
    if (!this.#plot) return this.#rebuild();
    this.#plot.setData(this.#data(), false);
    this.#plot.setScale("x", this.#span());
  }

  #span() {
    const last = this.#rows.at(-1)?.time_ms ?? Date.now();
    return { min: last / 1000 - WINDOW_S, max: last / 1000 };
  }

  /** Columns for uPlot: times, then what each line draws. */
  #data() {
    const { lines, isStacked, isLog } = this.#options;
    const columns = [[], ...lines.map(() => [])];
    let before = null;
    for (const row of this.#rows) {
      const time = row.time_ms / 1000;
      if (before !== null && time - before > HOLE_S) {
        columns[0].push(before + 1);
        for (const column of columns.slice(1)) column.push(null);
      }
      before = time;
      columns[0].push(time);
      let sum = 0;
      lines.forEach(({ key }, nth) => {
        let value = row[key] ?? null;
        // Nothing is below zero on a logarithmic scale, nor is zero.
        if (isLog && value !== null) value = Math.max(value, 0.001);
        if (isStacked && value !== null) value = sum += value;
        columns[nth + 1].push(value);
      });
    }
    return columns;
  }

  #resize() {
    const width = this.#element.clientWidth;
    if (width > 0 && this.#plot && this.#plot.width !== width) {
      this.#plot.setSize({ width, height: HEIGHT_PX });
    }
  }

  #rebuild() {
    this.#plot?.destroy();
    const width = this.#element.clientWidth || 300;
    this.#plot = new globalThis.uPlot({ width, height: HEIGHT_PX, ...this.#look() }, [[]],
      this.#element);
    this.#plot.setData(this.#data(), false);
    this.#plot.setScale("x", this.#span());
  }

  #look() {
    const { lines, isLog, isBytes, floor = 1, format, onPoint } = this.#options;
    const [line, muted] = [colour("line"), colour("muted")];
    const axis = {
      stroke: muted,
      font: "11px system-ui, sans-serif",
      grid: { stroke: line, width: 1 },
      ticks: { show: false },
    };
    return {
      legend: { show: false },
      padding: [6, 14, 0, 0],
      cursor: {
        sync: { key: "status" },
        y: false,
        drag: { x: false, y: false },
        points: { size: 6 },
      },
      scales: {
        x: { time: false, auto: false },
        y: isLog
          ? { distr: 3, range: (_, low, high) => logRange(low, high) }
          : { range: (_, __, high) => [0, Math.max(floor, (high ?? 0) * 1.08)] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 20,
          gap: 2,
          splits: (plot) => minutesBefore(plot.scales.x.max),
          values: (plot, splits) => splits.map((at) => ago(plot.scales.x.max - at)),
        },
        {
          ...axis,
          size: 46,
          gap: 4,
          splits: (_, __, low, high) => (isLog ? powers(low, high) : thirds(high, isBytes)),
          // Of a logarithmic scale uPlot would leave some out.
          filter: (_, splits) => splits,
          values: (_, splits) => splits.map(format),
        },
      ],
      series: [
        {},
        ...lines.map((it, nth) => this.#series(it, nth)),
      ],
      bands: this.#bands(),
      hooks: {
        setCursor: [(plot) => onPoint(this.#rowAt(plot))],
      },
    };
  }

  #series({ label, colour: name, isFilled }, nth) {
    const stroke = colour(name);
    const { isStacked } = this.#options;
    const isLowest = nth === 0;
    return {
      label,
      stroke,
      // In a stack areas say it all: the lines of those that are nothing would lie on others.
      width: isStacked ? 0 : 1.5,
      points: { show: false, filter: (plot, at) => lonely(plot.data[at]), fill: stroke, size: 3 },
      fill: isFilled && (!isStacked || isLowest)
        ? faded(stroke, isStacked ? STACK_SHARE : FILL_SHARE)
        : undefined,
    };
  }

  /** Between two lines of a stack. */
  #bands() {
    const { lines, isStacked } = this.#options;
    if (!isStacked) return [];
    return lines.slice(1).map((line, nth) => ({
      series: [nth + 2, nth + 1],
      fill: faded(colour(line.colour), STACK_SHARE),
    }));
  }

  /** The row under the pointer. */
  #rowAt(plot) {
    const at = plot.cursor.idx;
    const time = at === null || at === undefined ? undefined : plot.data[0][at];
    if (time === undefined) return null;
    return this.#rows.find((row) => row.time_ms / 1000 === time) ?? null;
  }
}

/** The indices of values without neighbours: no line shows them. */
function lonely(column) {
  const isThere = (at) => column[at] !== null && column[at] !== undefined;
  const found = [];
  for (let at = 0; at < column.length; at += 1) {
    if (isThere(at) && !isThere(at - 1) && !isThere(at + 1)) found.push(at);
  }
  return found;
}

function minutesBefore(end) {
  return [15, 10, 5, 0].map((minutes) => end - minutes * MINUTE_S);
}

function ago(seconds) {
  const minutes = Math.round(seconds / MINUTE_S);
  if (minutes === 0) return "now";
  return minutes === 15 ? "" : `−${minutes} min`;
}

/** Two or three lines at values that are round, in tens or in the units of bytes. */
function thirds(high, isBytes) {
  const rough = high / 3;
  const unit = isBytes ? 1024 ** Math.floor(Math.log(rough) / Math.log(1024)) : 1;
  const scale = unit * 10 ** Math.floor(Math.log10(rough / unit));
  const step = [1, 2, 2.5, 5, 10].map((it) => it * scale).find((it) => it >= rough) ?? rough;
  const splits = [];
  for (let at = 0; at <= high; at += step) splits.push(at);
  return splits;
}

/** Powers of ten, at most four of them. */
function powers(low, high) {
  const [from, to] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const step = Math.max(1, Math.ceil((to - from) / 3));
  const splits = [];
  for (let at = from; at <= to; at += step) splits.push(10 ** at);
  return splits;
}

/** Whole powers of ten around what there is. */
function logRange(low, high) {
  if (low === null || high === null || low === undefined) return [0.01, 10];
  return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.01))];
}
