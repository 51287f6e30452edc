"""check_node.py on a provisioned node: a healthy one is fit, and each planted fault is named with its cure."""

from __future__ import annotations

import pytest
from validated import Cluster

pytestmark = pytest.mark.cluster

LOOK = "/usr/bin/python3 -I -S /usr/local/libexec/clusterctl/check_node.py --quick --node node2"
# Plants a fault, looks, and takes it back, whatever the look says.
PLANTED = {
    "link": ("mv /usr/local/openmpi /usr/local/away", "mv /usr/local/away /usr/local/openmpi", "Open MPI"),
    "folder": ("chmod 755 /tmp", "chmod 1777 /tmp", "is not writable"),
    "shared memory": (
        "fallocate -l $(df --output=avail -B1 /dev/shm | tail -1) /dev/shm/full",
        "rm /dev/shm/full",
        "shm is full",
    ),
    "loader": ("cp /etc/ld.so.cache /root/kept; : >/etc/ld.so.cache", "mv /root/kept /etc/ld.so.cache", "ldconfig"),
}


def test_a_fit_node_and_planted_faults(mpi_cluster: Cluster) -> None:
    script = [f"{LOOK}; echo $?"]
    script += [f"{plant}; SLURM_JOB_UID=65534 {LOOK}; echo $?; {mend}" for plant, mend, _ in PLANTED.values()]
    container = mpi_cluster.box.node("node2").container
    lines = mpi_cluster.engine.text("exec", container, "sh", "-c", "\n".join(script)).splitlines()
    told, codes = lines[::2], lines[1::2]
    assert codes == ["0", *["10"] * len(PLANTED)], lines
    assert told[0].startswith("node2: fit")
    for line, (_, _, words) in zip(told[1:], PLANTED.values(), strict=True):
        assert words in line
