"""How long verdict and reports of a large record take, how much memory, and how large the page is.

Each size runs in a child of its own, which reads the record from a file, judges every check anew and writes the page,
JUnit, Prometheus' file and the JSON lines. Times are of the processor, so that others on the machine do not count, and
their sum is also printed in multiples of what ``json.loads`` takes for the same file in the same run, since machines
differ. Usage: ``python benchmarks/report_size.py [NODES ...]``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKS = 100
# All pairs up to here; beyond it, as many rounds of the tournament as the suite's default would take in its budget.
ALL_PAIRS = 1000
ROUNDS = 40
PAGE_NODES = 512  # the page's size is promised for so many


def main(arguments: list[str]) -> None:
    """Measure each size and print a row for it."""
    sizes = [int(word) for word in arguments] or [PAGE_NODES, 1000, 10_000]
    print("nodes   links   ranks record   loads    read verdict reports     all ratio    peak    page")
    for nodes in sizes:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "validation.json"
            subprocess.run([sys.executable, __file__, "--make", str(nodes), str(place)], check=True)
            plain = json.loads(_child("--plain", str(place)))
            took = json.loads(_child("--report", str(place)))
        whole = took["read"] + took["verdict"] + took["reports"]
        print(
            f"{nodes:>5} {took['links']:>7,} {took['ranks']:>7,} {plain['bytes'] / 1e6:>3.0f} MB"
            f" {plain['seconds']:>5.2f} s {took['read']:>5.2f} s {took['verdict']:>5.2f} s {took['reports']:>5.2f} s"
            f" {whole:>5.2f} s {whole / plain['seconds']:>4.1f}x {took['peak'] / 1e6:>4.0f} MB"
            f" {took['page'] / 1e6:>4.2f} MB",
            flush=True,
        )


def _child(*arguments: str) -> str:
    return subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def make(nodes: int, place: Path) -> None:
    """Write a record of so many nodes, one of them slow; the verdict has still to find it."""
    import records  # noqa: PLC0415 - the child that makes it is not the one that is measured
    from clusterctl.model.results import Verdict, worst  # noqa: PLC0415

    shape = records.Shape(
        nodes,
        slots=1,
        checks=CHECKS,
        slow=((nodes // 3, 0.1),),
        latency_bytes=(1,) if nodes > PAGE_NODES else (1, 64, 4096),
        bandwidth_bytes=(8 << 20,) if nodes > PAGE_NODES else (65536, 1 << 20, 8 << 20, 64 << 20),
        rounds=None if nodes <= ALL_PAIRS else ROUNDS,
    )
    made = records.record(shape)
    unjudged = {"verdict": Verdict.PASS, "culprits": (), "comparisons": (), "evidence": (), "hosts": ()}
    checks = tuple(check.model_copy(update=unjudged) for check in made.checks)
    made = made.model_copy(update={"checks": checks, "verdict": worst(checks)})
    place.write_text(made.model_dump_json(), encoding="utf-8")


def plain(place: Path) -> dict[str, float]:
    """Return what the standard library takes for the same file."""
    text = place.read_bytes()
    began = time.process_time()
    json.loads(text)
    return {"seconds": time.process_time() - began, "bytes": len(text)}


def report(place: Path) -> dict[str, float]:
    """Read, judge and write everything."""
    from clusterctl.analysis import speed_verdict  # noqa: PLC0415
    from clusterctl.analysis.robust_stats import OutlierPolicy  # noqa: PLC0415
    from clusterctl.model import results  # noqa: PLC0415
    from clusterctl.report import exports, files, page, prometheus, tables  # noqa: F401, PLC0415

    began = time.process_time()
    record = results.load(place.read_bytes(), place.name)
    read = time.process_time()
    checks = tuple(speed_verdict.assess(check, OutlierPolicy()) for check in record.checks)
    record = record.model_copy(update={"checks": checks, "verdict": results.worst(checks)})
    judged = time.process_time()
    folder = place.parent
    files.write(record, files.Places(folder / "p.html", folder / "j.xml", folder / "m.prom", folder / "l.jsonl"))
    tables.validation_opening(record)
    written = time.process_time()
    found = {host for check in checks for culprit in check.culprits for host in culprit.nodes}
    assert found == {record.hosts[len(record.hosts) // 3]}, f"the verdict names {found}"  # noqa: S101
    return {
        "read": read - began,
        "verdict": judged - read,
        "reports": written - judged,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "page": (folder / "p.html").stat().st_size,
        "links": sum(len(matrix.value) for check in checks for matrix in check.matrices),
        "ranks": sum(len(check.ranks) for check in checks),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(int(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--plain"]:
        print(json.dumps(plain(Path(sys.argv[2]))))
    elif sys.argv[1:2] == ["--report"]:
        print(json.dumps(report(Path(sys.argv[2]))))
    else:
        main(sys.argv[1:])
