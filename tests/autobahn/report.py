"""Judges a report of the Autobahn suite: counts per outcome, and each case that did not pass."""

import json
import sys
from collections import Counter
from pathlib import Path

GOOD = {"OK", "NON-STRICT", "INFORMATIONAL"}
# Groups of offers that limit the server's window to 2^9 bytes. The server declines these, because it compresses
# a message once for all clients, and the suite then tests nothing but the closing handshake.
DECLINED = ("13.3.", "13.5.")


def main(report, cases_min):
    """Prints the counts. Fails if a case did, or if there are fewer than `cases_min`: then the suite did not
    run to its end."""
    index = json.loads((report / "index.json").read_text(encoding="utf-8"))
    cases = next(iter(index.values()), {})
    failed = []
    declined = 0
    outcomes = Counter()
    for name, case in sorted(cases.items()):
        outcomes[case["behavior"]] += 1
        bad_close = case["behaviorClose"] not in GOOD
        is_declined = case["behavior"] == "UNIMPLEMENTED" and name.startswith(DECLINED)
        declined += is_declined and not bad_close
        if (case["behavior"] not in GOOD and not is_declined) or bad_close:
            failed.append(name)
            detail = json.loads((report / case["reportfile"]).read_text(encoding="utf-8"))
            print(f"{name}: {case['behavior']}, close {case['behaviorClose']}")
            print(f"    {' '.join(detail['description'].split())}")
            print(f"    {detail['result']} {detail['resultClose']}")
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    passed = len(cases) - len(failed) - declined
    print(f"autobahn: {passed} passed, {len(failed)} failed, {declined} declined ({counts})")
    if len(cases) < cases_min:
        print(f"autobahn: only {len(cases)} cases ran, at least {cases_min} were expected")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
