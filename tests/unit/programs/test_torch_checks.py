"""What the check ``torchrun`` asks of the PyTorch of a node."""

from __future__ import annotations

from pathlib import Path

import node_programs
import pytest


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ('parser.add_argument(\n    "--shutdown-timeout",\n    "--shutdown_timeout",\n)\n', True),
        ('parser.add_argument("--monitor-interval")\n', False),
        ("", False),
    ],
)
def test_an_older_torchrun_gets_no_option_that_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, known: bool
) -> None:
    program = node_programs.load("torch_checks")
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('this takes seconds')\n")
    if source:
        (tmp_path / "torch" / "distributed" / "run.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert program.takes(program.SHUTDOWN) is known
