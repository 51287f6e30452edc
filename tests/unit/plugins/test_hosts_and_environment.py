"""The two modules on real files, and the lines that the filter hands to the first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.filter.hosts import hostfile_lines, hosts_lines
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import read_environment_file
from ansible_collections.clusterctl.hpc.plugins.module_utils.text_edit import EditError
from ansible_collections.clusterctl.hpc.plugins.modules import hosts_file

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunModule

pytestmark = pytest.mark.programs


# --- filter ---


def test_the_full_name_stands_first() -> None:
    members = [
        {"name": "node1", "address": "10.0.0.1", "aliases": ["login", "node1.example.org"], "slots": 2},
        {"name": "node2", "address": "fd00::2"},
    ]
    assert hosts_lines(members) == "10.0.0.1 node1.example.org node1 login\nfd00::2 node2\n"
    assert hosts_lines(members, "cluster").splitlines()[1] == "fd00::2 node2.cluster node2"


def test_a_member_named_by_its_address_needs_no_line() -> None:
    assert hosts_lines([{"name": "10.0.0.1", "address": "10.0.0.1", "aliases": ["n"]}]) == "10.0.0.1 n\n"
    assert hosts_lines([{"name": "10.0.0.1", "address": "10.0.0.1"}]) == ""


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            [{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.2", "aliases": ["a"]}],
            "both a and b",
        ),
        (
            [{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.2", "aliases": ["A"]}],
            "'A' belongs to both a and b",
        ),
        ([{"name": "a b", "address": "10.0.0.1"}], "'a b' of member a b is not a valid host name"),
        ([{"name": "a\n10.0.0.9 b", "address": "10.0.0.1"}], "is not a valid host name"),
        ([{"name": "a", "address": "node9"}], "'node9', which is not an IP address"),
        ([{"name": "a", "address": "fe80::1%x\n10.0.0.9 pypi.org"}], "which is not an IP address"),
        ([{"name": "a", "address": "fe80::1%eth0"}], "which is not an IP address"),
    ],
)
def test_what_is_no_member_is_refused(members: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hosts_lines(members)


def test_a_hostfile_has_a_line_for_each_member_and_nothing_that_horovodrun_takes_for_a_host() -> None:
    members = [{"name": "node1", "address": "10.0.0.1", "slots": 2}, {"name": "10.0.0.2", "address": "10.0.0.2"}]
    assert hostfile_lines(members) == "node1 slots=2\n10.0.0.2 slots=1\n"
    with pytest.raises(ValueError, match="is not a valid host name"):
        hostfile_lines([{"name": "a slots=9\nb", "address": "10.0.0.1"}])


# --- hosts_file ---


@pytest.mark.parametrize(
    ("content", "address", "names", "result"),
    [
        ("10.0.0.1 a\n10.0.0.2 b\n", "10.0.0.2", ["pypi", "pypi"], "10.0.0.1 a\n10.0.0.2 b pypi\n"),
        ("10.0.0.1 a\n", "10.0.0.1", ["x.org", "x"], "10.0.0.1 x.org a x\n"),
        ("10.0.0.1 a\n10.0.0.2 b\n", "10.0.0.2", ["a", "b"], "10.0.0.1 a\n10.0.0.2 b\n"),  # a is another's
        ("10.0.0.1 a\n", "10.0.0.2", ["own"], "10.0.0.1 a\n10.0.0.2 own\n"),  # an inventory of addresses has no line
        ("", "10.0.0.2", ["localhost", "localhost.localdomain", "10.0.0.9", "", "a b", "x\ny"], ""),
        ("10.0.0.1 a\n", "", ["own"], "10.0.0.1 a\n"),
        ("10.0.0.1 gpu01\n", "10.0.0.1", ["GPU01.site", "GPU01"], "10.0.0.1 GPU01.site gpu01\n"),
    ],
)
def test_a_nodes_own_names_stand_behind_its_own_address_alone(
    content: str, address: str, names: list[str], result: str
) -> None:
    assert hosts_file.with_own_names(content, address, names) == result


@pytest.mark.parametrize("address", ["fe80::1%x\n10.0.0.9 pypi.org", "10.0.0.9 pypi.org #", "x"])
def test_own_names_have_an_address(address: str) -> None:
    with pytest.raises(EditError, match="own_address"):
        hosts_file.with_own_names("10.0.0.1 a\n", address, ["own"])


def test_a_name_that_resolves_otherwise_fails_the_module(tmp_path: Path, run_module: RunModule) -> None:
    """The file is not the one that this machine resolves by, so the new name cannot resolve."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")
    given = {"path": str(path), "content": "192.0.2.1 no-such-name.invalid\n"}
    result = run_module("hosts_file", **given)
    assert result["failed"] is True
    assert "'no-such-name.invalid' resolves to nothing instead of 192.0.2.1" in result["msg"]
    assert run_module("hosts_file", verify=False, **given)["changed"] is False
    assert run_module("hosts_file", check=True, **given)["changed"] is False


