"""The noise level of a cluster: by how much a link's median differs from one run to the next.

    python tests/sim/noise.py validation.json validation.json [...]

The records are of healthy runs of one cluster, at least two. Of each link and size the logarithm of its median is
taken, less that of the run as a whole; by what is left differs from the mean of the link over the runs is the noise
(normalised MAD, corrected for the noise of that mean). Links off by more than five times that had a bad moment.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from clusterctl.model import results, units

FAR = 5.0


def main() -> None:
    runs: dict[tuple[str, int], list[tuple[results.PairMatrix, str]]] = defaultdict(list)
    for path in sys.argv[1:]:
        record = results.load(Path(path).read_bytes(), path)
        for matrix in (matrix for check in record.checks for matrix in check.matrices):
            runs[matrix.quantity, matrix.size_bytes].append((matrix, path))
    for (quantity, size_bytes), found in sorted(runs.items()):
        first = found[0][0]
        same = [m for m, _ in found if (m.nodes, m.first, m.second) == (first.nodes, first.first, first.second)]
        words = f"{quantity} of {units.size_words(size_bytes)}, {len(first.nodes)} nodes, {len(same)} runs"
        if len(same) < 2:
            sys.stdout.write(f"{words}: two runs of the same pairs are needed\n")
            continue
        logs = np.log([m.value for m in same])
        logs -= np.median(logs, axis=1, keepdims=True)
        off = (logs - logs.mean(axis=0)) * math.sqrt(len(same) / (len(same) - 1))
        noise = 1.4826 * float(np.median(np.abs(off)))
        late = float((np.abs(off) > FAR * noise).mean())
        sys.stdout.write(f"{words}: noise {noise:.1%}, bad moments {late:.1%} of links and runs\n")


if __name__ == "__main__":
    main()
