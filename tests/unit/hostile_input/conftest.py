"""Profiles of hypothesis: a few fixed examples here, thousands of drawn ones where CLUSTERCTL_FUZZ says how many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_EXAMPLES = int(os.environ.get("CLUSTERCTL_FUZZ", "0"))
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile(
    "fixed", max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=_SLOW
)
settings.register_profile(
    "drawn", max_examples=_EXAMPLES or 1, deadline=None, print_blob=True, suppress_health_check=_SLOW
)
settings.load_profile("drawn" if _EXAMPLES else "fixed")
