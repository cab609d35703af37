"""The charts of the page and their contents."""

from charts import bars
from charts.words import decimal, hundredths, size_name, whole

from .load import SIZES
from .results import CONNECT_RATE, MEMORY, OWN, STORM, TRANSPORTS, fanout_figure

SMALL, LARGE = SIZES
BOTH = [size_name(SMALL), size_name(LARGE)]

# Name -> title, which direction is better, figures (a bar each), their labels, their format.
CHOSEN = {
    "fanout": (
        "Fan-out: deliveries per second",
        "more is better",
        [fanout_figure(size, "rate", more_is_better=True) for size in SIZES],
        BOTH,
        whole,
    ),
    "cpu": (
        "Processor time of the server per delivery, µs",
        "less is better",
        [fanout_figure(size, "cpu_us") for size in SIZES],
        BOTH,
        decimal,
    ),
    "machine": (
        "Processor time of the whole machine per delivery, both sides, µs",
        "less is better",
        [fanout_figure(size, "machine_cpu_us") for size in SIZES],
        BOTH,
        decimal,
    ),
    "latency": (
        f"From publish to delivery, {BOTH[0]}, ms",
        "less is better",
        [fanout_figure(SMALL, "p50_ms"), fanout_figure(SMALL, "last_ms")],
        ["median", "last"],
        decimal,
    ),
    "memory": (
        "Memory of the server per connection, bytes",
        "less is better, logarithmic",
        [MEMORY],
        [],
        whole,
    ),
    "connect": (
        "Connects per second until all clients are subscribed",
        "more is better",
        [CONNECT_RATE],
        [],
        whole,
    ),
    "storm": (
        "All connections lost at once: seconds until all are back",
        "less is better",
        [STORM],
        [],
        hundredths,
    ),
}


def drawn(results):
    """Name -> title and SVG of each chart."""
    where = f"{results.data['connections']:,} connections, both sides on one machine"
    pictures = {}
    for name, (title, better, figures, series, show) in CHOSEN.items():
        lines = lines_of(results, figures)
        # A chart without measurements is left out.
        if lines:
            words = f"{better}; {where}"
            picture = bars.bars(title, words, lines, show, series, is_log=name == "memory")
            pictures[name] = title, picture
    return pictures


def lines_of(results, figures):
    """The rows by transport, without transports that have no measurement."""
    lines = []
    for transport in results.transports():
        rows = []
        for peer in results.names(transport):
            found = [results.spread(peer, transport, figure) for figure in figures]
            measured = [each and (each.median, each.low, each.high) for each in found]
            rows.append(bars.Row(results.title(peer), measured, is_own=peer == OWN))
        if any(bar for row in rows for bar in row.bars):
            lines += [bars.Heading(TRANSPORTS[transport]), *rows]
    return lines
