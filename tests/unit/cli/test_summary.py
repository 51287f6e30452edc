from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.cli import summary
from clusterctl.model.run_record import HostSummary

if TYPE_CHECKING:
    import pytest


def test_many_alike_hosts_are_one_row() -> None:
    hosts = tuple(HostSummary(host=f"n{number}", outcome="ok") for number in range(1, 65))
    assert [name for name, _ in summary._rows(hosts)] == ["n[1-64]"]  # noqa: SLF001 - seen without a terminal


def test_the_number_of_changes_and_their_list_are_the_same_thing(capsys: pytest.CaptureFixture[str]) -> None:
    host = HostSummary(host="node1", outcome="changed", changed=17, changes=tuple(f"c{n}" for n in range(48)))
    summary._hosts((host,))  # noqa: SLF001 - seen without a terminal
    said = capsys.readouterr().err
    assert "c5 and 42 more" in said
    assert " 48 " in said
    assert "17" not in said
