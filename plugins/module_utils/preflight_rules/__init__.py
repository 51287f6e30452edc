# SPDX-License-Identifier: Apache-2.0
"""Rules of the role preflight, as pure functions: facts and variables in, problems out.

They run on the controller only. A problem is a sentence that says what is wrong, with its cure. Neither names the host,
so that equal problems of many hosts share one line.
"""

from __future__ import annotations

from .clocks import Clock, clock, clock_problems
from .member import Settings, cuda_of, inventory_names, known_names, member, node_addresses, provides, settings
from .membership import claim_problems, membership_problems, merge_members, shared_address_warnings
from .model import Limits, Problem
from .node import builders, for_builds, look_failure, node_problems, without_home
from .variables import VariableRules
from .words import shortened, table

__all__ = [
    "Clock",
    "Limits",
    "Problem",
    "Settings",
    "VariableRules",
    "builders",
    "claim_problems",
    "clock",
    "clock_problems",
    "cuda_of",
    "for_builds",
    "inventory_names",
    "known_names",
    "look_failure",
    "member",
    "membership_problems",
    "merge_members",
    "node_addresses",
    "node_problems",
    "provides",
    "settings",
    "shared_address_warnings",
    "shortened",
    "table",
    "without_home",
]
