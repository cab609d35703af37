"""Charts as SVG: bars and ranges on one axis, readable on a light and on a dark page.

A browser that shows the picture asks its reader's system for the colours, so that one file does for
both. Nothing is drawn with a library: a chart is text, rectangles and lines.
"""

import math
from dataclasses import dataclass
from html import escape

WIDTH = 860
LABEL = 210
VALUE = 110
TOP = 58
BOTTOM = 34
BAR = 13
BAR_GAP = 3
GROUP_GAP = 12
HEADING = 26
TICKS = 5

STYLE = """
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #3d444d }
.title { font-size: 16px; font-weight: 600; fill: #1f2328 }
.heading { font-weight: 600; fill: #1f2328 }
.small { font-size: 11px; fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.whisker { stroke: #1f2328; stroke-width: 1.2; opacity: .55 }
.a { fill: #9aa7b5 } .b { fill: #c3ccd5 }
.own.a { fill: #0b6e4f } .own.b { fill: #4fb286 }
@media (prefers-color-scheme: dark) {
  text { fill: #c3ccd6 } .title, .heading { fill: #f0f6fc } .small { fill: #9198a1 }
  .grid { stroke: #3d444d } .whisker { stroke: #f0f6fc }
  .a { fill: #6b7683 } .b { fill: #474f59 }
  .own.a { fill: #3fb68b } .own.b { fill: #1f7a5a }
}
"""


@dataclass
class Row:
    """A line of a chart: one bar for each series, as (median, low, high) or None."""

    label: str
    bars: list
    is_own: bool = False
    note: str = ""


@dataclass
class Heading:
    """A line that names the rows below it."""

    label: str


class Axis:
    """From values to places; the logarithm where values differ by orders of magnitude."""

    def __init__(self, values, is_log):
        self.is_log = is_log
        values = [value for value in values if value and value > 0] or [1]
        if is_log:
            self.low = 10 ** math.floor(math.log10(min(values)))
            self.high = 10 ** math.ceil(math.log10(max(values) * 1.01))
        else:
            step = nice(max(values) / TICKS)
            self.low, self.high = 0, step * math.ceil(max(values) / step)
            self.step = step

    def x(self, value):
        room = WIDTH - LABEL - VALUE
        if self.is_log:
            value = max(value, self.low)
            whole = math.log(self.high / self.low)
            return LABEL + room * math.log(value / self.low) / whole
        return LABEL + room * max(0, value) / self.high

    def ticks(self):
        if self.is_log:
            decades = round(math.log10(self.high / self.low))
            return [self.low * 10**decade for decade in range(decades + 1)]
        count = round(self.high / self.step)
        return [self.step * number for number in range(count + 1)]


def nice(step):
    """The next larger of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(step))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= step * 0.999)


def bars(title, subtitle, lines, show, series=(), is_log=False):
    """A chart of horizontal bars. `show` writes a value; `series` names several bars of a row."""
    rows = [line for line in lines if isinstance(line, Row)]
    ends = [end for row in rows for bar in row.bars if bar for end in bar]
    axis = Axis(ends, is_log)
    parts, y = [], TOP
    for line in lines:
        if isinstance(line, Heading):
            parts.append(text(0, y + 14, line.label, "heading"))
            y += HEADING
            continue
        height = len(line.bars) * (BAR + BAR_GAP) - BAR_GAP
        parts.append(text(LABEL - 10, y + height / 2 + 4.5, line.label, "label", "end"))
        for number, bar in enumerate(line.bars):
            parts += bar_of(axis, bar, y + number * (BAR + BAR_GAP), line, "ab"[number], show)
        y += height + GROUP_GAP
    return picture(title, subtitle, [*grid(axis, y, show), *parts], y + BOTTOM, series)


def bar_of(axis, bar, y, row, kind, show):
    if not bar:
        note = row.note or "not measured"
        return [text(LABEL + 6, y + 11, note, "small")]
    median, low, high = bar
    width = max(1.5, axis.x(median) - LABEL)
    own = " own" if row.is_own else ""
    middle = y + BAR / 2
    parts = [f'<rect class="{kind}{own}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}"/>']
    if high > low:
        ends = f'x1="{axis.x(low):.1f}" x2="{axis.x(high):.1f}" y1="{middle}" y2="{middle}"'
        parts.append(f'<line class="whisker" {ends}/>')
    after = max(axis.x(median), axis.x(high)) + 6
    return [*parts, text(after, y + 11, show(median), "value")]


def grid(axis, bottom, show):
    parts = []
    for tick in axis.ticks():
        x = f"{axis.x(tick):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 16, show(tick), "small", "middle"))
    return parts


def picture(title, subtitle, parts, height, series):
    head = [text(0, 18, title, "title"), text(0, 37, subtitle, "small")]
    x = WIDTH - 12
    for kind, name in reversed(list(zip("ab", series, strict=False))):
        head.append(text(x, 18, name, "small", "end"))
        x -= 20 + 6.2 * len(name)
        head.append(f'<rect class="{kind} own" x="{x}" y="8" width="12" height="12"/>')
        x -= 16
    size = f'viewBox="-8 -4 {WIDTH + 16} {height:.0f}" width="{WIDTH + 16}" height="{height:.0f}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    style = f"<title>{escape(title)}</title>\n<style>{STYLE}</style>"
    return "\n".join([opening, style, *head, *parts, "</svg>", ""])


def text(x, y, words, kind, anchor="start"):
    place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'
