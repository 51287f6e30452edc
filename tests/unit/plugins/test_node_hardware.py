"""The look at the hardware goes on where a section hangs or fails, and where a tool hangs, and says so."""

from __future__ import annotations

import errno
import json
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware import record, storage
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.programs


def section(monkeypatch: pytest.MonkeyPatch, name: str, read: Any) -> None:
    module = types.ModuleType(name)
    setattr(module, f"read_{name}", read)
    monkeypatch.setitem(sys.modules, f"{record.__package__}.{name}", module)


def test_a_section_that_hangs_is_named_with_what_it_read_and_the_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "hangs")

    def hang(tree: Tree, answer: record.Answer, _request: dict[str, Any]) -> None:
        answer.reading("node", "", "before", 1)
        tree.text("/dead")
        (tmp_path / "hangs").read_bytes()

    def fine(_tree: Tree, answer: record.Answer, _request: dict[str, Any]) -> None:
        answer.counter("nic", "eth0", "rx_errors", 3)

    def breaks(_tree: Tree, _answer: record.Answer, _request: dict[str, Any]) -> None:
        raise ValueError("odd")

    for name, read in (("hang", hang), ("breaks", breaks), ("fine", fine)):
        section(monkeypatch, name, read)
    monkeypatch.setattr(record, "SECTIONS", {name: name for name in ("hang", "breaks", "fine")})
    found = record.collect({"root": str(tmp_path), "section_s": 1.0})
    assert found["counters"] == [["nic", "eth0", "rx_errors", 3]]
    assert found["unseen"] == [
        ["hang", "no answer in time while it read /dead"],
        ["breaks", "ValueError: odd"],
    ]


def test_a_tool_that_hangs_is_killed_and_one_that_is_missing_is_no_problem(tmp_path: Path) -> None:
    tool = tmp_path / "slow-tool"
    tool.write_text("#!/bin/sh\necho begun\nexec sleep 60\n", encoding="utf-8")
    tool.chmod(0o755)
    tree = Tree(tools=str(tmp_path))
    assert tree.tool("absent-tool") == ""
    output = tree.run([tree.tool("slow-tool"), "-q"], seconds=0.5)
    assert output.text == "begun\n"
    assert output.problem == "slow-tool -q did not end within 0.5 s"


def test_a_path_that_cannot_be_read_is_a_problem_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    tree = Tree(root=str(tmp_path))
    assert tree.text("/missing") is None
    assert tree.text("/loop") is None
    assert list(tree.problems) == ["/loop"]


def test_a_link_that_cannot_be_read_is_a_problem_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    tree = Tree(root=str(tmp_path))
    assert (tree.link("/missing"), tree.link("/file"), tree.link("/dangling")) == ("", "", "nowhere")
    assert not tree.exists("/missing")
    assert not tree.exists("/dangling")
    assert tree.exists("/file")
    assert tree.problems == {}
    assert tree.link("/loop/device") == ""
    assert not tree.exists("/loop/bonding")
    assert tree.problems == dict.fromkeys(("/loop/device", "/loop/bonding"), os.strerror(errno.ELOOP))


def test_a_file_that_is_too_long_is_cut_and_a_problem(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes((1 << 20) + 1))
    (tmp_path / "short").write_bytes(bytes((1 << 20) - 1))
    tree = Tree(root=str(tmp_path))
    assert len(tree.data("/long") or b"") == 1 << 20
    assert len(tree.data("/short") or b"") == (1 << 20) - 1
    assert tree.problems == {"/long": "only its first 1 MiB were read"}


def test_dead_file_systems_are_each_named_and_wait_together(tmp_path: Path) -> None:
    places = ("/apps", "/home", "/scratch")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    mounts = [f"server:{place} {place} nfs4 rw 0 0" for place in places]
    (tmp_path / "proc" / "self" / "mounts").write_text("\n".join(mounts), encoding="utf-8")
    (tmp_path / "calls").mkdir()
    dead = {place: {"hangs": True} for place in places}
    (tmp_path / "calls" / "file_systems.json").write_text(json.dumps(dead), encoding="utf-8")
    request = {"root": str(tmp_path), "sections": ["file_systems"], "file_system_s": 2.0, "section_s": 5.5}
    found = record.collect(request)
    assert [row[1] for row in found["readings"] if row[2:] == ["answers", False]] == list(places)
    assert found["unseen"] == []


def test_a_file_system_of_this_machine_is_asked_for_its_space() -> None:
    found = storage._state("/")  # noqa: SLF001 - what a child process answers
    assert 0 < found["free bytes"] <= found["size in bytes"]
    assert found["answer in s"] >= 0
    assert storage._state("/absent") == {"problem": "No such file or directory"}  # noqa: SLF001
