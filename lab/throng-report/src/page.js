"use strict";
// Draws the page from the JSON above. Texts become text nodes, so nothing in them is markup.
const page = JSON.parse(document.getElementById("page").textContent);
const ABSENT = "–";
const STYLES = 6;
// An upper bound of the width of a letter, in pixels.
const LETTER = 7.4;
const NARROW = 560;
const BUCKETS_PER_DECADE = 40;

const element = (space, name, attributes, children) => {
  const made = document.createElementNS(`http://www.w3.org/${space}`, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.flat().filter((child) => child || child === ""));
  return made;
};
const html = (name, attributes, ...children) => element("1999/xhtml", name, attributes, children);
const svg = (name, attributes, ...children) => {
  const rounded = ([key, value]) => [key, typeof value === "number" ? +value.toFixed(1) : value];
  const places = Object.fromEntries(Object.entries(attributes).map(rounded));
  return element("2000/svg", name, places, children);
};
const text = (x, y, words, anchor = "start", kind = "") =>
  svg("text", { x, y, "text-anchor": anchor, class: kind }, words);
const rule = (kind, x1, y1, x2, y2) => svg("line", { class: kind, x1, y1, x2, y2 });
const dot = (x, y, style, r = 2.5) =>
  svg("circle", { class: `dot k${style % STYLES}`, cx: x, cy: y, r });
const widthOf = (words) => words.length * LETTER;
const least = (values) => values.reduce((one, other) => Math.min(one, other), Infinity);
const most = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);

