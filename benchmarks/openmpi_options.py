"""What the role's configure options, compiler flags and make flags save against a plain ``./configure && make``.

Both are built one after the other on the same node of a sandbox, from the same verified source. The figure is the ratio
of their CPU seconds (user and system), which a busy machine spoils less than wall time.

    python benchmarks/openmpi_options.py [--version 5.0.7] [--image debian12]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import openmpi_builder

NAME = "bench-options"

PLAIN_STEPS = [
    {"name": "configure", "argv": ["./configure"], "chdir": "source"},
    {"name": "make", "argv": ["make", "-j@JOBS@"], "chdir": "source"},
    {"name": "install", "argv": ["make", "install", "DESTDIR=@STAGE@"], "chdir": "source"},
]
LEAN_STEPS = [
    {"name": "configure", "argv": "{{ __openmpi_configure_argv }}", "chdir": "source"},
    {"name": "make", "argv": "{{ __openmpi_make_argv + ['-j@JOBS@'] }}", "chdir": "source"},
    {"name": "install", "argv": "{{ __openmpi_make_argv + ['install', 'DESTDIR=@STAGE@'] }}", "chdir": "source"},
]


def build(way: str, steps: list[dict[str, Any]], prefix: str, exclude: Any, scratch: Path) -> dict[str, Any]:
    return {
        "name": f"Build the {way} way",
        "clusterctl.hpc.artifact_build": {
            "name": f"openmpi-{way}",
            "version": "{{ openmpi_version }}",
            "inputs": {"way": way},
            "cache_dir": str(scratch),
            "packages": "{{ __openmpi_build_packages + __openmpi_series_packages[__openmpi_series] | default([]) }}",
            "package_options": "{{ __openmpi_package_options }}",
            "prefix": prefix,
            "files": [{"source": openmpi_builder.SOURCE, "dest": "source", "unpack": True, "exclude": exclude}],
            "steps": steps,
        },
        "register": way,
    }


def measure(version: str, image: str, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    tasks = [
        build("plain", PLAIN_STEPS, "/usr/local", [], scratch),
        build("lean", LEAN_STEPS, "/usr/local/openmpi", "{{ __openmpi_excluded_docs }}", scratch),
    ]
    told = "{{ {'plain': plain.steps, 'lean': lean.steps} | to_json }}"
    found: dict[str, list[dict[str, Any]]] = openmpi_builder.measured(NAME, version, image, scratch, tasks, told)
    return found


def report(version: str, measured: dict[str, list[dict[str, Any]]]) -> None:
    print(f"\nOpen MPI {version}, CPU seconds (user + system)\n")
    print(f"| {'step':<16} | {'plain':>7} | {'lean':>7} | {'ratio':>5} |")
    print(f"|{'-' * 18}|{'-' * 9}|{'-' * 9}|{'-' * 7}|")
    totals = {"plain": 0.0, "lean": 0.0}
    for plain, lean in zip(measured["plain"], measured["lean"], strict=True):
        for way, step in (("plain", plain), ("lean", lean)):
            totals[way] += step["cpu_seconds"]
        row(plain["name"], plain["cpu_seconds"], lean["cpu_seconds"])
        if plain["name"] == "make":
            row("configure + make", totals["plain"], totals["lean"])
    row("all", totals["plain"], totals["lean"])


def row(name: str, plain: float, lean: float) -> None:
    print(f"| {name:<16} | {plain:>7.1f} | {lean:>7.1f} | {lean / plain:>5.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="5.0.7")
    parser.add_argument("--image", default="debian12")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as scratch:
        report(options.version, measure(options.version, options.image, Path(scratch)))


if __name__ == "__main__":
    main()
