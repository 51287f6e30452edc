"""A node of a sandbox that builds Open MPI by the role's own variables, for the benchmarks of that build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from clusterctl import sandbox
from clusterctl.state import paths
from clusterctl.support import content

# As artifact_build takes it.
SOURCE = {
    "name": "openmpi",
    "version": "{{ openmpi_version }}",
    "sources": "{{ openmpi_sources }}",
    "variable": "openmpi_sources",
}


def measured(name: str, version: str, image: str, scratch: Path, tasks: list[dict[str, Any]], told: str) -> Any:
    """Run tasks on a fresh node, and return what they told.

    Args:
        name: of the sandbox.
        version: of Open MPI.
        image: of the node.
        scratch: the cache folder of the tasks, whose artifacts are thrown away.
        tasks: what is measured.
        told: a template of JSON, of what the tasks have registered.
    """
    sources = paths.cache_dir().value / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    (scratch / "sources").symlink_to(sources)  # the source is fetched once for all runs
    answer, book = scratch / "answer.json", scratch / "play.json"
    book.write_text(json.dumps(_playbook(answer, tasks, told)), encoding="utf-8")
    variables = {
        "openmpi_version": version,
        "openmpi_members": [{"name": "node1", "platform": "benchmark"}],
        "openmpi_node": {"platform": "benchmark"},
    }
    box = sandbox.up(sandbox.SandboxSpec(name=name, nodes=1, images=(image,)))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    try:
        command = [program, "-i", str(box.inventory), str(book), "-e", json.dumps(variables)]
        subprocess.run(command, env=environment, check=True)
    finally:
        sandbox.down(name)
    return json.loads(answer.read_text(encoding="utf-8"))


def _playbook(answer: Path, tasks: list[dict[str, Any]], told: str) -> list[dict[str, Any]]:
    role = content.root() / "roles" / "openmpi"
    every = [
        {"ansible.builtin.include_vars": str(role / "vars" / "Debian.yml")},
        *tasks,
        {
            "ansible.builtin.copy": {"dest": str(answer), "content": told, "mode": "0600"},
            "delegate_to": "localhost",
            "vars": {"ansible_become": False, "ansible_connection": "local"},
        },
    ]
    files = [str(role / "defaults" / "main.yml"), str(role / "vars" / "main.yml")]
    return [{"hosts": "all", "gather_facts": False, "vars_files": files, "tasks": every}]
