from __future__ import annotations

from pathlib import Path

from clusterctl.state import paths


def test_two_inventories_of_one_name_are_two_clusters() -> None:
    assert paths.cluster_id(Path("/a/inventory.ini")) != paths.cluster_id(Path("/b/inventory.ini"))
