"""What kept answers of configure save in a later build, and whether that build is configured the same.

One node of a sandbox configures Open MPI as the role does: once to get the answers, with other options and in another
folder, then in turns with and without them. Each configure (Open MPI, libevent, hwloc, OpenPMIx, PRRTE) has a cache of
its own. All compared trees are made in one folder, with one date, so they are compared byte by byte.

    python benchmarks/configure_cache.py [--version 5.0.7] [--runs 3] [--seed-option=--enable-dlopen]...
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import openmpi_builder

NAME = "bench-configure"
MARK = "CONFIGURE-TREES "
DATE = "1700000000"  # one date for all, because configure writes it into every Makefile
# PRRTE and OpenPMIx are told to use no cache; only a site file can give them one.
SITE = 'test -z "$ANSWERS" || cache_file=$ANSWERS/${PWD##*/}.cache\n'
# no kept answer, all but those of the environment and of packages, those of autoconf's own tests (configure_trees.py)
WAYS = ("plain", "most", "standard")
SEED_OPTIONS = ["--prefix=/opt/other", "--enable-dlopen", "--enable-mca-no-build=none"]


def configure(name: str, folder: str, answers: str, more: list[str]) -> list[dict[str, Any]]:
    """Return the steps of one configure in a fresh copy of the source."""
    environment = {"SOURCE_DATE_EPOCH": DATE, "CONFIG_SITE": "@WORK@/config.site"}
    if answers:
        environment["ANSWERS"] = f"@WORK@/{answers}"
    return [
        {"name": f"copy-{name}", "argv": ["mkdir", folder]},
        {"name": f"copy-{name}", "argv": ["cp", "-a", "source", f"{folder}/source"]},
        {
            "name": name,
            "argv": "{{ __openmpi_configure_argv + " + json.dumps(more) + " }}",
            "chdir": f"{folder}/source",
            "environment": environment,
        },
    ]


def steps(runs: int, seed_options: list[str]) -> list[dict[str, Any]]:
    trees = ["python3", "trees.py"]
    found = [
        {"name": "folder", "argv": ["mkdir", "first-answers"]},
        *configure("first", "first", "first-answers", seed_options),
        {"name": "keep", "argv": [*trees, "keep", "first-answers", "@WORK@"]},
    ]
    for number in range(1, runs + 1):
        for way in WAYS:
            name = f"{way}-{number}"
            answers = f"answers-{name}" if way != "plain" else ""
            if answers:
                found.append({"name": "answers", "argv": ["cp", "-a", way, answers]})
            found += configure(name, "run", answers, [])
            found.append({"name": "aside", "argv": ["mv", "run/source", name]})
            found.append({"name": "aside", "argv": ["rmdir", "run"]})
    others = [f"{way}-{number}" for number in range(1, runs + 1) for way in WAYS][1:]
    found.append({"name": "compare", "argv": [*trees, "compare", "plain-1", *others]})
    found.append({"name": "result", "argv": ["mkdir", "-p", "@TREE@/done"]})
    return found


def measure(version: str, image: str, scratch: Path, runs: int, seed_options: list[str]) -> dict[str, Any]:
    program = Path(__file__).with_name("configure_trees.py").read_text(encoding="utf-8")
    tasks = [
        {
            "name": "Configure with and without kept answers",
            "clusterctl.hpc.artifact_build": {
                "name": NAME,
                "version": "{{ openmpi_version }}",
                "inputs": {"runs": runs},
                "cache_dir": str(scratch),
                "packages": "{{ __openmpi_build_packages + ['python3'] }}",
                "package_options": "{{ __openmpi_package_options }}",
                "files": [
                    {
                        "source": openmpi_builder.SOURCE,
                        "dest": "source",
                        "unpack": True,
                        "exclude": "{{ __openmpi_excluded_docs }}",
                    },
                    {"content": SITE, "dest": "config.site"},
                    {"content": "{{ program | b64decode }}", "dest": "trees.py"},
                ],
                "steps": steps(runs, seed_options),
            },
            "vars": {"program": base64.b64encode(program.encode()).decode()},
            "register": "built",
        },
        {"ansible.builtin.slurp": {"src": "{{ built.log }}"}, "register": "log"},
    ]
    told = "{{ {'steps': built.steps, 'log': log.content} | to_json }}"
    found: dict[str, Any] = openmpi_builder.measured(NAME, version, image, scratch, tasks, told)
    return found


def report(version: str, measured: dict[str, Any], load: tuple[float, float, float]) -> bool:
    """Print both times and every difference; return whether all trees are equal."""
    log = base64.b64decode(measured["log"]).decode(errors="replace")
    rows = [json.loads(line[len(MARK) :]) for line in log.splitlines() if line.startswith(MARK)]
    kept = next(row["kept"] for row in rows if "kept" in row)
    after = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\nOpen MPI {version}; load before {' '.join(f'{value:.1f}' for value in load)}, after {after}")
    print(f"of {kept['answers']} answers, most: {kept['most']}, standard: {kept['standard']}\n")
    print("| configure | CPU s, each run | median | wall s, each run |\n|---|---|---|---|")
    medians = {}
    for way in ("first", *WAYS):
        taken = [step for step in measured["steps"] if step["name"].split("-")[0] == way]
        cpu = [step["cpu_seconds"] for step in taken]
        medians[way] = statistics.median(cpu)
        walls = " ".join(f"{step['seconds']:.1f}" for step in taken)
        print(f"| {way} | {' '.join(f'{value:.1f}' for value in cpu)} | {medians[way]:.1f} | {walls} |")
    for way in WAYS[1:]:
        print(f"\nratio {way} to plain, CPU: {medians[way] / medians['plain']:.2f}")
    compared = [row["compared"] for row in rows if "compared" in row]
    for row in compared:
        print(f"{row['tree']}: {len(row['differing'])} of {row['files']} files differ from {row['with']}")
        for name, lines in row["lines"].items():
            print("\n".join([f"  {name}", *(f"    {line}" for line in lines)]))
    return not any(row["differing"] for row in compared)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="5.0.7")
    parser.add_argument("--image", default="debian12")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed-option", action="append", help=f"default: {' '.join(SEED_OPTIONS)}")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        measured = measure(
            options.version, options.image, Path(scratch), options.runs, options.seed_option or SEED_OPTIONS
        )
        return 0 if report(options.version, measured, load) else 1


if __name__ == "__main__":
    sys.exit(main())
