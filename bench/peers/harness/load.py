"""The load, the same for all peers: a plan of `throng flood`, and the evaluation of its report."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .servers import Failure

SIZES = [64, 1024]
# Memory is the slope between two numbers of connections; the first is this fraction of the second.
BASE_PART = 15
# Messages before the measured ones.
WARM_UP = 2
# The interval is long enough for a slower server to deliver a message before the next is due.
DELIVERIES_PER_SECOND_MIN = 20_000
INTERVAL_S_MIN = 0.25
# Messages per second while all clients reconnect.
STORM_RATE = 2
STORM_SECONDS_MAX = 60
RUN_SECONDS_MAX = 240
# A long-poll gets no response before the first message: the generator counts the client as
# subscribed when its request is sent, which does not measure the server.
SILENT = {"long-poll"}
# Over these transports the generator's clients resume after the last message they received.
RESUMING = {"sse", "long-poll"}

FIRST_RAMP, FIRST_HOLD, RAMP, HOLD, _WARM, FANOUT = range(6)
STORM = FANOUT + len(SIZES)


@dataclass
class Load:
    """How many clients and messages."""

    connections: int
    messages: int

    @property
    def base(self):
        return max(1, self.connections // BASE_PART)

    @property
    def interval_s(self):
        return max(INTERVAL_S_MIN, self.connections / DELIVERIES_PER_SECOND_MIN)

    def plan(self):
        """The plan, whose phases are in the order of the constants above."""

        def phase(**keys):
            return "\n".join(["[[phases]]", *(f"{key} = {value}" for key, value in keys.items())])

        def hold(count, size):
            publish = f"{{ rate = {1 / self.interval_s}, count = {count}, size = {size} }}"
            time = f'"{round(count * self.interval_s * 1000)}ms"'
            return phase(do='"hold"', time=time, publish=publish)

        pause = phase(do='"hold"', time='"500ms"')
        storm = f"{{ rate = {STORM_RATE}, size = {SIZES[0]} }}"
        phases = [
            phase(do='"ramp"', to=self.base),
            pause,
            phase(do='"ramp"', to=self.connections),
            pause,
            hold(WARM_UP, SIZES[0]),
            *(hold(self.messages, size) for size in SIZES),
            phase(do='"storm"', timeout=f'"{STORM_SECONDS_MAX}s"', publish=storm),
        ]
        return "\n".join([f'deadline = "{RUN_SECONDS_MAX}s"', *phases, ""])


def run(throng, load, server, transport):
    """Loads a server; returns the measurements and the generator's environment."""
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        plan = Path(directory) / "plan.toml"
        plan.write_text(load.plan())
        report = flood(throng, server, transport, ["--plan", plan], RUN_SECONDS_MAX)
    return figures(load, report, transport), report["environment"]


def flood(throng, server, transport, flags, seconds_max):
    """Runs `throng flood` with these flags against a server; returns its report."""
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        report = Path(directory) / "report.json"
        command = [throng, "flood", server["url"], *flags, "--json", report]
        command += ["--server-pid", str(server["pid"]), *server["transports"][transport]]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("THRONG_")}
        try:
            done = subprocess.run(
                list(map(str, command)),
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds_max + 30,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"the load did not end within {seconds_max} s") from None
        if not report.exists():
            said = done.stderr.strip().splitlines()
            raise Failure(f"throng flood: {said[-1] if said else 'no report'}")
        return json.loads(report.read_text())


def figures(load, report, transport):
    """The measurements of a run; None where there is none."""
    if report["cut_short"]:
        raise Failure(f"cut short: {report['cut_short']}; {reasons(report['total'])}")
    phases = [phase["totals"] for phase in report["phases"]]
    if phases[HOLD]["active"] < load.connections:
        active = f"{phases[HOLD]['active']:,} of {load.connections:,} clients subscribed"
        raise Failure(f"only {active}; {reasons(report['total'])}")
    ramp, storm = report["phases"][RAMP], report["phases"][STORM]
    more = load.connections - load.base
    total = report["total"]
    memory = slope(phases[FIRST_HOLD], phases[HOLD], more)
    connecting = {}
    if transport not in SILENT:
        rate, back_s = more / (ramp["to_s"] - ramp["from_s"]), storm["recovered_s"]
        connecting = {
            "connect_rate": rate,
            "connect_p99_ms": phases[RAMP]["connect"]["p99"],
            "storm_s": back_s,
            "storm_ratio": back_s and back_s * rate / load.connections,
        }
    return {
        **connecting,
        "memory_bytes": memory,
        "empty_bytes": memory and phases[FIRST_HOLD]["server"]["pss_bytes"] - memory * load.base,
        "memory_after_bytes": slope(phases[FIRST_HOLD], phases[STORM - 1], more),
        "fanout": {
            str(size): fanout(phases[FANOUT + place], load.connections)
            for place, size in enumerate(SIZES)
        },
        "storm_share": share(load, phases[STORM]) if transport in RESUMING else None,
        "expected": total["expected"],
        # Other servers do not report what their history no longer has, so it counts as lost.
        "lost": total["lost"] + total["missed"],
        "duplicated": total["duplicated"],
        "reordered": total["reordered"],
        "failures": {**total["failures"], **total["publish_failures"]},
        "warnings": report["warnings"],
    }


def fanout(phase, connections):
    """The measurements of one message size; fails if nothing was delivered."""
    if not phase["delivery"]:
        raise Failure(f"nothing was delivered; {reasons(phase)}")
    return {
        # A fan-out is complete with its last delivery.
        "rate": connections / phase["last"]["p50"] * 1000,
        "p50_ms": phase["delivery"]["p50"],
        "p99_ms": phase["delivery"]["p99"],
        "last_ms": phase["last"]["p50"],
        "cpu_us": phase["server"] and phase["server"]["cpu_us_per_delivery"],
        "generator_cpu_us": phase["generator"]["cpu_us_per_delivery"],
        "machine_cpu_us": (phase["machine"] or {}).get("cpu_us_per_delivery"),
    }


def share(load, storm):
    """The share of messages published during the storm that clients received."""
    meant = storm["published"] * load.connections
    return min(1, storm["received"] / meant) if meant else None


def slope(few, many, more):
    """Bytes per client that was added between two phases."""
    before, after = ((phase["server"] or {}).get("pss_bytes") for phase in (few, many))
    return None if before is None or after is None else (after - before) / more


def reasons(totals):
    """The failures and their counts as text."""
    failures = {**totals["failures"], **totals["publish_failures"]}
    return ", ".join(f"{count:,} × {why}" for why, count in failures.items()) or "no failures"
