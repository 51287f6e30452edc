# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof that two ranks of a host greet each other on the library that they are to run on."""

from __future__ import annotations

# Without RDMA, Open MPI takes UCX for any transport and device alone.
THROUGH_UCX = ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]


def launch(*options: str) -> list[str]:
    """Return the command that starts the two ranks."""
    return ["@LINK@/bin/mpirun", "--host", "localhost:2", "-np", "2", *options, "@LINK@/libexec/clusterctl-hello"]


def said(library: str) -> list[str]:
    """Return what they print where MPI's library lies in a folder."""
    return ['"rank": 0, "size": 2', '"rank": 1, "size": 2', f'"library_path": "{library}/libmpi.so']
