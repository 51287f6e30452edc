"""The play of ``provision`` that switches all links, played by Ansible on this machine with proofs of our own."""

from __future__ import annotations

import hashlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from clusterctl.model.hosts import InventorySources
from clusterctl.provisioning import playbook, task_results
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.programs

KEY = "0123456789abcdef"
OLD, NEW = f"demo-1-{KEY}", f"demo-2-{KEY}"
PROOF = {"name": "Prove", "ansible.builtin.command": {"argv": ["test", "!", "-e", "{{ root }}/broken"]}}
INSTALLED = {"link": "{{ root }}/demo", "tree": f"{{{{ root }}}}/{NEW}", "before": "{{ before }}"}
BEFORE: list[dict[str, Any]] = [
    {"ansible.builtin.set_fact": {"openmpi_installed": INSTALLED}},
    {"ansible.builtin.fail": {"msg": "the disk is full"}, "when": "lost | default(false) | bool"},
]


def install(root: Path, name: str) -> None:
    tree = root / name
    tree.mkdir(parents=True)
    manifest = artifact.manifest_bytes([])
    (tree / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    version = name.split("-")[1]
    (tree / artifact.MARKER).write_bytes(artifact.marker_bytes("demo", version, KEY, {}, digest))


def with_our_proofs(tasks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks of the play with a proof in the place of each role."""
    found = []
    for task in tasks:
        known = {**task, "block": with_our_proofs(task["block"])} if "block" in task else task
        found.append({**PROOF, "name": task["name"]} if "ansible.builtin.import_role" in task else known)
    return found


class Lab:
    """Two hosts that are folders of this machine, both with two versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots = {host: folder / host for host in ("h1", "h2")}
        for root in self.roots.values():
            install(root, OLD)
            install(root, NEW)

    def switch(self, linked: str, lost: str = "", **variables: Any) -> tuple[playbook.End, list[str]]:
        """Play; hosts in ``linked`` lead to the old version. Returns the end, and the message of each host."""
        plays = yaml.safe_load(content.playbook("provision").read_text(encoding="utf-8"))
        lines = []
        for host, root in self.roots.items():
            if host in linked:
                (root / "demo").symlink_to(OLD)
            before = root / OLD if host in linked else ""
            lines.append(f"{host} ansible_connection=local root={root} before='{before}' lost={host in lost}")
        (self.folder / "i.ini").write_text("\n".join(lines) + "\n", encoding="utf-8")
        first = {"hosts": "all", "gather_facts": False, "tasks": BEFORE}
        last = {**plays[-1], "tasks": with_our_proofs(plays[-1]["tasks"])}
        (self.folder / "p.yml").write_text(yaml.safe_dump([first, last], width=10**6), encoding="utf-8")
        shutil.copytree(content.playbook("provision").parent / "tasks", self.folder / "tasks")
        private = self.folder / "private"
        private.mkdir(mode=0o700)
        heard = task_results.TaskResults()
        play = playbook.Play(
            self.folder / "p.yml",
            InventorySources.of(self.folder / "i.ini"),
            variables={"extra": 1, "software_while_busy": True, **variables},  # this machine may have ranks of others
        )
        end = playbook.run(play, private, self.folder / "log", heard.add, playbook.Cancel())
        assert end.rc in {0, 2}, (self.folder / "log").read_text(encoding="utf-8")
        return end, [one.message for one in heard.summaries(["h1", "h2"], end)]

    @property
    def targets(self) -> list[str]:
        """Where the links lead; '' without a link."""
        links = [root / "demo" for root in self.roots.values()]
        return [str(link.readlink()) if link.is_symlink() else "" for link in links]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_all_nodes_switch_together(lab: Lab) -> None:
    end, _ = lab.switch(linked="h1 h2")
    assert (end.failed, lab.targets) == (frozenset(), [NEW, NEW])


def test_a_node_that_is_not_ready_keeps_the_links_of_all(lab: Lab) -> None:
    end, messages = lab.switch(linked="h1 h2", lost="h2")
    assert (end.failed, lab.targets) == ({"h1", "h2"}, [OLD, OLD])
    assert messages[0].startswith("No link is switched, because h2 is not ready")
    assert messages[1] == "the disk is full"


def test_a_node_that_may_fail_does_not_keep_the_others(lab: Lab) -> None:
    end, _ = lab.switch(linked="h1 h2", lost="h2", provision_max_failed=1)
    assert (end.failed, lab.targets) == ({"h2"}, [NEW, OLD])


def test_a_proof_that_fails_brings_the_links_of_all_back(lab: Lab) -> None:
    (lab.roots["h2"] / "broken").touch()
    end, messages = lab.switch(linked="h2")  # h1 is new in the cluster
    assert (end.failed, lab.targets) == ({"h1", "h2"}, ["", OLD])
    assert messages[0] == "h2 failed or cannot be reached. Every link leads where it led before."
    assert messages[1].endswith(" Every link leads where it led before.")


def test_a_first_install_or_a_repair_goes_on_without_a_node_that_failed(lab: Lab) -> None:
    (lab.roots["h2"] / "broken").touch()
    end, messages = lab.switch(linked="")
    assert (end.failed, lab.targets) == ({"h2"}, [NEW, NEW])
    assert "led before" not in messages[1]


def test_a_node_whose_disk_lets_no_module_start_is_named_with_the_cure(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab.folder / "library").mkdir()
    words = "[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/root']"
    program = f'#!/usr/bin/python3\nraise FileNotFoundError("{words}")\n'
    (lab.folder / "library" / "unstarted.py").write_text(program, encoding="utf-8")
    monkeypatch.delitem(PROOF, "ansible.builtin.command")
    monkeypatch.setitem(PROOF, "unstarted", {})
    _, messages = lab.switch(linked="")
    assert "make it writable" in messages[1]
