"""The page of a comparison: `page.template`, filled in with tables, charts, and what went wrong."""

import os
from pathlib import Path
from string import Template

from charts.words import ABSENT, decimal, hundredths, mebibytes, percent, size_name, whole

from .load import SIZES, STORM_RATE, WARM_UP
from .pictures import drawn
from .results import (
    CONNECT_P99,
    CONNECT_RATE,
    EMPTY,
    MEMORY,
    MEMORY_AFTER,
    OWN,
    STORM,
    STORM_RATIO,
    STORM_SHARE,
    TRANSPORTS,
    fanout_figure,
)

PEERS = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).with_name("page.template")
AHEAD = "▲"
# What differs between the two pages.
PLAIN = {
    "title": "Peers side by side",
    "intro": "Throng and other push servers under the same load, from the same generator. "
    "[Over TLS](peers-tls.md), the same.",
    "how": "",
    "unmeasured": "TLS, which has [a page of its own](peers-tls.md); compression, access checks and "
    "several channels. All\n  servers can do what was measured: one large channel of plain connections.",
}
OVER_TLS = {
    "title": "Peers over TLS",
    "intro": "Throng and other push servers under the same load over TLS, from the same generator. "
    "[Plain connections](peers.md) have a\npage of their own.",
    "how": "* **Each server speaks TLS itself**, with a certificate for a key on P-256 (ECDSA). Clients "
    "accept any certificate, offer TLS 1.3\n  and 1.2, and do not resume sessions. Messages are "
    "published over TLS, too.\n",
    "unmeasured": "Resumed sessions, certificates with RSA keys, compression, access checks and several "
    "channels.",
}
NO_FAULTS = "None: every message was delivered once and in order, and no client failed to connect."
SETTINGS = [
    "net.core.somaxconn",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_congestion_control",
]


def write(results, folder):
    """Writes the page and its charts below `folder`; returns the page's path."""
    page, images = folder / "benchmarks" / f"{results.stem}.md", folder / "images"
    page.parent.mkdir(parents=True, exist_ok=True)
    images.mkdir(parents=True, exist_ok=True)
    pictures = drawn(results)
    for name, (_, picture) in pictures.items():
        (images / f"{results.stem}-{name}.svg").write_text(picture)
    shown = [f"![{title}](../images/{results.stem}-{name}.svg)" for name, (title, _) in pictures.items()]
    tables = [part for transport in results.transports() for part in tables_of(results, transport)]
    data = results.data
    page.write_text(
        Template(TEMPLATE.read_text()).substitute(
            **(OVER_TLS if results.is_tls else PLAIN),
            commands=commands(results),
            stem=results.stem,
            machine=machine(data["environment"]),
            note=f"\n\n{note}" if (note := data.get("note")) else "",
            throng=data["environment"].get("throng", ""),
            date=data["started"][:10],
            connections=f"{data['connections']:,}",
            base=f"{data['base']:,}",
            warm_up=WARM_UP,
            messages=data["messages"],
            small=size_name(SIZES[0]),
            large=size_name(SIZES[1]),
            interval=f"{data['interval_s'] * 1000:.0f}",
            storm_rate=STORM_RATE,
            cell=what_a_cell_is(data["repeats"]),
            ahead_mark=AHEAD,
            versions=versions(results, page),
            charts="\n\n".join(shown),
            ahead=ahead(results),
            tables="\n\n".join(tables),
            wrong=wrong(results),
            expected=f"{results.expected():,}",
            bottlenecks=bottlenecks(results),
        )
    )
    return page


def commands(results):
    """The commands that write the page."""
    flags, json = (" --tls", f" docs/benchmarks/{results.stem}.json") if results.is_tls else ("", "")
    lines = [
        (f"bench/peers/run --to docs{flags}", "measures all of them and writes this page"),
        (f"bench/peers/run ws bun --repeats 1{flags}", "measures some; see `bench/peers/run --help`"),
        (f"bench/peers/draw{json}", "writes this page again from the saved measurements"),
    ]
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"{command:<{width}}  # {comment}" for command, comment in lines)


def what_a_cell_is(repeats):
    if repeats == 1:
        return "one run"
    return f"the median of {repeats} runs, with the lowest and highest in parentheses"


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(found, show):
    """The median, and the lowest and highest if they differ."""
    if found is None:
        return ABSENT
    ends = show(found.low), show(found.high)
    return show(found.median) + (f" ({ends[0]}–{ends[1]})" if ends[0] != ends[1] else "")


def cell(results, peer, transport, figure, show):
    """A figure, with a mark where the peer is ahead of Throng."""
    # A server that connects slowly has a good ratio without merit.
    is_marked = figure != STORM_RATIO and results.is_ahead(peer, transport, figure)
    text = spread(results.spread(peer, transport, figure), show)
    return f"{text} {AHEAD}" if is_marked else text


def ratio(results, peer, transport, figure):
    return ABSENT if peer == OWN else spread(results.ratio(peer, transport, figure), hundredths)


def tables_of(results, transport):
    """A transport's heading and its tables."""
    yield f"### {TRANSPORTS[transport]}"
    yield connections_table(results, transport)
    for size in SIZES:
        yield fanout_table(results, transport, size)


