# SPDX-License-Identifier: Apache-2.0
"""What a host says of its links may have any form: another one is no problem of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import software_guard

LINKS = {"/usr/local/openmpi": "/usr/local/openmpi-5.0.1-0"}


@pytest.mark.parametrize(
    ("said", "guarded"),
    [({}, False), ("x", False), (["x"], False), (7, False), (None, False), ([LINKS], False), (LINKS, True)],
)
def test_links_of_before(said: Any, guarded: bool) -> None:
    assert software_guard.replaces(said) is guarded


@pytest.mark.parametrize(
    ("lost", "may_lose", "refused"),
    [([], "0", False), (["node2"], "0", True), (["node2"], "1", False), (["node2"], "", False)],
)
def test_too_many_lost(lost: list[str], may_lose: str, refused: bool) -> None:
    assert software_guard.too_many(lost, may_lose) is refused
