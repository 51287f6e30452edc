"""Lists of the roles keep their order: what they write would otherwise differ from one run to the next."""

from __future__ import annotations

import re

from clusterctl.support import content

# These filters of Ansible go through a set, whose order differs in each process.
UNORDERED = re.compile(r"\|\s*(?:difference|intersect|symmetric_difference|union)\b(?!\([^|]*\) \| length)")


def test_no_list_goes_through_a_set() -> None:
    root = content.root()
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for pattern in ("roles/*/tasks/*.yml", "roles/*/defaults/*.yml", "roles/*/vars/*.yml", "playbooks/*.yml")
        for path in sorted(root.glob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
        if UNORDERED.search(line)
    ]
    assert found == []
