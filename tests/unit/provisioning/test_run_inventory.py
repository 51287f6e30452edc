"""A provision reads an unchanged inventory from the cache; asking Ansible takes as long as looking at every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.cli.main import main
from clusterctl.inventory import ansible_call

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.programs


def test_an_unchanged_inventory_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "lab.ini"
    calls: list[Any] = []
    call = ansible_call.call
    monkeypatch.setattr(ansible_call, "call", lambda *given: calls.append(given) or call(*given))

    def asked(line: str) -> int:
        """Return how often a run that ends before it looks at a node asks Ansible."""
        place.write_text(f"{line}\n", encoding="utf-8")
        calls.clear()
        assert main(["provision", str(place), "--tags", "unheard_of", "--yes"]) == 1
        assert "unheard_of" in capsys.readouterr().err
        return len(calls)

    assert [asked("node1 slots=1"), asked("node1 slots=1"), asked("node1 slots=2")] == [1, 0, 1]
