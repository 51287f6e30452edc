"""Who finds which fault on real nodes: clusterctl and three usual rules on the same measured matrices.

    python tests/sim/planted_verdicts.py [--repeats R] [--seed N] [--rate MBIT] [--slowdown SHARE] [--out FILE]

Starts a sandbox of four nodes with MPI alone; root and podman are needed. ``tc`` gives every link the same rate, which
is slower than this machine, and plants slow ones; nftables drop segments of a lossy link. Each repeat plants a fault on
nodes that the seed chooses, and validates twice with the check pairs. clusterctl's verdict is that of the first
validation. The other rules get the matrix of its record, and that of the second one where they measure again. ``--out``
replaces the section of docs/measured/verdicts.md, or adds it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import permutations
from pathlib import Path

import numpy as np
import peer_rules
import simulated
import verdicts
from clusterctl import sandbox as sandboxes
from clusterctl.model.results import CheckResult, CheckStarted, PairMatrix, ValidationEvent
from clusterctl.suite import Suite
from clusterctl.support.errors import ClusterctlError
from clusterctl.validation.checks import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

import planting
from validated import Cluster, mpi_alone, result

NODES = 4
LOSS_PERCENT = 2
FAULTS = ("nothing", "slow node", "slow link", "lossy link", "boundary of two halves")
SUITE = "extends: nightly\nchecks:\n  pairs: {latency_bytes: [1], bandwidth_bytes: [1 MiB]}\n"
_TEXT = """{heading}

`make rehearsal-performance PLANTED={repeats}{others}` writes this section. It needs root and podman.
Date: {date}. Four containers with MPI alone shared {cores} cores with other work. The seed is {seed}.
The load of a minute was {least:.1f} to {most:.1f}.

`tc` limits each link to {rate} Mbit/s. A slow link has {slowdown:.0%} less, both ways.
All links of a slow node are slow. A lossy link loses {loss} % of the segments one way.
The boundary cuts the nodes into two pairs. The seed chooses the nodes of each repeat.

All rules judge the same matrix of 1 MiB. It comes from the record of `clusterctl validate` with the check `pairs` of
the suite nightly, cut to two sizes; the other one is the latency of 1 B. The cell of clusterctl is the real verdict
of that check, with the time of all its jobs. The others get the matrix of a second validation where they measure again.
Their time is that of as many jobs and rounds, by the seconds of the record. The figure that a user types in is
{level:.1f} MB/s, the median of a healthy run before the first fault. In {healthy} healthy runs, the same link differed
by {noise:.1%} from run to run (normalised MAD).

