# SPDX-License-Identifier: Apache-2.0
"""Does an alarm rise and fall when Prometheus says so?

Days that were made up (gaps, resets, values on the edge), rules that both of us can say. What our
engine makes of a day is what `promtool test rules` is told to expect, at each change and in the
pass before it: who fires, and who waits. One difference, and it says no.

    python bench/beside_prometheus.py [DAYS]     3
    apt-get install prometheus
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from pathlib import Path

from tests.alarms.day import day
from tests.alarms.prometheus import THEIRS, Seen, judged, watched

FIRST_SEED = 7


def changes(seen: Seen) -> dict[str, int]:
    """Of each rule, how often somebody began or ended to fire or to wait."""
    return {
        rule: sum(len(a ^ b) for steps in states.values() for a, b in itertools.pairwise(steps))
        for rule, states in seen.items()
    }


def main() -> None:
    days = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    promtool = shutil.which("promtool")
    if promtool is None:
        raise SystemExit("beside whom? Install it: apt-get install prometheus")
    differ = 0
    for seed in range(FIRST_SEED, FIRST_SEED + days):
        one = day(seed)
        seen = watched(one)
        with tempfile.TemporaryDirectory() as folder:
            told = judged(promtool, Path(folder), one, seen, THEIRS)
        found = changes(seen)
        verdict = "as Prometheus has them" if told.returncode == 0 else "NOT as Prometheus has them"
        print(f"day {seed}: {sum(found.values())} changes by {len(found)} rules, {verdict}")
        print("  " + ", ".join(f"{rule} {count}" for rule, count in found.items()))
        if told.returncode:
            differ += 1
            print(told.stdout[-2000:] + told.stderr[-2000:])
    raise SystemExit(int(differ > 0))


if __name__ == "__main__":
    main()
