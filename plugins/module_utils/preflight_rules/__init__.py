# SPDX-License-Identifier: Apache-2.0
"""Rules of the role preflight, as pure functions: facts and variables in, problems out.

They run on the controller only. A problem is a sentence that says what is wrong, with its cure. Neither names the host,
so that equal problems of many hosts share one line.
"""

from __future__ import annotations

from .member import (
    Settings,
    card_warnings,
    claim_problems,
    cuda_of,
    inventory_names,
    known_names,
    member,
    membership_problems,
    merge_members,
    node_addresses,
    provides,
    reached_at,
    settings,
    shared_address_warnings,
)
from .node import (
    Clock,
    Limits,
    Problem,
    VariableRules,
    builders,
    clock,
    clock_problems,
    for_builds,
    look_failure,
    node_problems,
    shortened,
    table,
    without_home,
)

__all__ = [
    "Clock",
    "Limits",
    "Problem",
    "Settings",
    "VariableRules",
    "builders",
    "card_warnings",
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
    "reached_at",
    "settings",
    "shared_address_warnings",
    "shortened",
    "table",
    "without_home",
]
