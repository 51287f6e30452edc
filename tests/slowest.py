"""Print the slowest tests of a saved pytest run as a Markdown table, beside the same tests of another run.

Usage: ``slowest.py AFTER.log [BEFORE.log]``; both were saved from ``pytest --durations=0`` or a large number.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

LINE = re.compile(r"^(?P<seconds>\d+\.\d+)s (?:call|setup|teardown)\s+(?P<test>\S.*)$", re.MULTILINE)
MISSING = "not among the listed"


def durations(text: str) -> dict[str, float]:
    """Return the seconds of each test: its own, those of the fixtures that it made, and those of taking them down."""
    found: defaultdict[str, float] = defaultdict(float)
    for match in LINE.finditer(text):
        found[match["test"]] += float(match["seconds"])
    return dict(found)


def shown(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def table(after: dict[str, float], before: dict[str, float], number: int) -> list[str]:
    """Return the lines of a table: the slowest of each run, the slowest of the earlier run first."""

    def slowest(run: dict[str, float]) -> list[str]:
        return sorted(run, key=lambda test: -run[test])[:number]

    tests = list(dict.fromkeys([*slowest(before), *slowest(after)]))
    head = ["| test | before | after |", "|---|---|---|"] if before else ["| test | time |", "|---|---|"]
    rows = []
    for test in tests:
        cells = [shown(before.get(test)), shown(after.get(test))] if before else [shown(after.get(test))]
        rows.append(f"| `{test.removeprefix('tests/')}` | {' | '.join(cells)} |")
    return head + rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the slowest tests of saved pytest runs.")
    parser.add_argument("after", type=Path, metavar="AFTER.log")
    parser.add_argument("before", type=Path, nargs="?", metavar="BEFORE.log")
    parser.add_argument("--number", type=int, default=10)
    given = parser.parse_args()
    before = durations(given.before.read_text(encoding="utf-8")) if given.before else {}
    after = durations(given.after.read_text(encoding="utf-8"))
    if not after:
        sys.stderr.write(f"{given.after} holds no durations; run pytest with --durations=0 and save what it prints.\n")
        return 1
    sys.stdout.write("\n".join(table(after, before, given.number)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
