"""What a validation says on the screen and in a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from clusterctl.cli import output, validate
from clusterctl.cli.output import StreamFormat
from clusterctl.model.results import CheckFinished, CheckStarted, ValidationEvent, ValidationRecord
from clusterctl.validation import run as validation
from clusterctl.validation.options import ValidationOptions
from rich.console import Console
from rich.text import Text

RECORD = Path(__file__).parents[2] / "data" / "records" / "healthy.json"


@pytest.mark.parametrize("one_file", [False, True])
def test_off_a_terminal_each_verdict_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, one_file: bool
) -> None:
    record = ValidationRecord.model_validate_json(RECORD.read_text(encoding="utf-8"))

    def told(_path: Path, _asked: ValidationOptions, tell: Callable[[ValidationEvent], None]) -> ValidationRecord:
        for result in record.checks:
            tell(CheckFinished(result))
        return record

    monkeypatch.setattr(validation, "validate", told)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(output, "is_one_file", lambda: one_file)
    output.console.cache_clear()
    try:
        validate.after_provision(Path("inventory.ini"), ValidationOptions(), StreamFormat.TEXT)
    finally:
        output.console.cache_clear()
    said = capsys.readouterr()
    lines = [line for line in said.out.splitlines() if line]
    for result in record.checks:
        assert len([line for line in said.err.splitlines() if result.check in line.split()[:2]]) == 1, result.check
        assert len([line for line in lines if line.startswith(f"{result.check} ")]) == (not one_file), result.check
    assert lines[-1].startswith("PASS: ")
    assert any(line.startswith("CHECK ") for line in lines) is not one_file


def test_on_a_terminal_the_checks_that_ran_become_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = ValidationRecord.model_validate_json(RECORD.read_text(encoding="utf-8"))
    written = io.StringIO()
    screens = {True: Console(file=written, force_terminal=True, width=80), False: Console(width=80)}
    monkeypatch.setattr(output, "console", lambda *, stderr=True: screens[stderr])

    def told(_path: Path, _asked: ValidationOptions, tell: Callable[[ValidationEvent], None]) -> ValidationRecord:
        tell(CheckStarted("pairs", 4, 17, 60.0))
        for result in record.checks:
            tell(CheckFinished(result))
        return record

    monkeypatch.setattr(validation, "validate", told)
    validate.after_provision(Path("inventory.ini"), ValidationOptions(), StreamFormat.TEXT)
    live = written.getvalue()
    assert "REASON" in live
    assert all(len(line) <= 80 for line in Text.from_ansi(live).plain.splitlines())
    erased = live[live.rindex("REASON") :].count("\x1b[2K")
    assert erased >= len(record.checks), "what was live is gone"
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("pairs ")]) == 1
    assert all(line.startswith(" " * 20) or line[:1] != " " for line in lines), "further lines of a reason are indented"
