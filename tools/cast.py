# SPDX-License-Identifier: Apache-2.0
"""Draw the records of real runs as a terminal that plays: an SVG without a script, for the README.

    python tools/cast.py --provision RUN --validate RUN --validate RUN --out docs/pictures/provision.svg

RUN is a folder of ~/.local/state/clusterctl/clusters/CLUSTER/runs. The first validation is the one at the end of the
provision. Words, verdicts and times are those of the records. Waits are shortened. Long lines of what passed end in an
ellipsis.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

from clusterctl.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS, ROWS = 96, 19
_BEFORE_ALL = {"reachable", "provisioned", "skew"}
_CHARACTER, _LINE, _MARGIN = 8.43, 19, 14  # pixels; a monospace letter of 14 pixels is 8.43 wide
_READ_S = 4.0  # how long a whole screen stays
_MOST_S = 0.9  # the longest wait between two lines
_QUIET_S = 1.0  # what the run began within a second of a line has none of its own
_QUICKER = 8.0  # a second of the run is an eighth of a second here
_COLOURS = {"PASS": "#7ee787", "FAIL": "#ff7b72", "ERROR": "#ff7b72", "$": "#79c0ff"}


class Line(NamedTuple):
    """A line of the terminal, and the seconds of the run before it comes."""

    text: str
    wait_s: float


def _record(run: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / name).read_text(encoding="utf-8"))
    return found


def _seconds(record: dict[str, Any], since: str, until: str) -> float:
    return (datetime.fromisoformat(record[until]) - datetime.fromisoformat(record[since])).total_seconds()


def provisioned(run: Path) -> list[Line]:
    """Return the stages of a provision with their times, its network, and its end."""
    record = _record(run, "run.json")
    begun = datetime.fromisoformat(record["started"]).timestamp()
    lines = [Line("$ clusterctl provision inventory.ini", 0.0)]
    at = 0.0
    for event in map(json.loads, (run / "events.jsonl").read_text(encoding="utf-8").splitlines()):
        since = event["at"] - begun
        if event["event"] == "StageStarted" and since - at >= _QUIET_S:
            minutes, seconds = divmod(int(since), 60)
            lines.append(Line(f"[{minutes:2}:{seconds:02}] {event['stage']}: {event['task']}", since - at))
            at = since
    changed = sum(1 for host in record["hosts"] if host["outcome"] == "changed")
    took = _seconds(record, "started", "finished")
    lines += [Line(text, 1.0) for text in record["told"]]
    hosts = output.plural(len(record["hosts"]), "host")
    return [*lines, Line(f"Done: {hosts}, {changed} changed ({output.duration(took)}).", took - at)]


def validated(run: Path, *, alone: bool = True) -> list[Line]:
    """Return the verdicts of a validation with their reasons, and its end.

    Args:
        run: its folder.
        alone: it is a command of its own, and not the end of a provision.
    """
    record = _record(run, "validation.json")
    asked = ",".join(check["check"] for check in record["checks"] if check["check"] not in _BEFORE_ALL)
    lines = [Line(f"$ clusterctl validate inventory.ini --checks {asked}", 0.0)] if alone else []
    lines.append(Line(f"{'CHECK':<15} VERDICT    TIME  REASON", 1.0))
    for check in record["checks"]:
        row = f"{check['check']:<15} {check['verdict']:<7} {check['seconds']:5.1f} s  "
        said = textwrap.wrap(check["reason"], COLUMNS - len(row)) or [""]
        if len(said) > 1 and check["verdict"] != "FAIL":
            said = [f"{said[0][: COLUMNS - len(row) - 2]} …"]
        lines.append(Line(row + said[0], check["seconds"]))
        lines += [Line(" " * len(row) + more, 0.0) for more in said[1:]]
    took = _seconds(record, "started", "finished")
    ranks = f"{sum(record['slots'].values())} ranks on {len(record['hosts'])} nodes"
    return [*lines, Line(f"{record['verdict']}: {ranks}, Open MPI {record['openmpi_version']}, {took:.1f} s.", 0.5)]


def drawn(screens: Sequence[Sequence[Line]]) -> str:
    """Return the SVG that shows one screen after the other, line by line, and begins again.

    Raises:
        ValueError: a screen has more lines than fit.
    """
    plan: list[tuple[int, int, float, float, str]] = []  # screen, row, from and to in seconds, text
    now = 0.0
    for number, lines in enumerate(screens):
        if len(lines) > ROWS:
            raise ValueError(f"A screen has {len(lines)} lines; at most {ROWS} fit.")
        comes = []
        for line in lines:
            now += min(_MOST_S, max(0.15, line.wait_s / _QUICKER))
            comes.append(now)
        now += _READ_S
        plan += [(number, row, at, now, line.text) for row, (at, line) in enumerate(zip(comes, lines, strict=True))]
    width, height = round(COLUMNS * _CHARACTER + 2 * _MARGIN), ROWS * _LINE + 2 * _MARGIN
    styles, texts = [], []
    for at, (screen, row, comes_at, goes_at, text) in enumerate(plan):
        begin, end = 100 * comes_at / now, 100 * goes_at / now
        hidden = f"0%,{begin:.2f}%{{opacity:0}}", f"{end:.2f}%,100%{{opacity:0}}"
        visible = f"{begin + 0.01:.2f}%,{end - 0.01:.2f}%{{opacity:1}}"
        styles.append(
            f"@keyframes k{at}{{{hidden[0]}{visible}{hidden[1]}}}#l{at}{{animation:k{at} {now:.1f}s infinite}}"
        )
        last = "last" if screen == len(screens) - 1 else "first"
        shown = text if len(text) <= COLUMNS else text[: COLUMNS - 1] + "…"
        y = _MARGIN + _LINE * (row + 1) - 5
        texts.append(f'<text id="l{at}" class="{last}" x="{_MARGIN}" y="{y}">{_coloured(shown)}</text>')
    # Who wants no motion sees the last screen.
    still = "@media (prefers-reduced-motion: reduce){text{animation:none!important}.first{display:none}}"
    words = escape(" ".join(screen[-1].text for screen in screens if screen))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">',
        "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e6edf3;white-space:pre}",
        *styles, still, "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
        *texts, "</svg>", "",
    ])  # fmt: skip


def _coloured(text: str) -> str:
    """Return a line as XML, with its verdict or its prompt in colour."""
    for word, colour in _COLOURS.items():
        before, found, after = text.partition(word)
        if found and (not before or before.endswith(" ")) and (not after or after[0] in " :"):
            return f'{escape(before)}<tspan fill="{colour}">{word}</tspan>{escape(after)}'
    return escape(text)


def main() -> int:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provision", type=Path, action="append", default=[], help="folder of a run of provision")
    parser.add_argument("--validate", type=Path, action="append", default=[], help="folder of a run of validate")
    parser.add_argument("--out", type=Path, required=True, help="the SVG")
    given = parser.parse_args()
    screens = [provisioned(run) for run in given.provision]
    screens += [validated(run, alone=at > 0 or not screens) for at, run in enumerate(given.validate)]
    try:
        given.out.write_text(drawn(screens), encoding="utf-8")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
