# SPDX-License-Identifier: Apache-2.0
"""A task that runs once for all nodes reads only answers of the right form: another one is no problem of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.support import content
from role_templates import rendered

LINKS = {"/usr/local/openmpi": "/usr/local/openmpi-5.0.1-0"}


@pytest.mark.parametrize(
    ("liar", "guarded"),
    [({}, False), ("x", False), (["x"], False), (7, False), (None, False), ([LINKS], False), (LINKS, True)],
)
@pytest.mark.parametrize("honest", [{}, LINKS])
def test_links_of_before(liar: Any, honest: dict[str, str], guarded: bool) -> None:
    plays = yaml.safe_load(Path(content.root(), "playbooks", "provision.yml").read_text(encoding="utf-8"))
    tasks = [task for play in plays for task in play.get("tasks", [])]
    (task,) = (task for task in tasks if "software_guarded" in task.get("ansible.builtin.set_fact", {}))
    expression = task["ansible.builtin.set_fact"]["software_guarded"].strip().removeprefix("{{").removesuffix("}}")
    variables = {
        "ansible_play_hosts": ["node1", "node2", "node3"],
        "hostvars": {
            "node1": {"software_checked": {"before": honest}},
            "node2": {"software_checked": {"before": liar}},
            "node3": {"software_checked": {"skipped": True}},
        },
    }

    assert rendered(expression, variables, []) is (guarded or bool(honest))
