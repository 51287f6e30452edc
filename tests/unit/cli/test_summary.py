from __future__ import annotations

from clusterctl.cli import summary
from clusterctl.model.run_record import HostSummary


def test_many_alike_hosts_are_one_row() -> None:
    hosts = tuple(HostSummary(host=f"n{number}", outcome="ok") for number in range(1, 65))
    assert [name for name, _ in summary._rows(hosts)] == ["n[1-64]"]  # noqa: SLF001 - seen without a terminal
