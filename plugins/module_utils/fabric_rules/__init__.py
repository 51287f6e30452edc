# SPDX-License-Identifier: Apache-2.0
"""Choose the network that carries the cluster's jobs: facts of all nodes in, candidates and a decision out.

These modules neither read nor write anything. The role ``fabric`` and ``clusterctl`` use them on the controller. They
need the standard library of Python 3.9 alone. Facts are the dicts of ``node_look``.
"""

from __future__ import annotations

from . import answers
from .addresses import links
from .config_files import files, openmpi_include, prrte_include, record
from .decision import ALL_PAIRS_UP_TO, decide, matrix, pairs, prefer, proven_with, recorded
from .host_words import fold
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
)
from .networks import candidates
from .openings import openings
from .plain_data import from_plain, plain
from .rdma_ports import nccl_pins, rdma
from .words import failure_words, title

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
    "answers",
    "candidates",
    "decide",
    "failure_words",
    "files",
    "fold",
    "from_plain",
    "links",
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
