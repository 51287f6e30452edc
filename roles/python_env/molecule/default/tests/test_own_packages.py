"""What the user named himself is there, with its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://node3"]


def test_a_wanted_package_brings_its_program(host: Host) -> None:
    said = host.check_output("printf 'a b\\nc d\\n' | /usr/local/python_env/bin/tabulate -f plain")
    assert [line.split() for line in said.splitlines()] == [["a", "b"], ["c", "d"]]


def test_no_framework_came_along(host: Host) -> None:
    assert host.run("/usr/local/python_env/bin/python -c 'import torch'").rc == 1
