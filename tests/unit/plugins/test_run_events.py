"""What the callback sets in Ansible's main process."""

from __future__ import annotations

import pytest
from ansible import constants
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events


@pytest.mark.parametrize(("given", "then"), [(0.001, 0.01), (0.5, 0.5), (0.0001, 0.0001)])
def test_results_are_looked_for_less_often_unless_a_user_says_how_often(
    given: float, then: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DEFAULT_INTERNAL_POLL_INTERVAL", given)
    run_events.look_less_often()
    assert then == constants.DEFAULT_INTERNAL_POLL_INTERVAL
