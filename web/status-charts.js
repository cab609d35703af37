/**
 * The charts of the status page: at most the last 15 minutes, drawn by uPlot, whose files are in
 * `vendor/`. All charts share one cursor: each card shows the values under it.
 */

const MINUTE_S = 60;
/** The lengths of the axis, in minutes. Thirds of them are round. */
const WINDOWS_MIN = [0.5, 1, 1.5, 3, 4.5, 6, 9, 12, 15];
/** A plot narrower than this has no axis of values: it would take half of the room. */
const NARROW_PX = 240;
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

/** The shortest axis that shows this many milliseconds, or else the longest one, in minutes. */
export function windowFor(spanMs) {
  return WINDOWS_MIN.find((minutes) => spanMs <= minutes * 60_000) ?? WINDOWS_MIN.at(-1);
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
  #windowS = WINDOWS_MIN[0] * MINUTE_S;

  constructor(element, options) {
    this.#element = element;
    this.#options = options;
    new ResizeObserver(() => this.#resize()).observe(element);
    darkScheme.addEventListener("change", () => this.#rebuild());
  }

  /** Shows these rows, oldest first, on an axis of this length. */
  show(rows, windowMin) {
    this.#rows = rows;
    this.#windowS = windowMin * MINUTE_S;
    if (!this.#plot) return this.#rebuild();
    this.#plot.setData(this.#data(), false);
    this.#plot.setScale("x", this.#span());
  }

  #span() {
    const last = this.#rows.at(-1)?.time_ms ?? Date.now();
    return { min: last / 1000 - this.#windowS, max: last / 1000 };
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

  #size() {
    const { clientWidth, clientHeight } = this.#element;
    return { width: clientWidth || 300, height: clientHeight || 104 };
  }

  #resize() {
    const { width, height } = this.#size();
    const plot = this.#plot;
    if (this.#element.clientWidth === 0 || !plot) return;
    if (width < NARROW_PX !== plot.width < NARROW_PX) this.#rebuild();
    else if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
  }

  #rebuild() {
    this.#plot?.destroy();
    this.#plot = new globalThis.uPlot({ ...this.#size(), ...this.#look() }, [[]], this.#element);
    this.#plot.setData(this.#data(), false);
    this.#plot.setScale("x", this.#span());
  }

  #look() {
    const { lines, isLog, isBytes, floor = 1, format, onPoint } = this.#options;
    const isNarrow = this.#size().width < NARROW_PX;
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
          splits: ({ scales: { x } }) => thirdsBefore(x.max, this.#windowS, isNarrow),
          values: ({ scales: { x } }, splits) => (
            splits.map((at) => ago(x.max - at, this.#windowS))),
        },
        {
          ...axis,
          show: !isNarrow,
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

/** Where the axis has labels: at thirds, or in a narrow chart only at one and at the end. */
function thirdsBefore(end, windowS, isNarrow) {
  const parts = isNarrow ? [2, 0] : [3, 2, 1, 0];
  return parts.map((part) => end - (part * windowS) / 3);
}

function ago(seconds, windowS) {
  const whole = Math.round(seconds);
  if (whole === 0) return "now";
  // At the left edge a label would be cut off.
  if (whole >= windowS) return "";
  return whole < MINUTE_S ? `−${whole} s` : `−${whole / MINUTE_S} min`;
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
