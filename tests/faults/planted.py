"""Plant one fault after the other on six nodes, validate, and print who was named.

    python tests/faults/planted.py [--via ssh|slurm|both] [--name NAME] [--only WORDS] [--load N] [--keep] [--out FILE]

The six nodes are a sandbox with MPI alone, which this program starts and takes down. Each fault is planted, the checks
that its family concerns run as a user's validation runs them, and the fault is taken away. ``--load`` starts so many
busy processes first. A fault counts as named when the run names its nodes, no more and no fewer.

``--via slurm`` has Slurm own the nodes and validates inside allocations; ``both`` plants each fault twice and compares.
Faults that do not matter by Slurm are listed with the reason. Where Slurm gives no nodes, its refusal has to name them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl import sandbox as sandboxes
from clusterctl.model import nodeset
from clusterctl.model.results import CheckProgress, Verdict
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.support.errors import ValidationCouldNotRunError
from clusterctl.validation import run as validation
from clusterctl.validation import via_slurm
from clusterctl.validation.checks import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))


from cases import FAULTS, NODES, Fault
from clusterctl.model.results import ValidationEvent, ValidationRecord
from slurm_nodes import SUBMIT, resumed
from validated import Cluster, mpi_alone

DEADLINE_S = 25.0  # of a check that hangs; the search has deadlines of its own
LOADED_DEADLINE_S = 90.0  # the same beside busy processes: a healthy launch takes seven times as long there
SSH, SLURM = "ssh", "slurm"
WAYS = {SSH: (SSH,), SLURM: (SLURM,), "both": (SSH, SLURM)}
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass\n"  # it ends with this program


@dataclass(frozen=True)
class Found:
    """What came of one planted fault: a record, or the sentence by which Slurm gives no nodes."""

    fault: Fault
    way: str
    record: ValidationRecord | None
    refusal: str
    seconds: float
    inventory: str  # its path, which tells nothing in a table

    @property
    def named(self) -> tuple[str, ...]:
        """The nodes that the run names in the checks that are bad."""
        if self.record is None:
            return tuple(node for node in NODES if re.search(rf"\b{node}\b", self.refusal))
        bad = [check for check in self.record.checks if check.is_bad]
        found = {host for check in bad for host in check.hosts}
        found |= {node for check in bad for culprit in check.culprits for node in culprit.nodes}
        return tuple(node for node in NODES if node in found)

    @property
    def words(self) -> str:
        """What came of it, in a word of the table."""
        if self.record is not None and self.record.verdict is Verdict.PASS:
            return "wrong PASS"
        wrong = [node for node in self.named if node not in self.fault.named]
        if wrong:
            return f"blames {nodeset.folded(wrong)}"
        return "named" if set(self.named) == set(self.fault.named) else "not named"

    @property
    def reason(self) -> str:
        """What the first bad check says, in one line."""
        if self.record is None:
            return self.refusal
        bad = next((check for check in self.record.checks if check.is_bad), None)
        if bad is None:
            return ""
        return f"{bad.check}: {bad.reason} {bad.next_step}".replace(self.inventory, "inventory.ini").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--via", choices=WAYS, default=SSH, help="how the nodes are reached; both plants all twice")
    parser.add_argument("--name", default="faults")
    parser.add_argument("--only", default="", help="faults whose words contain this")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the nodes")
    parser.add_argument("--keep", action="store_true", help="leave the sandbox up")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    given = parser.parse_args()
    faults = [fault for fault in FAULTS if given.only in f"{fault.family}: {fault.words}"]
    ways = WAYS[given.via]
    try:
        cluster = started(given.name, ways)
        with busy(given.load):
            healthy = [f"{way} {verdict_of_healthy(cluster, way).value}" for way in ways]
            deadline_s = LOADED_DEADLINE_S if given.load else DEADLINE_S
            found = [
                planted(cluster, fault, way, deadline_s)
                for fault in faults
                for way in ways
                if way == SSH or not fault.not_by_slurm
            ]
            load = os.getloadavg()[1]
    finally:
        if not given.keep:
            sandboxes.down(given.name)
    left_out = [fault for fault in faults if fault.not_by_slurm and SLURM in ways]
    text = table(found, ", ".join(healthy), load, left_out)
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    sys.exit(0 if all(one.words == "named" for one in found) else 1)


def started(name: str, ways: Sequence[str]) -> Cluster:
    """Start and provision the nodes; those of an earlier run with ``--keep`` are taken as they are."""
    box = sandboxes.up(specification(name, ways))
    mpi_alone(box)
    cluster = Cluster(box)
    cluster.provision()
    return cluster


def specification(name: str, ways: Sequence[str]) -> sandboxes.SandboxSpec:
    return sandboxes.SandboxSpec(name=name, nodes=len(NODES), extras=("slurm",) if SLURM in ways else ())


def validated(
    cluster: Cluster,
    way: str,
    *checks: str,
    on_event: Callable[[ValidationEvent], None] | None = None,
    **options: Any,
) -> ValidationRecord:
    """Validate by ssh, or inside an allocation of Slurm."""
    if way == SSH:
        return cluster.validate(*checks, on_event=on_event, **options)
    wish = SlurmOptions(submit_host=SUBMIT)
    given = validation.ValidationOptions(checks=checks or None, **{"remembered": False, "via": wish, **options})
    return via_slurm.validate(cluster.box.inventory, given, wish, on_event)


def verdict_of_healthy(cluster: Cluster, way: str) -> Verdict:
    began = time.monotonic()
    verdict = validated(cluster, way, suite=registry.builtin("smoke")).verdict
    print(f"healthy by {way}: {verdict.value} in {time.monotonic() - began:.1f} s", flush=True)
    return verdict


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


def planted(cluster: Cluster, fault: Fault, way: str, deadline_s: float) -> Found:
    """Plant a fault, validate, take the fault away, and wait until the nodes are as before."""
    acted: list[str] = []

    def listen(event: ValidationEvent) -> None:
        if fault.act is None or acted or not isinstance(event, CheckProgress):
            return
        if event.check == fault.at and "ranks up" in event.text:
            acted.append(event.text)
            fault.act(cluster)

    began = time.monotonic()
    record, refusal = None, ""
    with fault.plant(cluster):
        try:
            record = validated(
                cluster,
                way,
                *fault.checks,
                suite=registry.builtin("smoke"),
                search=fault.search or None,
                timeout_s=deadline_s if "allreduce" in fault.checks else None,
                on_event=listen,
            )
        except ValidationCouldNotRunError as error:
            refusal = str(error)
    found = Found(fault, way, record, refusal, time.monotonic() - began, str(cluster.box.inventory))
    print(f"{found.words:<12} {found.seconds:5.1f} s  {way}: {fault.family}: {fault.words}: {found.reason}", flush=True)
    healed(cluster, way)
    return found


def healed(cluster: Cluster, way: str, within_s: float = 60) -> None:
    """Wait until a launch on all nodes passes again; provision the nodes anew where it does not."""
    if way == SLURM:
        take_back(cluster)
    if not passes(cluster, way, within_s):
        cluster.provision()
        if not passes(cluster, way, within_s):
            raise SystemExit("The cluster is not as before, and a provision did not mend it.")


def take_back(cluster: Cluster) -> None:
    """Start the daemons of Slurm that a fault has ended, and have it take back the nodes that it has given up."""
    resumed(cluster)
    sandboxes.up(specification(cluster.box.name, (SLURM,)))


def passes(cluster: Cluster, way: str, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while True:
        try:
            record = validated(cluster, way, "hello")
            bad = "; ".join(f"{check.check}: {check.reason}" for check in record.checks if check.is_bad)
        except ValidationCouldNotRunError as error:
            bad = str(error)
        if not bad:
            return True
        if time.monotonic() > end:
            print(f"not as before: {bad}", flush=True)
            return False
        time.sleep(1)


def table(found: Sequence[Found], healthy: str, load: float, left_out: Sequence[Fault]) -> str:
    """Return the table in Markdown, what it adds up to, and the faults that do not matter by Slurm."""
    lines = ["| family | planted | by | result | seconds | first words of the verdict |", "|---|---|---|---|---|---|"]
    for one in found:
        said = one.reason.replace("|", "/").replace("<", "&lt;")
        said = said if len(said) <= 160 else f"{said[:157]}..."
        row = (one.fault.family, one.fault.words, one.way, one.words, f"{one.seconds:.1f}", said)
        lines.append(f"| {' | '.join(row)} |")
    counts = Counter("blames" if one.words.startswith("blames") else one.words for one in found)
    total = (
        f"{counts['named']} of {len(found)} named rightly, {counts['blames']} blame an innocent node, "
        f"{counts['wrong PASS']} wrong PASS, {counts['not named']} without a name. "
        f"Healthy cluster before: {healthy}. Load over 5 minutes at the end: {load:.1f}."
    )
    by_way = {way: {one.fault.words: one.named for one in found if one.way == way} for way in (SSH, SLURM)}
    both = by_way[SSH].keys() & by_way[SLURM].keys()
    if both:
        same = sum(by_way[SSH][words] == by_way[SLURM][words] for words in both)
        total += f" {same} of {len(both)} name the same nodes by ssh and by Slurm."
    lines += ["", total, "", *(f"- Does not matter by Slurm: {one.words}: {one.not_by_slurm}." for one in left_out)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
