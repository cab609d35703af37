"""Line charts stacked over one logarithmic size axis, each with a value axis from zero."""

from collections.abc import Callable
from dataclasses import dataclass

from .axis import Axis
from .picture import STYLE, TOP, WIDTH, picture, text

LEFT = 64
# Half of the widest label below the axis.
RIGHT = 30
# The title, its note, and the label of a value at the top.
NAME = 56
PLOT = 130
BELOW = 44
TICKS = 2
DOT = 3.5

CURVES = """
.curve { fill: none; stroke: #0b6e4f; stroke-width: 2 } .dot { fill: #0b6e4f }
@media (prefers-color-scheme: dark) { .curve { stroke: #3fb68b } .dot { fill: #3fb68b } }
"""


@dataclass
class Curve:
    """A curve: its title, a note, (size, value) pairs, the format of a value."""

    name: str
    note: str
    points: list
    show: Callable


def curves(title, subtitle, across, drawn):
    """Draws the curves; `across` labels the size axis."""
    sizes = [size for curve in drawn for size, _ in curve.points]
    x = Axis(sizes, True, LEFT, WIDTH - RIGHT)
    parts, top = [], TOP
    for curve in drawn:
        parts += [text(0, top + 14, curve.name, "heading"), text(0, top + 30, curve.note, "small")]
        values = [value for _, value in curve.points]
        bottom = top + NAME + PLOT
        y = Axis(values, False, bottom, top + NAME, TICKS)
        parts += grid(x, y, bottom, across)
        parts += line(x, y, curve)
        top = bottom + BELOW
    return picture(title, subtitle, parts, top, STYLE + CURVES)


def grid(x, y, bottom, across):
    """Horizontal grid lines with their values, sizes below, and the axis label."""
    parts = []
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(
            f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(text(x.start - 8, f"{at + 4:.1f}", f"{tick:,g}", "small", "end"))
    for tick in x.ticks():
        at = f"{x.at(tick):.1f}"
        parts.append(
            f'<line class="grid" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}"/>'
        )
        parts.append(text(at, bottom + 17, f"{tick:,.0f}", "small", "middle"))
    middle = f"{(x.start + x.end) / 2:.1f}"
    return [*parts, text(middle, bottom + 32, across, "small", "middle")]


def line(x, y, curve):
    """A line through all points, each labelled with its value."""
    places = [(x.at(size), y.at(value), value) for size, value in curve.points]
    through = " ".join(f"{across:.1f},{up:.1f}" for across, up, _ in places)
    parts = [f'<polyline class="curve" points="{through}"/>']
    for number, (across, up, value) in enumerate(places):
        parts.append(f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="{DOT}"/>')
        # The first label starts at its point, clear of the axis labels.
        start, anchor = (across - DOT, "start") if number == 0 else (across, "middle")
        parts.append(text(f"{start:.1f}", f"{up - 8:.1f}", curve.show(value), "value", anchor))
    return parts
