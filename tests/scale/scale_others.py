"""The same files by other tools: what a provision has left on the first node, by builtin modules and by pyinfra.

Each lays them out below a folder of its own on all nodes, so that neither finds the work of another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from clusterctl.state import paths
from netns_nodes import Nodes

KINDS = {"file", "block", "dir", "link", "artifact"}


class Others:
    """The files of a provisioned node, and the commands of other tools that lay them out."""

    def __init__(self, nodes: Nodes, state: Path, count: int) -> None:
        self.nodes, self.count = nodes, count
        self.folder = nodes.folder / "others"
        self.folder.mkdir(exist_ok=True)
        self.inventory = nodes.inventory(count)
        self.node = nodes.folder / nodes.box.nodes[0].name / "upper"
        snapshot = next(state.glob("clusterctl/clusters/*/snapshot.json"))
        watch = json.loads(snapshot.read_text(encoding="utf-8"))["hosts"][nodes.box.nodes[0].name]["watch"]
        self.entries = [entry for entry in watch if entry["kind"] in KINDS]

    def commands(self, pyinfra: str) -> dict[str, list[str]]:
        found = {"ansible-playbook of builtin modules": self.playbook()}
        return {**found, "pyinfra": self.pyinfra(pyinfra)} if pyinfra else found

    def folders(self, top: str) -> list[str]:
        """Return the folders that the files lie in, each after the one that it lies in."""
        found = {str(Path(top + entry["path"]).parent) for entry in self.entries}
        return sorted(found | {top + entry["path"] for entry in self.entries if entry["kind"] in {"dir", "artifact"}})

    def source(self, entry: dict[str, Any]) -> str:
        """Return a copy of a file on this machine."""
        copy = self.folder / entry["path"].strip("/").replace("/", "-")
        inside = entry["path"].lstrip("/")
        kept = [path for path in (self.node / inside, self.nodes.folder / "image" / inside) if path.is_file()]
        copy.write_bytes(kept[0].read_bytes())
        return str(copy)

    def pack(self, entry: dict[str, Any]) -> str:
        """Return an artifact's pack as the compressed tar that both tools can unpack."""
        name = Path(entry["path"]).name
        packed = self.folder / f"{name}.tar.gz"
        kept = paths.cache_dir().value / "artifacts" / f"{name}.tar.zst"
        script = 'zstd -dc "$1" | gzip -1 >"$2"'
        subprocess.run(["sh", "-c", script, "sh", str(kept), str(packed)], check=True)
        return str(packed)

    def playbook(self) -> list[str]:
        top = "/opt/by-ansible"
        tasks: list[dict[str, Any]] = [
            {"ansible.builtin.file": {"path": path, "state": "directory", "mode": "0755"}} for path in self.folders(top)
        ]
        for entry in self.entries:
            path = top + entry["path"]
            if entry["kind"] in {"file", "block"}:
                given = {"src": self.source(entry), "dest": path, "mode": entry["mode"]}
                tasks.append({"ansible.builtin.copy": given})
            elif entry["kind"] == "link":
                tasks.append({"ansible.builtin.file": {"src": entry["target"], "path": path, "state": "link"}})
            elif entry["kind"] == "artifact":
                tasks.append({"ansible.builtin.unarchive": {"src": self.pack(entry), "dest": path}})
        for number, task in enumerate(tasks, 1):
            task["name"] = f"Task {number}"
        play = [{"name": "The same files", "hosts": "all", "gather_facts": False, "tasks": tasks}]
        path = self.folder / "playbook.yml"
        path.write_text(json.dumps(play), encoding="utf-8")
        settings = [
            "ANSIBLE_PIPELINING=True",
            "ANSIBLE_GATHERING=explicit",
            "ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3",
        ]
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        return ["env", *settings, program, "-i", str(self.inventory), "-f", "32", str(path)]

    def pyinfra(self, program: str) -> list[str]:
        top = "/opt/by-pyinfra"
        lines = ["from pyinfra.operations import files, server", ""]
        lines += [f"files.directory(path={path!r}, mode='0755', _sudo=True)" for path in self.folders(top)]
        for entry in self.entries:
            path = top + entry["path"]
            if entry["kind"] in {"file", "block"}:
                mode = entry["mode"].lstrip("0")
                lines.append(f"files.put(src={self.source(entry)!r}, dest={path!r}, mode={mode!r}, _sudo=True)")
            elif entry["kind"] == "link":
                lines.append(f"files.link(path={path!r}, target={entry['target']!r}, _sudo=True)")
            elif entry["kind"] == "artifact":
                packed = self.pack(entry)
                there = f"/var/tmp/{Path(packed).name}"  # noqa: S108 - on a node
                lines.append(f"files.put(src={packed!r}, dest={there!r}, mode='644', _sudo=True)")
                unpack = f"test -e {path}/.unpacked || (tar -xzf {there} -C {path} && touch {path}/.unpacked)"
                lines.append(f"server.shell(commands=[{unpack!r}], _sudo=True)")
        deploy, inventory = self.folder / "deploy.py", self.folder / "inventory.py"
        deploy.write_text("\n".join(lines) + "\n", encoding="utf-8")
        box = self.nodes.box
        own = {
            "ssh_user": "cluster", "ssh_key": str(box.private_key), "ssh_known_hosts_file": str(box.known_hosts),
            "ssh_strict_host_key_checking": "yes",
        }  # fmt: skip
        hosts = [(node.address, own) for node in box.nodes[: self.count]]
        inventory.write_text(f"hosts = {hosts!r}\n", encoding="utf-8")
        return [program, "--yes", "--parallel", "64", str(inventory), str(deploy)]
