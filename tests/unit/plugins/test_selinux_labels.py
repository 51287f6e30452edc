"""What a module wrote gets the policy's SELinux contexts, and nothing else is walked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module, command, file_stage
from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module as labels

TREE = "/usr/local/openmpi-5.0.7-abc"
WATCH = [
    {"path": TREE, "kind": "artifact", "marker_sha256": "0", "files": 3},
    {"path": "/usr/local/openmpi", "kind": "link", "target": TREE},
    {"path": f"{TREE}/etc/openmpi-mca-params.conf", "kind": "file", "sha256": "0"},
    {"path": "/usr/local/etc", "kind": "directory"},
    {"path": "/etc/profile", "kind": "block", "marker": "fabric"},
    {"path": "/gone", "kind": "absent"},
    {"path": "libcuda.so.1", "kind": "library"},
]


@pytest.fixture
def enabled(tmp_path: Path) -> str:
    (tmp_path / "enforce").write_text("1", encoding="ascii")
    return str(tmp_path)


def test_trees_are_walked_and_folders_of_others_are_not() -> None:
    assert labels.labelling(WATCH) == (
        (TREE,),
        ("/etc/profile", "/usr/local/etc", "/usr/local/openmpi"),
    )


def test_a_tree_within_a_tree_is_walked_once() -> None:
    inner = {"path": f"{TREE}/share", "kind": "artifact"}
    beside = {"path": f"{TREE}d", "kind": "artifact"}
    assert labels.labelling([*WATCH[:1], inner, beside]).trees == (TREE, f"{TREE}d")


def test_the_commands_pass_over_what_has_gone_and_are_not_too_long() -> None:
    wanted = labels.Labelling((TREE,), tuple(f"/etc/{number}" for number in range(501)))
    first, second, third = labels.commands(wanted)
    assert first == ["restorecon", "-Ri", "--", TREE]
    assert (second[:3], len(second), third[3:]) == (["restorecon", "-i", "--"], 503, ["/etc/500"])


def test_nothing_runs_without_selinux_and_without_files(tmp_path: Path, enabled: str) -> None:
    def run(argv: Sequence[str]) -> command.Done:
        raise AssertionError(argv)

    assert labels.relabel(WATCH, mount=str(tmp_path / "none"), run=run) == ""
    assert labels.relabel([{"path": "/gone", "kind": "absent"}], mount=enabled, run=run) == ""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((0, ""), ""),
        ((127, ""), "restorecon is missing, so the new files have the contexts of their folders; install"),
        ((1, "restorecon: a\nrestorecon: b failed\n"), f"by restorecon -Ri -- {TREE}: restorecon: b failed; run"),
        ((124, ""), "it ended with 124"),
    ],
)
def test_what_does_not_work_is_told(enabled: str, answer: tuple[int, str], words: str) -> None:
    said = labels.relabel(WATCH, mount=enabled, run=lambda _argv: command.Done(answer[0], answer[1], ""))
    assert words in said
    assert bool(said) == bool(words)


def test_a_missing_restorecon_is_named_with_the_paths_that_need_it(enabled: str) -> None:
    """The software may lie below another folder than /usr/local (cluster_prefix)."""
    tree = "/opt/cluster/openmpi-5.0.7-abc"
    links = [{"path": f"/opt/cluster/{number}", "kind": "link", "target": tree} for number in range(6)]
    watch = [{"path": tree, "kind": "artifact"}, *links]
    said = labels.relabel(watch, mount=enabled, run=lambda _argv: command.Done(command.NOT_STARTED, "", ""))
    paths = " ".join(f"/opt/cluster/{number}" for number in range(4))
    assert f"run 'restorecon -Ri -- {tree}' and 'restorecon -i -- {paths}' (and 2 more) there." in said
    assert "/usr/local" not in said


class Module(audited_module.AuditedModule):
    """A module that is not started by Ansible."""

    def __init__(self, *, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.warned: list[str] = []

    def warn(self, warning: str) -> None:
        """Keep the warning."""
        self.warned.append(warning)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root labels")
@pytest.mark.parametrize(
    ("result", "check_mode", "is_labelled"),
    [
        ({"changed": True, "watch": WATCH}, False, True),
        ({"changed": False, "watch": WATCH}, False, False),
        ({"changed": True, "watch": WATCH}, True, False),
        ({"changed": True}, False, True),
    ],
)
def test_a_module_labels_what_it_changed(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], *, check_mode: bool, is_labelled: bool
) -> None:
    asked: list[list[Any]] = []

    def relabel(watch: Any) -> str:
        asked.append(list(watch))
        return "a problem"

    monkeypatch.setattr(audited_module, "relabel", relabel)
    module = Module(check_mode=check_mode)
    module.label(result)
    assert asked == ([result.get("watch", [])] if is_labelled else [])
    assert module.warned == (["a problem"] if is_labelled else [])


class Ended(Exception):  # noqa: N818 - the end of a module
    """A module that is not started by Ansible ends."""


class Laying(Module, file_stage.QuietModule):
    """A module that lays out files."""

    _diff = False
    params: dict[str, Any] = {"path": "/etc/profile"}  # noqa: RUF012 - as Ansible's modules have it

    def selinux_enabled(self) -> bool:
        """Without the machine's own policy."""
        return False

    def fail_json(self, msg: str, **_result: Any) -> NoReturn:
        """End."""
        raise Ended(msg)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root labels")
def test_files_whose_proof_fails_are_labelled_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def verify() -> str:
        done.append("proof")
        return "sshd refuses its files"

    monkeypatch.setattr(audited_module, "relabel", lambda watch: done.extend(one["path"] for one in watch) or "")
    outcome = file_stage.Outcome(["changed"], WATCH[4:5], [])
    monkeypatch.setattr(file_stage, "apply", lambda *_entries, **_given: outcome)
    with pytest.raises(Ended, match="sshd refuses its files"):
        file_stage.run(Laying(), list, verify)
    assert done == ["/etc/profile", "proof"]
