"""The user's own checks on real nodes: one on each node, one on the launch node, one as the ranks of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import registry
from validated import Cluster, result

pytestmark = pytest.mark.cluster

SUM = "from mpi4py import MPI; c = MPI.COMM_WORLD; s = c.allreduce(c.rank); c.rank or print('sum', s, 'of', c.size)"
SUITE = f"""\
name: mine
extends: smoke
external:
  - name: disk
    command: [python3, -c, "print('write 120 MB/s')"]
    where: each_node
    regex: 'write (\\d+) MB/s'
    unit: MB/s
    better: higher
    reference: {{value: 500 MB/s, lower: -10 %}}
  - name: document
    command: [python3, -c, "import json; print('noise'); print(json.dumps({{'results': [{{'t': 3.5}}]}}))"]
    json_path: results[0].t
    unit: us
  - name: ranks
    command: [/usr/local/python_env/bin/python, -c, "{SUM}"]
    where: mpi
    ranks_per_node: 1
    regex: 'sum (\\d+) of 4'
  - name: broken
    command: [sh, -c, "echo it is broken; exit 3"]
    where: each_node
"""


def test_a_user_s_own_checks_have_verdicts_and_figures(mpi_cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "validation.yml"
    path.write_text(SUITE, encoding="utf-8")
    names = ("disk", "document", "ranks", "broken")
    record = mpi_cluster.validate(*names, suite=registry.load(path))
    disk, document, ranks, broken = (result(record, name) for name in names)
    assert (disk.verdict, sorted(figure.nodes[0] for figure in disk.figures)) == (Verdict.FAIL, sorted(record.slots))
    assert "76 % below 500 MB/s" in disk.reason
    assert (document.verdict, document.figures[0].value) == (Verdict.PASS, 3.5)
    assert (ranks.verdict, ranks.figures[0].value) == (Verdict.PASS, 6.0)
    assert (broken.verdict, broken.reason) == (Verdict.FAIL, "sh: exit code 3 on node[1-4]: it is broken")
    assert mpi_cluster.is_clean()