// Units: `show` is a value in a table, `tick` a round value on an axis that ends at `max`.
const trimmed = (value) => String(+value.toFixed(6));
const decimal = (value) => {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 3);
};
const short = (value) => {
  const [size, letter] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => value >= size) ?? [1, ""];
  return trimmed(value / size) + letter;
};
const powerOf1024 = (value) => Math.max(0, Math.floor(Math.log2(Math.abs(value) || 1) / 10));
const inBytes = (value, power, digits) =>
  `${digits(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
const time = (ms, digits) => {
  if (ms === 0) return "0 ms";
  if (ms < 1) return `${digits(ms * 1e3)} µs`;
  return ms < 1e3 ? `${digits(ms)} ms` : `${digits(ms / 1e3)} s`;
};
const clock = (seconds) => {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const padded = (number) => String(Math.floor(number)).padStart(2, "0");
  const rest = padded(seconds % 60);
  return hours > 0 ? `${hours}:${padded(minutes)}:${rest}` : `${minutes}:${rest}`;
};
const percent = (share) => `${trimmed(Math.round(share * 1e4) / 100)} %`;
const UNITS = {
  count: { show: decimal, tick: short },
  per_second: { show: (value) => `${decimal(value)}/s`, tick: short },
  bytes: {
    show: (value) => inBytes(value, powerOf1024(value), decimal),
    tick: (value, max) => (value === 0 ? "0" : inBytes(value, powerOf1024(max), trimmed)),
  },
  milliseconds: { show: (ms) => time(ms, decimal), tick: (ms) => time(ms, trimmed) },
  cores: { show: (value) => `${value.toFixed(2)} cores`, tick: trimmed },
  seconds: { show: clock, tick: clock },
  share: { show: percent, tick: percent },
};
const shown = (unit, value) => (value == null ? ABSENT : UNITS[unit].show(value));

// Axes: `at` maps a value to a pixel between `from` and `to`.
const CLOCK_STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400];
const CLOCK_PIXELS = 90;
const decadeOf = (value) => 10 ** Math.floor(Math.log10(value));
const roundUp = (value, factors) =>
  decadeOf(value) * (factors.find((factor) => decadeOf(value) * factor >= value * 0.9999) ?? 10);
const roundDown = (value) =>
  decadeOf(value) * [5, 2, 1].find((factor) => decadeOf(value) * factor <= value * 1.0001);
const scale = (share, from, to) => (value) =>
  from + (to - from) * Math.min(1, Math.max(0, share(value)));

function linear(unit, max, from, to) {
  const end = max > 0 ? max : 1;
  const base = unit === "bytes" ? 1024 ** powerOf1024(end) : 1;
  let step = roundUp(end / base / 4, [1, 2, 2.5, 5]) * base;
  if (unit === "count") step = Math.max(1, step);
  const isClock = unit === "seconds";
  if (isClock) step = CLOCK_STEPS.find((each) => (end / each) * CLOCK_PIXELS <= to - from) ?? end;
  // Time ends with the run; other values get space above them.
  const steps = isClock ? Math.floor(end / step) : Math.ceil(end / step - 1e-9);
  const high = isClock ? end : steps * step;
  const ticks = Array.from({ length: steps + 1 }, (_, nth) => nth * step);
  return {
    at: scale((value) => value / high, from, to),
    ticks: ticks.map((value) => [value, UNITS[unit].tick(value, end)]),
  };
}

function logarithmic(unit, min, max, from, to) {
  const floor = min > 0 && min < Infinity ? min : 1e-3;
  let values;
  if (unit === "bytes") {
    const [first, last] = [Math.floor(Math.log2(floor) / 2), Math.ceil(Math.log2(max) / 2)];
    const step = Math.max(1, Math.ceil((last - first) / 9));
    const steps = Math.max(1, Math.ceil((last - first) / step));
    values = Array.from({ length: steps + 1 }, (_, nth) => 4 ** (first + nth * step));
  } else {
    const [low, high] = [roundDown(floor), roundUp(Math.max(max, floor * 1.01), [1, 2, 5])];
    const factors = high / low < 1001 ? [1, 2, 5] : [1];
    const decades = Math.round(Math.log10(decadeOf(high * 1.001) / decadeOf(low * 1.001)));
    const all = Array.from({ length: decades + 1 }, (_, nth) => decadeOf(low * 1.001) * 10 ** nth);
    values = all.flatMap((decade) => factors.map((factor) => decade * factor));
    values = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    if (values[0] > low * 1.001) values.unshift(low);
    if (values.at(-1) < high * 0.999) values.push(high);
  }
  const [low, high] = [values[0], values.at(-1)];
  const share = (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low);
  return {
    at: scale(share, from, to),
    ticks: values.map((value) => [value, UNITS[unit].tick(value, value)]),
  };
}

/** Takes the share of values above, down to a single one of `count`. */
function rarity(count, from, to) {
  const decades = Math.max(1, Math.log10(count));
  const ticks = [[1, "0 %"], [0.5, "50 %"]];
  for (let nth = 1; nth <= decades + 1e-9; nth += 1) {
    ticks.push([10 ** -nth, `${trimmed(100 - 100 * 10 ** -nth)} %`]);
  }
  return { at: scale((above) => -Math.log10(above) / decades, from, to), ticks };
}

/** The area of a plot, and its axes with grid lines; a chart of rows has no vertical axis. */
const area = (width, height, left = 62, right = 14) =>
  ({ width, left, right: width - right, top: 26, floor: height - 28 });

function axes(at, x, y) {
  const parts = [];
  for (const [value, label] of y?.ticks ?? []) {
    parts.push(rule("grid", at.left, y.at(value), at.right, y.at(value)));
    parts.push(text(at.left - 8, y.at(value) + 4, label, "end"));
  }
  let free = 0;
  for (const [value, label] of x.ticks) {
    const place = x.at(value);
    const half = widthOf(label) / 2;
    const middle = Math.min(place, at.width - half);
    if (!y) parts.push(rule("grid", place, at.top, place, at.floor));
    // Labels at the end of a logarithmic axis may overlap.
    if (middle - half < free) continue;
    free = middle + half + 6;
    parts.push(rule("axis", place, at.floor, place, at.floor + 4));
    parts.push(text(middle, at.floor + 18, label, "middle"));
  }
  return [...parts, rule("axis", at.left, at.floor, at.right, at.floor)];
}

/** A line through places; a missing one interrupts it, and a lone one is a dot. */
function path(places, style) {
  const dots = [];
  const data = places.map((place, nth) => {
    if (!place) return "";
    if (!places[nth - 1] && !places[nth + 1]) dots.push(dot(...place, style));
    return `${places[nth - 1] ? "L" : "M"}${place[0].toFixed(1)} ${place[1].toFixed(1)}`;
  });
  return [svg("path", { class: `line k${style % STYLES}`, d: data.join("") }), ...dots];
}

// Charts: each is null without values, or has its legend, its table of numbers and `draw`.
function lines(plot) {
  const all = plot.lines.filter(({ points }) => points.some(([, value]) => value != null));
  if (all.length === 0) return null;
  const isTime = plot.x_axis === "time";
  const xUnit = isTime ? "seconds" : "count";
  const xs = all.flatMap(({ points }) => points.map(([x]) => x));
  const values = all.flatMap(({ points }) => points.map((point) => point[1] ?? NaN));
  const measured = values.filter((value) => !Number.isNaN(value));
  const longest = all.map(({ points }) => points).reduce((a, b) => (b.length > a.length ? b : a));
  const at = (nth) => all.map(({ points }) => shown(plot.unit, points[nth]?.[1]));

  const drawBands = (frame, x) => page.bands.flatMap(({ name, from_s, to_s }, nth) => {
    const [from, to] = [x.at(from_s), x.at(to_s)];
    const size = { x: from, y: frame.top, width: to - from, height: frame.floor - frame.top };
    return [
      nth % 2 === 1 && svg("rect", { class: "band", ...size }, svg("title", {}, name)),
      widthOf(name) < to - from && text(from + 4, frame.top - 8, name),
    ];
  });
  const strips = (frame, x) => {
    const step = Math.ceil(longest.length / 320);
    return longest.map(([value], nth) => {
      if (nth % step > 0) return null;
      const from = nth === 0 ? frame.left : x.at(value);
      const to = x.at(longest[nth + step]?.[0] ?? Infinity);
      const words = all.map(({ name }, line) => `${name}: ${at(nth)[line]}`);
      const size = { x: from, y: frame.top, width: to - from, height: frame.floor - frame.top };
      const title = [UNITS[xUnit].show(value), ...words].join("\n");
      return svg("rect", { class: "strip", ...size }, svg("title", {}, title));
    });
  };
  return {
    height: 250,
    legend: all.map(({ name }) => name),
    headings: [plot.x_axis, ...all.map(({ name }) => name)],
    rows: () => longest.map(([x], nth) => [shown(xUnit, x), ...at(nth)]),
    draw(frame) {
      const ends = [frame.left, frame.right];
      const x = plot.is_log_x
        ? logarithmic(xUnit, least(xs), most(xs), ...ends)
        : linear(xUnit, Math.max(1, most(xs)), ...ends);
      const positive = measured.filter((value) => value > 0);
      const y = plot.is_log
        ? logarithmic(plot.unit, least(positive), most(measured), frame.floor, frame.top)
        : linear(plot.unit, most(measured), frame.floor, frame.top);
      const drawn = all.map(({ points }, style) => {
        const places = points.map(([at, value]) => value != null && [x.at(at), y.at(value)]);
        const dots = isTime ? [] : places.filter(Boolean).map((place) => dot(...place, style));
        return [...path(places, style), ...dots];
      });
      // The first line is on top.
      const parts = [axes(frame, x, y), ...drawn.reverse(), strips(frame, x)];
      return [...(isTime ? drawBands(frame, x) : []), ...parts.flat()];
    },
  };
}

function histogram({ of: [[, found]] }) {
  if (found.buckets.length === 0) return null;
  const lower = (edge) => edge / 10 ** (1 / BUCKETS_PER_DECADE);
  const whole = found.buckets.reduce((sum, [, count]) => sum + count, 0);
  const ms = UNITS.milliseconds.show;
  return {
    height: 270,
    legend: [],
    headings: ["up to", "deliveries", "share"],
    rows: () => found.buckets.map(([edge, count]) => [ms(edge), decimal(count), percent(count / whole)]),
    draw(frame) {
      const [first, last] = [found.buckets[0][0], found.buckets.at(-1)[0]];
      const x = logarithmic("milliseconds", lower(first), last, frame.left, frame.right);
      const highest = most(found.buckets.map(([, count]) => count)) / whole;
      const y = linear("share", highest, frame.floor, frame.top);
      const bars = found.buckets.map(([edge, count]) => {
        const [from, to] = [x.at(lower(edge)), x.at(edge)];
        // At least one pixel, so that one value in a million is visible.
        const height = Math.max(1, frame.floor - y.at(count / whole));
        const size = { x: from, y: frame.floor - height, width: Math.max(0.5, to - from - 0.5), height };
        const title = `${ms(lower(edge))} to ${ms(edge)}: ${decimal(count)}`;
        return svg("rect", { class: "bar", ...size }, svg("title", {}, title));
      });
      const free = [0, 0, 0];
      const marks = ["p50", "p99", "max"].flatMap((name) => {
        const at = x.at(found[name]);
        const words = `${name} ${ms(found[name])}`;
        const width = widthOf(words);
        const from = at + 4 + width > frame.width ? at - 4 - width : at + 4;
        // Labels that would overlap move one line down.
        const line = Math.max(0, free.findIndex((end) => end <= from));
        free[line] = from + width;
        const label = text(from, frame.top + 10 + line * 15, words, "start", "strong");
        return [rule("marker", at, frame.top, at, frame.floor), label];
      });
      return [...axes(frame, x, y), ...bars, ...marks];
    },
  };
}

function percentiles({ of }) {
  const all = of.filter(([, found]) => found.buckets.length > 0);
  if (all.length === 0) return null;
  const tail = ({ buckets, min, max }) => {
    const whole = buckets.reduce((sum, [, count]) => sum + count, 0);
    let left = whole;
    const points = buckets.map(([edge, count]) => [(left -= count) / whole, Math.min(edge, max)]);
    // Nothing lies above the maximum; it is drawn where a single value is left.
    return [[1, min], ...points.slice(0, -1), [1 / whole, max]];
  };
  const names = ["p50", "p90", "p99", "p999", "max"];
  return {
    height: 270,
    legend: all.map(([name]) => name),
    headings: ["of", "p50", "p90", "p99", "p99.9", "max"],
    rows: () => all.map(([of, found]) => [of, ...names.map((name) => shown("milliseconds", found[name]))]),
    draw(frame) {
      const x = rarity(most(all.map(([, found]) => found.count)), frame.left, frame.right);
      const [min, max] = [least(all.map(([, { min }]) => min)), most(all.map(([, { max }]) => max))];
      const y = logarithmic("milliseconds", Math.max(1e-3, min), max, frame.floor, frame.top);
      const curves = all.map(([, found], style) =>
        path(tail(found).map(([above, ms]) => [x.at(above), y.at(ms)]), style));
      return [...axes(frame, x, y), ...curves.reverse().flat()];
    },
  };
}

/** Rows on one logarithmic axis: a whisker between two values, a bar, dots, and words beside. */
function rows(unit, legend, headings, all, numbers) {
  const values = all.flatMap(({ dots, whisker }) => [...dots, ...whisker]).filter((value) => value > 0);
  if (values.length === 0) return null;
  const longest = (key) => most(all.map((row) => widthOf(row[key])));
  const fitting = (name, width) => {
    const letters = Math.floor(width / LETTER);
    return name.length <= letters ? name : `${name.slice(0, letters - 1)}…`;
  };
  return {
    height: (width) => 54 + all.length * (width < NARROW ? 54 : 34),
    margins: (width) =>
      width < NARROW ? [10, 10] : [Math.min(longest("name") + 20, width * 0.42), longest("words") + 20],
    legend,
    headings,
    rows: () => numbers,
    draw(frame) {
      const isNarrow = frame.width < NARROW;
      const x = logarithmic(unit, least(values), most(values), frame.left, frame.right);
      const drawn = all.map(({ name, words, whisker, bar, dots }, nth) => {
        const middle = isNarrow ? frame.top + 54 * nth + 40 : frame.top + 34 * nth + 17;
        const [from, to] = whisker.map(x.at);
        const names = isNarrow
          ? [text(0, middle - 25, fitting(name, frame.width), "start", "strong"),
            text(0, middle - 10, words, "start", "strong")]
          : [text(frame.left - 10, middle + 4, fitting(name, frame.left - 12), "end", "strong"),
            text(frame.right + 12, middle + 4, words, "start", "strong")];
        const [start, end] = (bar ?? []).map(x.at);
        const size = { x: start, y: middle - 6, width: Math.max(1, end - start), height: 12, rx: 3 };
        const points = dots.map((value, style) => value > 0 && dot(x.at(value), middle, style, 5));
        return [
          ...names,
          whisker.every((value) => value > 0) && rule("whisker", from, middle, to, middle),
          bar && svg("rect", { class: "range", ...size }),
          ...points.reverse(),
        ];
      });
      return [...axes(frame, x), ...drawn.flat()];
    },
  };
}

const ranges = ({ of }) => {
  const ms = UNITS.milliseconds.show;
  const all = of.map(([name, { min, p50, p99, max }]) => ({
    name, words: [p50, p99, max].map(ms).join(" / "), whisker: [min, max], bar: [p50, p99], dots: [p50],
  }));
  const headings = ["latency of", "values", "min", "p50", "p90", "p99", "max"];
  const numbers = of.map(([name, { count, min, p50, p90, p99, max }]) =>
    [name, decimal(count), ...[min, p50, p90, p99, max].map(ms)]);
  return rows("milliseconds", [], headings, all, numbers);
};

const pairs = ({ unit, names, rows: all }) => {
  const drawn = all.map(([name, ...values]) => ({
    name, words: values.map((value) => shown(unit, value)).join(" / "),
    whisker: values.map((value) => value ?? 0), dots: values,
  }));
  const numbers = all.map(([name, ...values]) => [name, ...values.map((value) => shown(unit, value))]);
  return rows(unit, names, ["measurement", ...names], drawn, numbers);
};

const CHARTS = { lines, histogram, percentiles, ranges, pairs };

function figure(data) {
  const chart = CHARTS[data.kind](data);
  if (!chart) return null;
  const sample = (style) =>
    svg("svg", { width: 26, height: 10 }, svg("line", { class: `line k${style % STYLES}`, x1: 1, y1: 5, x2: 25, y2: 5 }));
  const legend = chart.legend.length > 1 && html("ul", { class: "legend", "aria-hidden": "true" },
    chart.legend.map((name, style) => html("li", {}, sample(style), name)));
  const listed = chart.legend.length > 0 ? `Shown: ${chart.legend.join(", ")}. ` : "";
  const details = html("details", {}, html("summary", {}, "The numbers"));
  const fill = () => details.append(table({ headings: chart.headings, rows: chart.rows() }, `Numbers: ${data.title}`));
  details.addEventListener("toggle", fill, { once: true });
  const place = html("div", {});
  const made = html("figure", { id: data.id },
    html("figcaption", {}, html("h3", {}, data.title), data.note && html("p", {}, data.note)),
    legend, place, details);
  let drawn = 0;
  const draw = () => {
    const width = place.clientWidth;
    if (width === 0 || width === drawn) return;
    drawn = width;
    const height = typeof chart.height === "number" ? chart.height : chart.height(width);
    const label = `${data.title}. ${listed}The numbers are in the table below the chart.`;
    place.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      chart.draw(area(width, height, ...(chart.margins?.(width) ?? [])))));
  };
  drawings.set(place, draw);
  return made;
}

// The parts of a section.
const cell = (kind, attributes, value) => {
  const { text: words, tone } = typeof value === "string" ? { text: value, tone: "plain" } : value;
  return html(kind, tone === "plain" ? attributes : { ...attributes, class: tone }, words);
};
const scrolling = (label, content) =>
  html("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, content);

function table({ headings, rows }, label) {
  const head = headings.map((heading) => html("th", { scope: "col" }, heading));
  const body = rows.map(([first, ...others]) =>
    html("tr", {}, cell("th", { scope: "row" }, first), others.map((value) => cell("td", {}, value))));
  return scrolling(label, html("table", {}, html("thead", {}, html("tr", {}, head)), html("tbody", {}, body)));
}

const facts = (rows) => html("table", { class: "facts" }, html("tbody", {}, rows.map(([name, value]) =>
  html("tr", {}, html("th", { scope: "row" }, name), html("td", {}, value)))));

const PARTS = {
  text: (words) => html("p", {}, words),
  note: (words) => html("p", { class: "muted" }, words),
  facts,
  details: facts,
  listing: (words) => html("pre", {}, words),
  warnings: (all) => all.length > 0 && html("div", { class: "warnings" },
    html("strong", {}, "Warnings"), html("ul", {}, all.map((words) => html("li", {}, words)))),
  tiles: (all) => html("dl", { class: "tiles" }, all.map(({ name, value, more }) =>
    html("div", {}, html("dt", {}, name), html("dd", { class: value.tone }, value.text, html("small", {}, more))))),
  charts: (all) => {
    const figures = all.map(figure).filter(Boolean);
    return figures.length > 0 && html("div", { class: "charts" }, figures);
  },
  table: (data) => data.rows.length > 0 && [
    data.title && html("h3", {}, data.title), table(data, `Table: ${data.title || data.headings[0]}`)].filter(Boolean),
  folded: (data) => data.rows.length > 0 && html("details", {},
    html("summary", {}, data.title), table(data, `Table: ${data.title}`)),
};

function section(kind, heading, { title, subtitle, verdict, parts }) {
  const content = parts.flatMap((part) => Object.entries(part).flatMap(([name, value]) => PARTS[name](value)));
  const made = content.filter(Boolean);
  if (kind === "section" && made.length === 0) return null;
  const words = verdict && html("p", { class: `verdict ${verdict.tone}` }, verdict.text);
  return html(kind, {}, html(heading, {}, title), subtitle && html("p", { class: "muted" }, subtitle), words, made);
}

const drawings = new Map();
document.title = page.head.title;
document.querySelector("main").replaceChildren(section("header", "h1", page.head),
  ...page.sections.map((data) => section("section", "h2", data)).filter(Boolean));
document.querySelector("footer").textContent = `Made by ${page.made_by}.`;
for (const draw of drawings.values()) draw();
const observer = new ResizeObserver((changes) => changes.forEach(({ target }) => drawings.get(target)()));
for (const place of drawings.keys()) observer.observe(place);
