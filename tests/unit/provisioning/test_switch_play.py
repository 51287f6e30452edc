"""The plays that switch links, played by Ansible on this machine: all hosts or none.

The tasks of the role ``software`` are played as they are, with a plan of our own.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.model.hosts import InventorySources
from clusterctl.provisioning import playbook, task_results
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from clusterctl.model.run_record import HostSummary

pytestmark = pytest.mark.programs

KEY = "0123456789abcdef"
OLD, NEW = f"demo-1-{KEY}", f"demo-2-{KEY}"
MORE: dict[str, Any] = {}  # a task after the proof
# The file tells the module that the proof runs, which fails because it lacks its options, or because there is none.
BROKEN = "{{ {lookup('file', root ~ '/broken'): {}} if (root ~ '/broken') is exists else {} }}"
INSTALLED = {"link": "{{ root }}/demo", "tree": f"{{{{ root }}}}/{NEW}", "before": "{{ before }}"}
PLANNED = {
    "name": "demo",
    "version": "2",
    "role": "demo",
    "hosts": ["h1", "h2"],
    "link": INSTALLED["link"],
    "tree": INSTALLED["tree"],
    "after": {},
    "proof": {},
    "reports": BROKEN,
}
STAGED = {"artifacts": {"demo": INSTALLED}, "replaces": "{{ before != '' }}"}
BEFORE: list[dict[str, Any]] = [
    {"ansible.builtin.set_fact": {"software_staged": STAGED, "software_plan": {"artifacts": [PLANNED]}}},
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


def tasks_of(role: dict[str, str]) -> list[dict[str, Any]]:
    """Return the tasks of the role ``software`` that a play imports."""
    assert role["name"] == "clusterctl.hpc.software"
    path = content.root() / "roles" / "software" / "tasks" / f"{role['tasks_from']}.yml"
    return played(yaml.safe_load(path.read_text(encoding="utf-8")))


def played(tasks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tasks with those of the role in their place, and one more after the proof where a test has one."""
    found = []
    for task in tasks:
        known = {**task, "block": played(task["block"])} if "block" in task else task
        switch = task.get("clusterctl.hpc.software_switch", {})
        if "ansible.builtin.import_role" in task:
            known = {"name": task["name"], "block": tasks_of(task["ansible.builtin.import_role"])}
        found += [known, {**MORE, "name": task["name"]}] if MORE and "plan" in switch else [known]
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
        switching = [
            {**one, "tasks": played(one["tasks"])}
            for one in plays
            if "Switch" in one["name"] or "the switch" in one["name"]
        ]
        (self.folder / "p.yml").write_text(yaml.safe_dump([first, *switching], width=10**6), encoding="utf-8")
        # This machine may have ranks of others.
        end, hosts = self.play(self.folder / "p.yml", {"extra": 1, "software_while_busy": True, **variables})
        return end, [one.message for one in hosts]

    def play(self, book: Path, variables: dict[str, Any]) -> tuple[playbook.End, list[HostSummary]]:
        private = self.folder / "private"
        private.mkdir(mode=0o700)
        heard = task_results.TaskResults()
        play = playbook.Play(book, InventorySources.of(self.folder / "i.ini"), variables=variables)
        end = playbook.run(play, private, self.folder / "log", heard.add, playbook.Cancel())
        assert end.rc in {0, 2}, (self.folder / "log").read_text(encoding="utf-8")
        return end, heard.summaries(["h1", "h2"], end)

    def switch_back(self, **changed: dict[str, str]) -> tuple[playbook.End, list[HostSummary]]:
        """Play the switch of a rollback from the new version to the old one; ``changed`` are links of single hosts."""
        for root in self.roots.values():
            (root / "demo").symlink_to(NEW)
        lines = "".join(f"{host} ansible_connection=local\n" for host in self.roots)
        (self.folder / "i.ini").write_text(lines, encoding="utf-8")
        links = {host: {f"{root}/demo": f"{root}/{OLD}", **changed.get(host, {})} for host, root in self.roots.items()}
        return self.play(content.playbook("switch_links"), {"software_links": links})

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


@pytest.mark.parametrize("module", ["nccl_report", "no_such_module"])
def test_a_proof_that_fails_brings_the_links_of_all_back(lab: Lab, module: str) -> None:
    (lab.roots["h2"] / "broken").write_text(module)
    end, messages = lab.switch(linked="h2")  # h1 is new in the cluster
    assert (end.failed, lab.targets) == ({"h1", "h2"}, ["", OLD])
    assert messages[0] == "h2 failed or cannot be reached. Every link leads where it led before."
    assert messages[1].endswith(" Every link leads where it led before.")


def test_a_first_install_or_a_repair_goes_on_without_a_node_that_failed(lab: Lab) -> None:
    (lab.roots["h2"] / "broken").write_text("nccl_report")
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
    monkeypatch.setattr(f"{__name__}.MORE", {"unstarted": {}})
    _, messages = lab.switch(linked="")
    assert "make it writable" in messages[1]


# --- the playbook of a rollback ---


def test_a_rollback_switches_all_hosts(lab: Lab) -> None:
    end, hosts = lab.switch_back()
    assert (end.status, lab.targets) == ("successful", [OLD, OLD])
    assert [one.outcome for one in hosts] == ["changed", "changed"]


def test_a_folder_that_is_gone_on_one_host_stops_all(lab: Lab) -> None:
    root = lab.roots["h2"]
    end, (_, second) = lab.switch_back(h2={f"{root}/demo": f"{root}/demo-9-{KEY}"})
    assert (end.failed, lab.targets) == ({"h2"}, [NEW, NEW])
    assert "demo-9" in second.message


def test_a_switch_that_fails_on_one_host_is_taken_back_on_the_others(lab: Lab) -> None:
    root = lab.roots["h2"]  # a name of its own beside that link would be too long for the file system
    end, (first, second) = lab.switch_back(h2={f"{root}/{'x' * 250}": f"{root}/{OLD}"})
    assert (end.failed, lab.targets) == ({"h1", "h2"}, [NEW, NEW])
    assert "because another node failed" in first.message
    assert "File name too long" in second.message
    assert "lead where they led before" in second.message
