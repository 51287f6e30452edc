# SPDX-License-Identifier: Apache-2.0
"""What a host says of its software may have any form: another one is no problem of the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.clusterctl.hpc.plugins.action import software_guard


@pytest.mark.parametrize(
    ("said", "guarded"),
    [
        *((said, False) for said in ({}, "x", ["x"], 7, None, [{"replaces": True}])),
        *(({"replaces": said}, said is True) for said in (True, False, "yes", 1, {"x": 1})),
    ],
)
def test_a_version_is_replaced_where_the_result_says_so(said: Any, guarded: bool) -> None:
    assert software_guard.replaces(said) is guarded


@pytest.mark.parametrize(
    ("lost", "may_lose", "refused"),
    [([], "0", False), (["node2"], "0", True), (["node2"], "1", False), (["node2"], "", False)],
)
def test_too_many_lost(lost: list[str], may_lose: str, refused: bool) -> None:
    assert software_guard.too_many(lost, may_lose) is refused


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_check_holds_up_no_host_because_another_was_lost(monkeypatch: pytest.MonkeyPatch, check_mode: bool) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    guard = software_guard.ActionModule.__new__(software_guard.ActionModule)
    guard._task = SimpleNamespace(args={"may_lose": "0"}, check_mode=check_mode)  # noqa: SLF001
    hosts = {"node1": {"software_staged": {"replaces": True}}, "node2": {}}
    known = {"hostvars": hosts, "ansible_play_hosts": ["node1"], "ansible_play_hosts_all": ["node1", "node2"]}
    found = guard.run(None, known)
    assert (found["guarded"], found["too_many"]) == (not check_mode, not check_mode)
