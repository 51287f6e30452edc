"""``make rehearsal``: print the table of faults as markdown."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

import captures
import rehearsal
import session_faults
from clusterctl.diagnosis.rules import registry
from machine_kinds import MACHINES


def main() -> int:
    """Print the tables, and return 1 where a fault was missed or somebody else was blamed."""
    rows = rehearsal.all_rows()
    lines = ["| cause | fault | machines | found | named rightly | wrongly blamed |", "|---|---|---|---|---|---|"]
    for fault in (*rehearsal.FAULTS, *rehearsal.PAST_FAULTS, *rehearsal.SESSION_FAULTS):
        own = [row for row in rows if row.fault == fault.name]
        found, named, wrong = (
            sum(values) for values in zip(*((row.found, row.named_rightly, len(row.wrong)) for row in own), strict=True)
        )
        lines.append(f"| {fault.cause or ''} | {fault.name} | {len(own)} | {found} | {named} | {wrong} |")
    false = {kind: len(registry.diagnose(rehearsal.view(kind))) for kind in MACHINES}
    false[session_faults.KIND] = len(registry.diagnose(session_faults.healthy()))
    lines += ["", f"Healthy machines: {', '.join(f'{kind} {count}' for kind, count in false.items())} findings.", ""]
    wrong = {one: one.wrong() for one in captures.CAPTURES if one.is_here}
    lines += ["| captured | of | read | known faults | wrong |", "|---|---|---|---|---|"]
    for one, its in wrong.items():
        lines.append(f"| {one.path} | {one.of} | {one.count} | {len(one.causes)} | {'; '.join(its) or 0} |")
    healthy = [its for one, its in wrong.items() if not one.causes]
    right = f"{len(wrong) - sum(map(bool, wrong.values()))} of {len(wrong)} captures are read right"
    lines += ["", f"{right}: {len(healthy)} healthy, {sum(map(len, healthy))} false findings on them.", ""]
    if len(wrong) < len(captures.CAPTURES):
        lines += [f"{len(captures.CAPTURES) - len(wrong)} more captures are not on this machine.", ""]
    sys.stdout.write("\n".join(lines))
    failed = any(false.values()) or any(wrong.values())
    return int(failed or any(not row.named_rightly or row.wrong for row in rows))


raise SystemExit(main())