def test_a_member_that_resolves_already_may_be_left_out(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "hosts"
    path.write_text("")
    content = "127.0.0.1 localhost\n192.0.2.1 no-such-name.invalid\n"
    given = {"path": str(path), "content": content, "verify": False}
    run_module("hosts_file", skip_resolvable=True, **given)
    assert path.read_text() == "# BEGIN clusterctl hosts\n192.0.2.1 no-such-name.invalid\n# END clusterctl hosts\n"
    assert run_module("hosts_file", skip_resolvable=True, **given)["changed"] is False
    # What stands in the block stays there: the block itself may be what makes it resolve.
    run_module("hosts_file", **given)
    assert run_module("hosts_file", skip_resolvable=True, **given)["changed"] is False
    assert "127.0.0.1 localhost" in path.read_text()


# --- the environment of session_settings ---

_NO_LIMITS = {"open_files": 0, "logins": 0}


def test_the_environment_is_merged_and_given_back(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "environment"
    path.write_text("PATH=/opt/site/bin:/usr/bin\nSITE=1\n")
    given = {"path": str(path), "lists": {"PATH": ["/x/bin"]}, "variables": {"N": 1, "F": 0.5}, "mode": "0644"}
    first = run_module("session_settings", environment=given, **_NO_LIMITS)
    assert first["changes"] == [f"changed variables in {path}"]
    found = read_environment_file(path.read_text())
    assert found == {"PATH": "/opt/site/bin:/usr/bin:/x/bin", "SITE": "1", "N": "1", "F": "0.5"}
    again = run_module("session_settings", environment=given, **_NO_LIMITS)
    assert (again["changed"], again["watch"]) == (False, first["watch"])
    run_module("session_settings", environment={"path": str(path)}, **_NO_LIMITS)
    assert read_environment_file(path.read_text()) == {"PATH": "/opt/site/bin:/usr/bin", "SITE": "1"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"variables": {"A": True}}, "The value of A is True, which is not a string or a number"),
        ({"variables": {"A": "x\ny"}}, "the value of A is 'x\\ny', which has a newline"),
        ({"lists": {"PATH": "/x"}}, "are '/x', which is not a list of paths"),
        ({"lists": {"PATH": ["x"]}}, "PATH: 'x' is not an absolute path"),
    ],
)
def test_what_it_cannot_carry_leaves_the_file_alone(
    tmp_path: Path, run_module: RunModule, given: dict[str, Any], words: str
) -> None:
    path = tmp_path / "environment"
    path.write_text("A=1\n")
    result = run_module("session_settings", environment={"path": str(path), **given}, **_NO_LIMITS)
    assert words in result["msg"]
    assert path.read_text() == "A=1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="limits need root")
def test_the_environment_and_a_raised_limit_are_one_change(tmp_path: Path, run_module: RunModule) -> None:
    path, limits = tmp_path / "environment", tmp_path / "limits"
    path.write_text("SITE=1\n")
    environment = {"path": str(path), "variables": {"SECRET": "word"}}
    given = {"environment": environment, "user": "root", "logins": 0, "limits_file": str(limits), "sshd_files": []}
    high = 1 << 30  # more than any session gets
    planned = run_module("session_settings", check=True, diff=True, open_files=high, **given)
    assert planned["changes"] == [f"changed variables in {path}", f"created {limits}"]
    assert "+SECRET" not in path.read_text()
    assert [one["after_header"] for one in planned["diff"]] == [str(path), str(limits)]
    done = run_module("session_settings", open_files=high, **given)
    assert done["changes"] == planned["changes"]
    assert [one["path"] for one in done["watch"]] == [str(path), str(limits)]
    assert "word" not in str(done)
    again = run_module("session_settings", open_files=0, **given)
    assert (again["changed"], [one["path"] for one in again["watch"]]) == (False, [str(path)])
    refused = {**given, "environment": {"path": str(path), "variables": {"A": True}}, "limits_file": f"{tmp_path}/more"}
    assert "which is not a string or a number" in run_module("session_settings", open_files=high, **refused)["msg"]
    assert not (tmp_path / "more").exists()
