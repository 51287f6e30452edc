"""What a node said is one line of printable characters of bounded length, on every way to the terminal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import factory
import pytest
from clusterctl import cli
from clusterctl.cli import doctor, main, output, progress, summary, validate
from clusterctl.model.results import CheckFinished, CheckProgress, CheckStarted
from clusterctl.model.run_record import HostResult, HostSummary, Note, Problem, StageStarted
from clusterctl.support.errors import UnreachableError
from clusterctl.support.words import escaped
from rich.table import Table

FORGED = "[ 0:00] node2: FAILED in everything"
EVIL = f"gone\n{FORGED}\r\n\x1b[2J\u202e\u2028{FORGED}\t\x9b31m[/red][bold]\u200b"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u200b-\u200f\u2066-\u2069]")


class Screen:
    """What has reached the terminal."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._seen = capsys, ""

    def getvalue(self) -> str:
        self._seen += self._capsys.readouterr().err
        return self._seen


@pytest.fixture
def screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.setenv("COLUMNS", "4000")
    output.console.cache_clear()
    yield Screen(capsys)
    output.console.cache_clear()


def is_kept(shown: str) -> None:
    assert FORGED in shown
    assert not [line for line in shown.splitlines() if line.strip().startswith(FORGED)], shown
    assert not OBEYED.search(shown), shown


def test_a_line_is_one_line_and_has_an_end() -> None:
    assert escaped("a\nb\tc\\n") == "a\\nb\\tc\\n"
    assert "\n" not in escaped(EVIL)
    assert not OBEYED.search(escaped(EVIL))
    assert len(escaped("x" * 10**7)) < 10**5
    assert escaped("x" * 10**7).endswith("…")
    assert escaped("für 30 µs → gut") == "für 30 µs → gut"


def test_plain_lines_of_a_run(screen: Screen) -> None:
    lines = progress.Lines()
    lines.phase(EVIL)
    lines.event(StageStarted(at=1.0, stage=EVIL, task=EVIL))
    lines.event(Note(at=100.0, host="node1", text=EVIL))
    for outcome in ("failed", "unreachable"):
        lines.event(HostResult(at=2.0, host="node1", stage="s", task=EVIL, outcome=outcome, message=EVIL))
    is_kept(screen.getvalue())


def test_the_page_of_a_run(screen: Screen) -> None:
    page = progress.Page(ask=False)
    page.phase(EVIL)
    page.event(Note(at=100.0, host="node1", text=EVIL))
    page.event(HostResult(at=2.0, host="node2", stage=EVIL, task=EVIL, outcome="failed", message=EVIL))
    output.console().print(page._page())  # noqa: SLF001 - what Live shows
    is_kept(screen.getvalue())


def test_the_checks_while_they_run(screen: Screen) -> None:
    lines = validate._Lines()  # noqa: SLF001 - what Live shows
    lines(CheckStarted("hello", 1, 1, 60.0))
    lines(CheckProgress("hello", EVIL))
    output.console().print(lines._page())  # noqa: SLF001 - the same
    lines(CheckFinished(factory.check("hello", "FAIL", reason=EVIL)))
    output.console().print(lines._page())  # noqa: SLF001 - the same
    is_kept(screen.getvalue())


def test_the_end_of_a_run(screen: Screen) -> None:
    record = factory.run_record().model_copy(
        update={
            "problems": (Problem(host="node1", subject="a", problem=EVIL, cure=EVIL),),
            "warnings": (EVIL,),
            "message": EVIL,
            "exit_code": 2,
        }
    )
    summary.show(record)
    host = HostSummary(host="node1", outcome="failed", failed_stage="s", failed_task=EVIL, message=EVIL)
    summary.show(record.model_copy(update={"problems": (), "hosts": (host,)}))
    is_kept(screen.getvalue())


def test_a_plain_cell_of_a_table(screen: Screen) -> None:
    table = Table(title=EVIL, box=None)
    table.add_column(EVIL)
    table.add_row(EVIL)
    output.console().print(table)
    output.console().print(EVIL)
    is_kept(screen.getvalue())
    assert "[/red][bold]" in screen.getvalue()


def test_a_line_that_is_overwritten(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    doctor._transient(EVIL)  # noqa: SLF001 - needs a terminal
    assert FORGED in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()
    assert not OBEYED.search(screen.getvalue().replace("\r\x1b[K", ""))


def test_the_sentence_of_an_error(screen: Screen) -> None:
    main._explain(UnreachableError(EVIL), [])  # noqa: SLF001 - without a command
    is_kept(screen.getvalue())


def test_no_command_writes_to_the_terminal_on_another_way() -> None:
    """Rich's Text is made in output alone, and so is a line on stderr that holds more than our own words."""
    found = []
    for path in sorted(Path(cli.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Text", "Text.assemble", "print"}:
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.stderr.write" and not _is_safe(node):
                found.append(f"{path.name}:{node.lineno}")
    assert [place for place in found if not place.startswith("output.py:")] == []


def _is_safe(call: ast.Call) -> bool:
    """Whether what is written is a text of ours, or goes through escaped: clusterctl-launch has no console."""
    return isinstance(call.args[0], ast.Constant) or "escaped(" in ast.unparse(call)
