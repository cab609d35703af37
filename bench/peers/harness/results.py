"""All runs of a comparison as saved in JSON, and their medians and ratios."""

import json
import statistics
from dataclasses import dataclass

VERSION = 1
# The server that the others are compared with.
OWN = "throng"
TRANSPORTS = {
    "websocket": "WebSocket",
    "sse": "SSE",
    "stream": "Chunked stream",
    "long-poll": "Long-poll",
}


@dataclass(frozen=True)
class Figure:
    """A measurement of a run, by its path, and whether more is better."""

    path: tuple
    more_is_better: bool = False

    def of(self, run):
        value = run.get("figures")
        for key in self.path:
            value = value and value.get(key)
        return value


def fanout_figure(size, name, more_is_better=False):
    return Figure(("fanout", str(size), name), more_is_better)


MEMORY = Figure(("memory_bytes",))
EMPTY = Figure(("empty_bytes",))
MEMORY_AFTER = Figure(("memory_after_bytes",))
CONNECT_RATE = Figure(("connect_rate",), more_is_better=True)
CONNECT_P99 = Figure(("connect_p99_ms",))
STORM = Figure(("storm_s",))
STORM_RATIO = Figure(("storm_ratio",))
STORM_SHARE = Figure(("storm_share",), more_is_better=True)


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of the repeats."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values):
        values = [value for value in values if value is not None]
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values))


class Results:
    """The comparison; `data` is written to JSON."""

    def __init__(self, data):
        if data.get("version") != VERSION:
            found = data.get("version")
            raise ValueError(f"version {found} of the results; this reads {VERSION}: run it again")
        self.data = data

    @property
    def is_tls(self):
        """Whether servers and clients spoke TLS. Older results do not say: they did not."""
        return self.data.get("tls", False)

    @property
    def stem(self):
        """The name of the page and of its measurements, and how the names of its charts begin."""
        return "peers-tls" if self.is_tls else "peers"

    @classmethod
    def read(cls, path):
        return cls(json.loads(path.read_text()))

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.data, indent=1) + "\n")

    def runs(self, peer, transport):
        return [
            run
            for run in self.data["runs"]
            if run["peer"] == peer and run["transport"] == transport
        ]

    def names(self, transport):
        """The peers that were run with a transport, Throng first."""
        seen = dict.fromkeys(r["peer"] for r in self.data["runs"] if r["transport"] == transport)
        return sorted(seen, key=lambda peer: peer != OWN)

    def transports(self):
        """The transports with at least one run."""
        return [transport for transport in TRANSPORTS if self.names(transport)]

    def title(self, peer):
        return self.data["peers"].get(peer, {}).get("name", peer)

    def spread(self, peer, transport, figure):
        return Spread.of(figure.of(run) for run in self.runs(peer, transport))

    def ratio(self, peer, transport, figure):
        """Throng's value divided by the peer's, by repeat."""
        own = {run["repeat"]: figure.of(run) for run in self.runs(OWN, transport)}
        ratios = []
        for run in self.runs(peer, transport):
            ours, theirs = own.get(run["repeat"]), figure.of(run)
            if ours is not None and theirs:
                ratios.append(ours / theirs)
        return Spread.of(ratios)

    def is_ahead(self, peer, transport, figure):
        """Whether the peer's median is better than ours."""
        ours = self.spread(OWN, transport, figure)
        theirs = self.spread(peer, transport, figure)
        if peer == OWN or ours is None or theirs is None:
            return False
        if figure.more_is_better:
            return theirs.median > ours.median
        return theirs.median < ours.median

    def is_clear(self, peer, transport, figure):
        """Whether the runs of the peer and of Throng do not overlap."""
        ours = self.spread(OWN, transport, figure)
        theirs = self.spread(peer, transport, figure)
        return theirs.low > ours.high or theirs.high < ours.low

    def measured(self):
        """Runs that have figures."""
        return [run for run in self.data["runs"] if "figures" in run]

    def expected(self):
        """The total of expected deliveries."""
        return sum(run["figures"]["expected"] for run in self.measured())

    def failures(self):
        """Runs that were not measured, with the reason and the end of the log."""
        return [run for run in self.data["runs"] if "failure" in run]

    def faults(self):
        """Runs with lost, duplicated or reordered deliveries, or failures."""
        names = ["lost", "duplicated", "reordered", "failures"]
        return [run for run in self.measured() if any(run["figures"][name] for name in names)]
