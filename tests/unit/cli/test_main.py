from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_unexpected_is_a_sentence_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    secret = tmp_path / "clusterctl" / "crashes"
    error = RuntimeError("boom\nand more")
    assert main._explain(error, ["version"]) == 1  # noqa: SLF001 - the last line of defence has no other door
    (place,) = secret.iterdir()
    assert "RuntimeError: boom" in place.read_text(encoding="utf-8")
    assert place.stat().st_mode & 0o777 == 0o600
