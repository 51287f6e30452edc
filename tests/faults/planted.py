"""Plant one fault after the other on six nodes, validate, and print who was named.

    python tests/faults/planted.py [--name NAME] [--only WORDS] [--load N] [--keep] [--out FILE]

The six nodes are a sandbox with MPI alone, which this program starts and takes down. Each fault is planted, the checks
that its family concerns run as a user's validation runs them, and the fault is taken away. ``--load`` starts so many
busy processes first. A fault counts as named when the run names its nodes, no more and no fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl import sandbox as sandboxes
from clusterctl.model import nodeset
from clusterctl.model.results import CheckProgress, Verdict
from clusterctl.validation import suites

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from cases import FAULTS, NODES, Fault
from validated import Cluster, mpi_alone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.model.results import ValidationEvent, ValidationRecord

DEADLINE_S = 25.0  # of a check that hangs; the search has deadlines of its own
LOADED_DEADLINE_S = 90.0  # the same beside busy processes: a healthy launch takes seven times as long there
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass\n"  # it ends with this program


@dataclass(frozen=True)
class Found:
    """What came of one planted fault."""

    fault: Fault
    record: ValidationRecord
    seconds: float
    inventory: str  # its path, which tells nothing in a table

    @property
    def named(self) -> tuple[str, ...]:
        """The nodes that the run names in the checks that are bad."""
        bad = [check for check in self.record.checks if check.is_bad]
        found = {host for check in bad for host in check.hosts}
        found |= {node for check in bad for culprit in check.culprits for node in culprit.nodes}
        return tuple(node for node in NODES if node in found)

    @property
    def words(self) -> str:
        """What came of it, in a word of the table."""
        if self.record.verdict is Verdict.PASS:
            return "wrong PASS"
        wrong = [node for node in self.named if node not in self.fault.named]
        if wrong:
            return f"blames {nodeset.folded(wrong)}"
        return "named" if set(self.named) == set(self.fault.named) else "not named"

    @property
    def reason(self) -> str:
        """What the first bad check says, in one line."""
        bad = next((check for check in self.record.checks if check.is_bad), None)
        if bad is None:
            return ""
        return f"{bad.check}: {bad.reason} {bad.next_step}".replace(self.inventory, "inventory.ini").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="faults")
    parser.add_argument("--only", default="", help="faults whose words contain this")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the nodes")
    parser.add_argument("--keep", action="store_true", help="leave the sandbox up")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    given = parser.parse_args()
    faults = [fault for fault in FAULTS if given.only in f"{fault.family}: {fault.words}"]
    try:
        cluster = started(given.name)
        with busy(given.load):
            began = time.monotonic()
            healthy = cluster.validate(suite=suites.builtin("smoke"))
            print(f"healthy: {healthy.verdict.value} in {time.monotonic() - began:.1f} s", flush=True)
            deadline_s = LOADED_DEADLINE_S if given.load else DEADLINE_S
            found = [planted(cluster, fault, deadline_s) for fault in faults]
            load = os.getloadavg()[1]
    finally:
        if not given.keep:
            sandboxes.down(given.name)
    text = table(found, healthy, load)
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    sys.exit(0 if all(one.words == "named" for one in found) else 1)


def started(name: str) -> Cluster:
    """Start and provision the nodes; those of an earlier run with ``--keep`` are taken as they are."""
    box = sandboxes.up(sandboxes.SandboxSpec(name=name, nodes=len(NODES)))
    mpi_alone(box)
    cluster = Cluster(box)
    cluster.provision()
    return cluster


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the processors busy with something else."""
    hogs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        if hogs:
            time.sleep(60)  # a load is an average over a minute
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def planted(cluster: Cluster, fault: Fault, deadline_s: float) -> Found:
    """Plant a fault, validate, take the fault away, and wait until the nodes are as before."""
    acted: list[str] = []

    def listen(event: ValidationEvent) -> None:
        if fault.act is None or acted or not isinstance(event, CheckProgress):
            return
        if event.check == fault.at and "ranks up" in event.text:
            acted.append(event.text)
            fault.act(cluster)

    began = time.monotonic()
    with fault.plant(cluster):
        record = cluster.validate(
            *fault.checks,
            suite=suites.builtin("smoke"),
            search=fault.search or None,
            timeout_s=deadline_s if "allreduce" in fault.checks else None,
            on_event=listen,
        )
    found = Found(fault, record, time.monotonic() - began, str(cluster.box.inventory))
    print(f"{found.words:<12} {found.seconds:5.1f} s  {fault.family}: {fault.words}: {found.reason}", flush=True)
    healed(cluster)
    return found


def healed(cluster: Cluster, within_s: float = 60) -> None:
    """Wait until a launch on all nodes passes again; provision the nodes anew where it does not."""
    if not passes(cluster, within_s):
        cluster.provision()
        if not passes(cluster, within_s):
            raise SystemExit("The cluster is not as before, and a provision did not mend it.")


def passes(cluster: Cluster, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while (record := cluster.validate("hello")).verdict is not Verdict.PASS:
        if time.monotonic() > end:
            bad = "; ".join(f"{check.check}: {check.reason}" for check in record.checks if check.is_bad)
            print(f"not as before: {bad}", flush=True)
            return False
        time.sleep(1)
    return True


def table(found: Sequence[Found], healthy: ValidationRecord, load: float) -> str:
    """Return the table in Markdown, and what it adds up to."""
    lines = ["| family | planted | result | seconds | first words of the verdict |", "|---|---|---|---|---|"]
    for one in found:
        said = one.reason.replace("|", "/").replace("<", "&lt;")
        said = said if len(said) <= 160 else f"{said[:157]}..."
        lines.append(f"| {one.fault.family} | {one.fault.words} | {one.words} | {one.seconds:.1f} | {said} |")
    counts = Counter("blames" if one.words.startswith("blames") else one.words for one in found)
    total = (
        f"{counts['named']} of {len(found)} named rightly, {counts['blames']} blame an innocent node, "
        f"{counts['wrong PASS']} wrong PASS, {counts['not named']} without a name. "
        f"Healthy cluster before: {healthy.verdict.value}. Load over 5 minutes at the end: {load:.1f}."
    )
    return "\n".join([*lines, "", total, ""])


if __name__ == "__main__":
    main()