def connections_table(results, transport):
    peers = results.names(transport)
    columns = [
        ("empty, MiB", EMPTY, mebibytes),
        ("memory, B", MEMORY, whole),
        ("after broadcasts, B", MEMORY_AFTER, whole),
        ("connects/s", CONNECT_RATE, whole),
        ("connect p99, ms", CONNECT_P99, decimal),
        ("all back after, s", STORM, hundredths),
        ("× first connect", STORM_RATIO, hundredths),
        ("of the missed", STORM_SHARE, percent),
    ]
    known = [
        (head, figure, show)
        for head, figure, show in columns
        if any(results.spread(peer, transport, figure) for peer in peers)
    ]
    rows = [
        [
            results.title(peer),
            *(cell(results, peer, transport, figure, show) for _, figure, show in known),
        ]
        for peer in peers
    ]
    return table(["connections", *(head for head, _, _ in known)], rows)


def fanout_table(results, transport, size):
    peers = results.names(transport)
    # Columns with a ratio beside them.
    compared = [
        ("deliveries/s", fanout_figure(size, "rate", more_is_better=True), whole),
        ("CPU each, µs", fanout_figure(size, "cpu_us"), decimal),
        ("machine CPU each, µs", fanout_figure(size, "machine_cpu_us"), decimal),
    ]
    # Results of an earlier version lack some measurements: leave out those columns.
    compared = [
        column
        for column in compared
        if any(results.spread(peer, transport, column[1]) for peer in peers)
    ]
    latencies = [fanout_figure(size, name) for name in ["p50_ms", "p99_ms", "last_ms"]]
    heads = [f"fan-out, {size_name(size)}"]
    for head, _, _ in compared:
        heads += [head, "Throng ÷ it"]
    heads += ["p50, ms", "p99, ms", "last, ms"]
    rows = []
    for peer in peers:
        row = [results.title(peer)]
        for _, figure, show in compared:
            row += [
                cell(results, peer, transport, figure, show),
                ratio(results, peer, transport, figure),
            ]
        row += [cell(results, peer, transport, figure, decimal) for figure in latencies]
        rows.append(row)
    return table(heads, rows)


def versions(results, page):
    rows = []
    for name, facts in results.data["peers"].items():
        folder = PEERS / name
        # A folder outside the repository has no link.
        place = os.path.relpath(folder, page.parent) if folder.exists() else None
        title = f"[{facts['name']}]({place})" if place else facts["name"]
        rows.append([title, facts["version"], facts["configuration"]])
    return table(["server", "version", "configuration"], rows)


def compared():
    """Compared measurements: the description, the figure, its format and unit."""
    yield "memory when empty", EMPTY, mebibytes, " MiB"
    yield "memory per connection", MEMORY, whole, " B"
    yield "memory after broadcasts", MEMORY_AFTER, whole, " B"
    yield "connects per second", CONNECT_RATE, whole, ""
    yield "connect p99", CONNECT_P99, decimal, " ms"
    yield "all clients back after a reset", STORM, hundredths, " s"
    yield "share of missed messages recovered", STORM_SHARE, percent, ""
    for size in SIZES:
        name = size_name(size)
        rate = fanout_figure(size, "rate", more_is_better=True)
        yield f"deliveries per second, {name} messages", rate, whole, ""
        yield f"CPU per delivery, {name} messages", fanout_figure(size, "cpu_us"), decimal, " µs"
        machine = fanout_figure(size, "machine_cpu_us")
        yield f"machine CPU per delivery, {name} messages", machine, decimal, " µs"
        for point in ["p50", "p99", "last"]:
            yield f"{point}, {name} messages", fanout_figure(size, f"{point}_ms"), decimal, " ms"


def ahead(results):
    """Each figure in which a peer is ahead of Throng, in words."""
    lines = []
    for transport in results.transports():
        for peer in results.names(transport):
            for words, figure, show, unit in compared():
                if not results.is_ahead(peer, transport, figure):
                    continue
                theirs = show(results.spread(peer, transport, figure).median)
                ours = show(results.spread(OWN, transport, figure).median)
                doubt = "" if results.is_clear(peer, transport, figure) else " (the runs overlap)"
                who = f"{results.title(peer)}, {TRANSPORTS[transport]}"
                lines.append(f"* {who}, {words}: {theirs}{unit}, Throng {ours}{unit}{doubt}")
    return "\n".join(lines) or "No peer has a better median than Throng."


def wrong(results):
    """Every run that failed, and every lost, duplicated or reordered delivery."""
    lines = []
    for run in results.failures():
        lines.append(f"* {where(results, run)} was not measured: {run['failure']}")
    for run in results.faults():
        figures = run["figures"]
        names = [name for name in ["lost", "duplicated", "reordered"] if figures[name]]
        counts = [f"{figures[name]:,} {name}" for name in names]
        counts += [f"{count:,} × {reason}" for reason, count in figures["failures"].items()]
        of = f"of {figures['expected']:,} deliveries"
        lines.append(f"* {where(results, run)}, {of}: {', '.join(counts)}")
    return "\n".join(lines) or NO_FAULTS


def where(results, run):
    """Names a run; one whose server did not start has no transport."""
    words = results.title(run["peer"])
    if run["transport"]:
        words += f" over {TRANSPORTS[run['transport']]}, repeat {run['repeat']}"
    return words


def bottlenecks(results):
    runs = results.measured()
    said = "this program was the bottleneck"
    doubted = [run for run in runs if any(said in words for words in run["figures"]["warnings"])]
    return f"{len(doubted)} of {len(runs)} runs"


def machine(found):
    """The machine and its relevant settings."""
    if not found:
        return "Nothing was measured"
    memory = f"{found['memory_bytes'] / 2**30:.0f} GiB"
    settings = [f"`{name}` {found['sysctl'][name]}" for name in SETTINGS if name in found["sysctl"]]
    parts = [f"Linux {found['kernel']}", f"{found['cores']} cores ({found['processor']})", memory]
    parts += [f"{found['descriptors_max']:,} descriptors per process", *settings]
    return f"On {', '.join(parts)}"
