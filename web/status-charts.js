/**
 * The charts of the status page: the last 15 minutes, drawn by uPlot, whose files are in `vendor/`.
 * All charts share one cursor: each card shows the values under it.
 */

const WINDOW_S = 15 * 60;
const HEIGHT_PX = 104;
const MINUTE_S = 60;
/** If two samples are further apart than this, the line has a gap between them. */
const GAP_S = 2.5;

/** The opacity of areas: in a stack, and under a line. */
const STACK_OPACITY = 0.7;
const FILL_OPACITY = 0.14;

const darkScheme = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function faded(hex, opacity) {
  const alpha = Math.round(opacity * 255).toString(16).padStart(2, "0");
  return `${hex}${alpha}`;
}

/**
 * One chart in `element`. `lines` are `{key, label, colour, isFilled}`; with `isStacked` each is
 * drawn on top of the previous ones. `format` makes the label of a value on the axis. `onPoint` is
 * called with the row under the pointer, or null.
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

  /** Columns for uPlot: the times, then the values of each line. */
  #data() {
    const { lines, isStacked, isLog } = this.#options;
    const columns = [[], ...lines.map(() => [])];
    let before = null;
    for (const row of this.#rows) {
      const time = row.time_ms / 1000;
      if (before !== null && time - before > GAP_S) {
        columns[0].push(before + 1);
        for (const column of columns.slice(1)) column.push(null);
      }
      before = time;
      columns[0].push(time);
      let sum = 0;
      lines.forEach(({ key }, index) => {
        let value = row[key] ?? null;
        // A logarithmic scale has no zero.
        if (isLog && value !== null) value = Math.max(value, 0.001);
        if (isStacked && value !== null) value = sum += value;
        columns[index + 1].push(value);
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
          // Without this uPlot leaves out some labels of a logarithmic scale.
          filter: (_, splits) => splits,
          values: (_, splits) => splits.map(format),
        },
      ],
      series: [
        {},
        ...lines.map((line, index) => this.#series(line, index)),
      ],
      bands: this.#bands(),
      hooks: {
        setCursor: [(plot) => onPoint(this.#rowAt(plot))],
      },
    };
  }

  #series({ label, colour: name, isFilled }, index) {
    const stroke = colour(name);
    const { isStacked } = this.#options;
    const isLowest = index === 0;
    return {
      label,
      stroke,
      // A stack has areas only: the line of a zero value would cover the line below it.
      width: isStacked ? 0 : 1.5,
      points: { show: false, filter: (plot, at) => isolated(plot.data[at]), fill: stroke, size: 3 },
      fill: isFilled && (!isStacked || isLowest)
        ? faded(stroke, isStacked ? STACK_OPACITY : FILL_OPACITY)
        : undefined,
    };
  }

  /** The areas between the lines of a stack. */
  #bands() {
    const { lines, isStacked } = this.#options;
    if (!isStacked) return [];
    return lines.slice(1).map((line, index) => ({
      series: [index + 2, index + 1],
      fill: faded(colour(line.colour), STACK_OPACITY),
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

/** The indices of values without neighbours, which a line does not show. */
function isolated(column) {
  const isPresent = (at) => column[at] !== null && column[at] !== undefined;
  const found = [];
  for (let at = 0; at < column.length; at += 1) {
    if (isPresent(at) && !isPresent(at - 1) && !isPresent(at + 1)) found.push(at);
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

/** Two or three grid lines at round values: decimal, or in units of bytes. */
function thirds(high, isBytes) {
  const rough = high / 3;
  const unit = isBytes ? 1024 ** Math.floor(Math.log(rough) / Math.log(1024)) : 1;
  const scale = unit * 10 ** Math.floor(Math.log10(rough / unit));
  const steps = [1, 2, 2.5, 5, 10].map((factor) => factor * scale);
  const step = steps.find((candidate) => candidate >= rough) ?? rough;
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

/** The range of a logarithmic axis: the powers of ten around the values. */
function logRange(low, high) {
  if (low === null || high === null || low === undefined) return [0.01, 10];
  return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.01))];
}
