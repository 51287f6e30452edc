"""How long 'clusterctl --help' takes against 'python -c "import rich"', in one run.

python benchmarks/help_time.py [--repeat 15]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path


def wall_seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    repeat = parser.parse_args().repeat
    floor = [sys.executable, "-c", "import rich"]
    ours = [str(Path(sys.executable).with_name("clusterctl")), "--help"]
    samples: dict[str, list[float]] = {"import rich": [], "clusterctl --help": []}
    wall_seconds(floor)
    wall_seconds(ours)
    for _ in range(repeat):  # alternating, so that a busy moment hits both
        samples["import rich"].append(wall_seconds(floor))
        samples["clusterctl --help"].append(wall_seconds(ours))
    for name, seconds in samples.items():
        print(f"{name:18} median {statistics.median(seconds):.3f} s, spread {min(seconds):.3f} to {max(seconds):.3f} s")
    ratio = statistics.median(samples["clusterctl --help"]) / statistics.median(samples["import rich"])
    print(f"ratio {ratio:.2f} (at most 3)")


if __name__ == "__main__":
    main()
