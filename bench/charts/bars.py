"""Bars and ranges on one axis, in labelled rows."""

from dataclasses import dataclass

from .axis import Axis
from .picture import TOP, WIDTH, picture, text

LABEL = 210
VALUE = 110
BOTTOM = 34
BAR = 13
BAR_GAP = 3
GROUP_GAP = 12
HEADING = 26


@dataclass
class Row:
    """A row of a chart: one bar for each series, as (median, low, high) or None."""

    label: str
    bars: list
    is_own: bool = False
    note: str = ""


@dataclass
class Heading:
    """A heading above rows."""

    label: str


def bars(title, subtitle, lines, show, series=(), is_log=False):
    """A chart of horizontal bars. `show` formats a value; `series` names the bars of a row."""
    rows = [line for line in lines if isinstance(line, Row)]
    ends = [end for row in rows for bar in row.bars if bar for end in bar]
    axis = Axis(ends, is_log, LABEL, WIDTH - VALUE)
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
    parts = [*legend(series), *grid(axis, y, show), *parts]
    return picture(title, subtitle, parts, y + BOTTOM)


def bar_of(axis, bar, y, row, kind, show):
    if not bar:
        note = row.note or "not measured"
        return [text(LABEL + 6, y + 11, note, "small")]
    median, low, high = bar
    width = max(1.5, axis.at(median) - LABEL)
    own = " own" if row.is_own else ""
    middle = y + BAR / 2
    parts = [f'<rect class="{kind}{own}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}"/>']
    if high > low:
        ends = f'x1="{axis.at(low):.1f}" x2="{axis.at(high):.1f}" y1="{middle}" y2="{middle}"'
        parts.append(f'<line class="whisker" {ends}/>')
    after = max(axis.at(median), axis.at(high)) + 6
    return [*parts, text(after, y + 11, show(median), "value")]


def grid(axis, bottom, show):
    parts = []
    for tick in axis.ticks():
        x = f"{axis.at(tick):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 16, show(tick), "small", "middle"))
    return parts


def legend(series):
    """Names and colours of the bars of a row, at the right of the title."""
    parts, x = [], WIDTH - 12
    for kind, name in reversed(list(zip("ab", series, strict=False))):
        parts.append(text(x, 18, name, "small", "end"))
        x -= 20 + 6.2 * len(name)
        parts.append(f'<rect class="{kind} own" x="{x}" y="8" width="12" height="12"/>')
        x -= 16
    return parts
