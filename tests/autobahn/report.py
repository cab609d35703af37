"""Judges a report of the Autobahn suite: counts per outcome, and each case that did not pass."""

import json
import sys
from collections import Counter
from pathlib import Path

GOOD = {"OK", "NON-STRICT", "INFORMATIONAL"}
# With fewer cases than this, the suite did not run to its end.
CASES_MIN = 240


def main(report):
    index = json.loads((report / "index.json").read_text(encoding="utf-8"))
    cases = next(iter(index.values()), {})
    failed = []
    outcomes = Counter()
    for name, case in sorted(cases.items()):
        outcomes[case["behavior"]] += 1
        bad_close = case["behaviorClose"] not in GOOD
        if case["behavior"] not in GOOD or bad_close:
            failed.append(name)
            detail = json.loads((report / case["reportfile"]).read_text(encoding="utf-8"))
            print(f"{name}: {case['behavior']}, close {case['behaviorClose']}")
            print(f"    {' '.join(detail['description'].split())}")
            print(f"    {detail['result']} {detail['resultClose']}")
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    print(f"autobahn: {len(cases) - len(failed)} passed, {len(failed)} failed ({counts})")
    if len(cases) < CASES_MIN:
        print(f"autobahn: only {len(cases)} cases ran, at least {CASES_MIN} were expected")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
