from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from clusterctl.cli import change, main, output
from clusterctl.cli.output import shown_command
from clusterctl.provisioning import run as provisioning
from clusterctl.provisioning.run import ProvisionRequest
from clusterctl.support.errors import ConfigError
from rich.table import Table


def test_what_is_shown_of_a_command_holds_no_value() -> None:
    pairs = {
        "-e": "-e",
        "a=1 b=2": "a=…",
        "--extra-vars=token=x": "--extra-vars=token=…",
        "-etoken=x": "-etoken=…",
        "-vbetoken=x": "-vbetoken=…",
        "--extra-vars": "--extra-vars",
        '{"a": "x"}': "{…}",
        '-be{"a": "x"}': "-be{…}",
        '["x", "a=1"]': "…",
        "-v": "-v",
        "nodes.ini": "nodes.ini",
    }
    values = ["a=1 b=2", "token=x", '{"a": "x"}', '["x", "a=1"]']
    assert shown_command(list(pairs), values) == ("clusterctl", *pairs.values())
    assert shown_command(["-e", "@f"], ["@f"]) == ("clusterctl", "-e", "@f")


@pytest.mark.parametrize(
    "words",
    [
        ["-be", "db_password=canary"],
        ["-bedb_password=canary"],
        ["-vvbe", "db_password=canary"],
        ["-edb_password=canary"],
        ["--extra-vars=db_password=canary"],
        ["--extra-vars", "user=x db_password='canary'"],
        ["-e", '{"db_password": "canary"}'],
        ["-be{db_password: canary}"],
        ["-vKbe", "{db_password: canary}"],
    ],
)
def test_no_form_of_an_extra_variable_reaches_the_record(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The words go through the command's own parser, as the user's do."""
    asked: list[ProvisionRequest] = []

    def stop(request: ProvisionRequest, _observer: object) -> None:
        asked.append(request)
        raise ConfigError("stopped")

    monkeypatch.setattr(provisioning, "provision", stop)
    monkeypatch.setattr(change, "ask_for", lambda *_: "typed")
    argv = ["provision", "nodes.ini", *words, "-y"]
    monkeypatch.setattr(sys, "argv", ["clusterctl", *argv])
    main.main(argv)
    (request,) = asked
    assert any("canary" in value for value in request.options.extra_vars)
    assert "canary" not in " ".join(request.argv)
    assert request.argv[:3] == ("clusterctl", "provision", "nodes.ini")
    assert request.argv[-1] == "-y"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (72, "1m12s"), (3780, "1h03m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_folded_hosts() -> None:
    assert output.folded(["node1", "node2", "node3", "gpu7"]) in {"gpu7,node[1-3]", "node[1-3],gpu7"}


@pytest.mark.parametrize(
    ("columns", "width", "whole"), [(None, 160, True), ("70", 70, False), ("wide", 160, True), ("0", 160, True)]
)
def test_without_a_terminal_the_width_is_what_columns_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str | None, width: int, *, whole: bool
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    output.console.cache_clear()
    try:
        assert output.console().width == width
        output.line("  " + "word " * 30)
    finally:
        output.console.cache_clear()
    first, *others = capsys.readouterr().err.splitlines()
    assert (not others) is whole
    assert first.startswith("  word")
    assert all(line.startswith("    word") and len(line) <= width for line in others), "whole words, indented"


def test_further_lines_of_a_list_begin_below_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.console.cache_clear()
    try:
        output.line("  1. " + "word " * 20)
    finally:
        output.console.cache_clear()
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("  1. word")
    assert {len(line) - len(line.lstrip()) for line in others} == {5}


@pytest.mark.parametrize(("columns", "wrapped"), [("40", True), ("", False)])
def test_an_error_wraps_at_words_where_the_width_is_known(
    columns: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    output.tell("the run " + "word " * 18 + "ends.")
    first, *others = capsys.readouterr().err.splitlines()
    assert bool(others) is wrapped
    assert first.startswith("clusterctl: the run word ")
    assert all(re.match(r"  \S", line) and len(line) <= int(columns) for line in others)


def test_an_answer_is_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.console.cache_clear()
    try:
        output.answer_line("what was asked for")
        output.line("progress")
    finally:
        output.console.cache_clear()
    assert capsys.readouterr() == ("what was asked for\n", "progress\n")


def test_no_line_of_a_table_ends_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("HOST", "RESULT", box=None, pad_edge=False)
    table.add_row("node1", "the longest")
    table.add_row("node2", "")
    output.console.cache_clear()
    try:
        output.answer().print(table)
        output.console().print(table, output.text(" a ", "b"), "", sep="|")
    finally:
        output.console.cache_clear()
    said = capsys.readouterr()
    assert said.out.splitlines() == ["HOST   RESULT", "node1  the longest", "node2"]
    assert said.err.splitlines() == [*said.out.splitlines(), " a", "b|"]


def test_a_terminal_is_written_to_as_rich_does() -> None:
    """Its progress is drawn over; a pseudo-terminal is one."""
    program = (
        "from clusterctl.cli import output\nfrom rich.table import Table\ntable = Table('A', 'BCD', box=None)\n"
        "table.add_row('a', 'b')\noutput.answer().print(table)"
    )
    reader, writer = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stdout=writer, check=True)
    os.close(writer)
    assert re.search(rb"b +\r?\n", os.read(reader, 4096))
    os.close(reader)