The cells are those of [the table above](#the-table): *found / named rightly / wrongly blamed / time*.

{table}
"""


@dataclass(frozen=True)
class Planted:
    """A fault and the nodes that it has; ``links`` are slow, ``lossy`` is sender and receiver."""

    truth: simulated.Cluster
    slow: frozenset[tuple[int, int]]
    lossy: tuple[int, int] | None = None


@dataclass(frozen=True)
class Run:
    """One validation."""

    result: CheckResult
    seconds: float  # of the check, with all its jobs

    @property
    def matrix(self) -> PairMatrix:
        """The bandwidths."""
        return next(matrix for matrix in self.result.matrices if matrix.quantity == "bandwidth")

    @property
    def measuring_s(self) -> float:
        """The seconds in which the last job measured."""
        return self.result.ranks[0].figures["measuring_s"]


def planted(fault: str, rng: np.random.Generator) -> Planted:
    """Choose who has a fault; links are pairs of numbers, the smaller one first."""
    order = [int(number) for number in rng.permutation(NODES)]
    pair = (min(order[:2]), max(order[:2]))
    half = frozenset(order[: NODES // 2])
    first, second = np.triu_indices(NODES, 1)
    links = list(zip(first.tolist(), second.tolist(), strict=True))
    plan = simulated.Plan(nodes=NODES, noise=0.0, racks=2 if fault.startswith("boundary") else 0)
    slow = {
        "slow node": frozenset(link for link in links if order[0] in link),
        "slow link": frozenset({pair}),
        "boundary of two halves": frozenset(link for link in links if len(half & set(link)) == 1),
    }.get(fault, frozenset())
    lossy = (order[0], order[1]) if fault == "lossy link" else None
    truth = simulated.Cluster(
        plan=plan,
        first=first,
        second=second,
        steady=np.zeros(first.size),
        bad_nodes=frozenset(order[:1] if fault == "slow node" else ()),
        bad_links=frozenset({pair} if fault == "slow link" else ()),
        slow_way=np.zeros(first.size),
        bad_ways=frozenset(),
        of_nodes=np.zeros(NODES),
        rack_of=np.array([int(plan.racks > 0 and number in half) for number in range(NODES)]),
        lossy=np.array([links.index(pair)] if lossy else [], dtype=np.int64),
    )
    return Planted(truth, slow, lossy)


@contextlib.contextmanager
def shaped(cluster: Cluster, mbit: Mapping[tuple[str, str], float]) -> Iterator[None]:
    """Limit what each node sends to each other one; the keys are sender and receiver."""
    senders = sorted({sender for sender, _ in mbit})
    try:
        for sender in senders:
            rules = ["qdisc add dev eth0 root handle 1: htb default 10", _class(10, 100_000)]
            for number, receiver in enumerate((to for one, to in mbit if one == sender), 20):
                address = cluster.box.node(receiver).address
                rules.append(_class(number, mbit[sender, receiver]))
                rules.append(f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {address} flowid 1:{number}")
            for rule in rules:
                cluster.in_network_of(sender, "tc", *rule.split())
        yield
    finally:
        for sender in senders:
            with contextlib.suppress(Exception):  # it has none yet
                cluster.in_network_of(sender, "tc", "qdisc", "del", "dev", "eth0", "root")


def _class(number: int, mbit: float) -> str:
    return f"class add dev eth0 parent 1: classid 1:{number} htb rate {mbit * 1000:.0f}kbit quantum 60000"


@contextlib.contextmanager
def faulty(cluster: Cluster, fault: Planted, rate: float, slowdown: float) -> Iterator[None]:
    """Plant a fault."""
    names = [node.name for node in cluster.box.nodes]
    mbit = {
        (names[one], names[other]): rate * (1 - slowdown * ((min(one, other), max(one, other)) in fault.slow))
        for one, other in permutations(range(NODES), 2)
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(shaped(cluster, mbit))
        if fault.lossy:
            sender, receiver = (names[number] for number in fault.lossy)
            stack.enter_context(planting.lossy(cluster, receiver, LOSS_PERCENT, sender))
        yield


def validated(cluster: Cluster, suite: Suite) -> Run:
    """Validate with the check pairs alone."""
    began = [time.monotonic()]

    def listen(event: ValidationEvent) -> None:
        if isinstance(event, CheckStarted):
            began.append(time.monotonic())

    found = result(cluster.validate("pairs", suite=suite, on_event=listen), "pairs")
    run = Run(found, time.monotonic() - began[-1])
    if len(found.matrices) != len(("latency", "bandwidth")) or len(run.matrix.value) != NODES * (NODES - 1) // 2:
        sys.exit(f"pairs did not measure all pairs: {found.reason}")
    return run


def counted(counts: dict[str, verdicts.Count], fault: Planted, runs: list[Run], level: float, seed: int) -> list[str]:
    """Ask every rule, count its answer, and return the words of each."""
    first = runs[0]
    launch_s = first.result.seconds - first.measuring_s
    round_s = first.measuring_s / first.result.ranks[0].figures["rounds"] / len(first.result.matrices)
    lost = [np.zeros((2, fault.truth.first.size))] * len(runs)
    said = []
    for name, (rule, _) in peer_rules.RULES.items():
        data = peer_rules.Measured(
            fault.truth, [run.matrix for run in runs], lost, np.random.default_rng(seed), level=level
        )
        ours = rule is peer_rules.ours
        told = peer_rules.told(first.result, first.matrix.nodes) if ours else rule(data)
        seconds = first.seconds if ours else told.launches * launch_s + told.rounds * round_s
        alarm, rightly, wrongly = verdicts.judged(told, fault.truth)
        counts[name].add(seconds, alarm=alarm, rightly=rightly, wrongly=wrongly)
        said.append(f"{name}: {'found' if alarm else '-'}{', rightly' * rightly}{', wrongly' * wrongly}")
    return said


def noise(runs: list[Run]) -> float:
    """Return by how much the same link of healthy nodes differs from run to run (normalised MAD)."""
    logs = np.log([run.matrix.value for run in runs])
    logs -= np.median(logs, axis=1, keepdims=True)
    off = (logs - logs.mean(axis=0)) * np.sqrt(len(runs) / (len(runs) - 1))
    return 1.4826 * float(np.median(np.abs(off)))


def put(path: Path, text: str) -> None:
    """Replace the section of the page, or add it at the end."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(verdicts.PLANTED)
    after = rest.partition("\n## ")
    path.write_text(before.rstrip("\n") + "\n\n" + text + "".join(after[1:]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="of each fault")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of a healthy link")
    parser.add_argument("--slowdown", type=float, default=0.2, help="0.2: a fifth of the speed is missing")
    parser.add_argument("--name", default="planted-verdicts", help="of the sandbox")
    parser.add_argument("--out", type=Path, help="the page that has the section")
    options = parser.parse_args()
    if options.repeats < 1 or not 0 < options.slowdown < 1 or options.rate <= 0:
        parser.error("--repeats is at least 1, --rate above 0, and --slowdown between 0 and 1.")
    if options.out and not options.out.is_file():
        parser.error(f"--out {options.out} is not a file; give the page that has the section.")
    try:
        text = rehearsed(options)
    except ClusterctlError as error:
        sys.exit(f"planted_verdicts: {error}")
    finally:
        sandboxes.down(options.name)
    sys.stdout.write(text)
    if options.out:
        put(options.out, text)


def rehearsed(options: argparse.Namespace) -> str:
    """Plant everything and return the section."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "validation.yml"
        file.write_text(SUITE, encoding="utf-8")
        suite = registry.load(file)
    box = sandboxes.up(sandboxes.SandboxSpec(name=options.name, nodes=NODES))
    mpi_alone(box)
    cluster = Cluster(box)
    cluster.provision()
    rng = np.random.default_rng(options.seed)
    nothing = planted(FAULTS[0], rng)
    with faulty(cluster, nothing, options.rate, options.slowdown):
        healthy = [validated(cluster, suite)]
    level = statistics.median(healthy[0].matrix.value)
    cases = {fault: verdicts.Case(fault, NODES, 0.0, 0, options.repeats) for fault in FAULTS}
    found = {fault: {name: verdicts.Count() for name in peer_rules.RULES} for fault in FAULTS}
    loads = [os.getloadavg()[0]]
    for repeat in range(options.repeats):
        for fault in FAULTS:
            chosen = planted(fault, rng)
            with faulty(cluster, chosen, options.rate, options.slowdown):
                runs = [validated(cluster, suite), validated(cluster, suite)]
            healthy += runs if chosen.truth.plan.racks == 0 and not chosen.slow and not chosen.lossy else []
            loads.append(os.getloadavg()[0])
            said = counted(found[fault], chosen, runs, level, int(rng.integers(2**32)))
            sys.stderr.write(f"{repeat + 1}. {fault}: {'; '.join(said)}; load {loads[-1]:.1f}\n")
            sys.stderr.write(f"   clusterctl: {runs[0].result.reason}\n")
    lines = ["| fault | repeats |" + "".join(f" {name} |" for name in peer_rules.RULES)]
    lines.append("|---|--:|" + "--:|" * len(peer_rules.RULES))
    for fault, case in cases.items():
        cells = "".join(f" {' / '.join(found[fault][name].cells(case))} |" for name in peer_rules.RULES)
        lines.append(f"| {fault} | {options.repeats} |{cells}")
    usual = {"seed": 15, "rate": 200.0, "slowdown": 0.2}
    others = " ".join(f"--{name} {getattr(options, name):g}" for name in usual if getattr(options, name) != usual[name])
    return _TEXT.format(
        heading=verdicts.PLANTED,
        repeats=options.repeats,
        others=f" PLANTED_OPTIONS='{others}'" if others else "",
        date=datetime.now(tz=timezone.utc).date(),
        cores=os.cpu_count(),
        seed=options.seed,
        least=min(loads),
        most=max(loads),
        rate=f"{options.rate:g}",
        slowdown=options.slowdown,
        loss=LOSS_PERCENT,
        level=level / 1e6,
        healthy=len(healthy),
        noise=noise(healthy),
        table="\n".join(lines),
    )


if __name__ == "__main__":
    main()
