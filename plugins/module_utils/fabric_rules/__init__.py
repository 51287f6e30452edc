# SPDX-License-Identifier: Apache-2.0
"""Choose the network that carries the cluster's jobs: facts of all nodes in, candidates and a decision out.

These modules neither read nor write anything. The role ``fabric`` and ``clusterctl`` use them on the controller. They
need the standard library of Python 3.9 alone. Facts are the dicts of ``node_look``.
"""

from __future__ import annotations

from .decision import (
    ALL_PAIRS_UP_TO,
    decide,
    files,
    matrix,
    openings,
    openmpi_include,
    pairs,
    prefer,
    proven_with,
    prrte_include,
    record,
    recorded,
)
from .model import (
    KIND_WORDS,
    Candidates,
    Decision,
    FabricError,
    Facts,
    Network,
    PairKind,
    PairResult,
    RdmaChoice,
    Rejection,
    connection_results,
    failure_words,
    fold,
    from_plain,
    listener_ports,
    listener_problems,
    plain,
    title,
)
from .networks import candidates, links, nccl_pins, rdma

__all__ = [
    "ALL_PAIRS_UP_TO",
    "KIND_WORDS",
    "Candidates",
    "Decision",
    "FabricError",
    "Facts",
    "Network",
    "PairKind",
    "PairResult",
    "RdmaChoice",
    "Rejection",
    "candidates",
    "connection_results",
    "decide",
    "failure_words",
    "files",
    "fold",
    "from_plain",
    "links",
    "listener_ports",
    "listener_problems",
    "matrix",
    "nccl_pins",
    "openings",
    "openmpi_include",
    "pairs",
    "plain",
    "prefer",
    "proven_with",
    "prrte_include",
    "rdma",
    "record",
    "recorded",
    "title",
]
