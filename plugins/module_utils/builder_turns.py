# SPDX-License-Identifier: Apache-2.0
"""Which host of a platform builds which artifact, where several are built at the same time.

Open MPI is built by the first host. What needs nothing of it goes to the next ones. Horovod is built beside mpi4py. The
numbers go round where a platform has fewer hosts. This runs on the controller only.
"""

from __future__ import annotations

TURNS = {"python_env": 1, "cpython": 1, "nccl": 2, "horovod": 1}


def turn(name: str, hosts: int) -> int:
    """Return the place of the host that builds an artifact.

    Args:
        name: the artifact's name; one that is not built beside others goes to the first host.
        hosts: how many hosts of the platform may build.
    """
    return TURNS.get(name, 0) % hosts
