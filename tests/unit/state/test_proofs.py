from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from clusterctl.state import paths, proofs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_last_proof_of_each_node_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = datetime(2026, 3, 9, tzinfo=timezone.utc)
    assert proofs.read("lab") == {}
    proofs.keep("lab", ["node1", "node2"], first)
    proofs.keep("lab", ["node2"], first + timedelta(days=1))
    assert proofs.read("lab") == {"node1": first, "node2": first + timedelta(days=1)}
    paths.proofs_file("lab").write_text("{")
    assert proofs.read("lab") == {}


def test_a_node_that_was_chosen_and_not_proved_had_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = datetime(2026, 3, 9, tzinfo=timezone.utc)
    later = first + timedelta(days=1)
    proofs.take_turns("lab", ["node1", "node2"], first)
    proofs.keep("lab", ["node2", "node3"], later)
    assert proofs.read("lab") == {"node2": later, "node3": later}
    assert proofs.turns("lab") == {"node1": first, "node2": later, "node3": later}
