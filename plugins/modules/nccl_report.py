# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Report every NCCL library on this host and which one a session and PyTorch load."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_report
short_description: Report every NCCL on the host and which one a session and PyTorch load
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Looks for every C(libnccl.so.2) that a program here may load. The check program of the cluster's NCCL asks each for
    its version (C(ncclGetVersion)).
  - Loads NCCL as a session of this host does, with the loader's variables of C(/etc/environment). Loads PyTorch where
    the cluster's Python has a CUDA build. C(/proc/self/maps) tells which file each of them has mapped.
  - Fails where a session gets an NCCL that is not the cluster's, and where PyTorch maps one that O(align) refuses.
options:
  version:
    description: Release of the cluster's NCCL.
    type: str
    required: true
  align:
    description:
      - V(framework) requires the same release for the framework's NCCL and the cluster's. V(cluster) requires that the
        framework maps the cluster's file. V(report) requires nothing.
    type: str
    choices: [framework, cluster, report]
    default: framework
  link:
    description: Path of the artifact's link.
    type: str
    default: /usr/local/nccl
  python_env:
    description: Folder of the cluster's Python.
    type: str
    default: /usr/local/python_env
  environment_file:
    description: File with the variables of every session.
    type: str
    default: /etc/environment
attributes:
  check_mode: {support: full, description: "Runs as usual, because it changes nothing."}
  diff_mode: {support: none, description: The module changes nothing.}
"""

EXAMPLES = r"""
- name: Report every NCCL on the host
  clusterctl.hpc.nccl_report:
    version: "2.32.3"
"""

RETURN = r"""
libraries:
  description: Each with V(path), V(version), V(found) (the way to it) and V(ours).
  type: list
  returned: always
mapped:
  description: By program (V(session), V(torch)), the V(path) and V(version) that it maps.
  type: dict
  returned: always
msg: {description: "The same in a sentence, or the problem.", type: str, returned: always}
"""

import glob
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import command
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import read_environment_file

_LIBRARY = "libnccl.so.2"
_PLAIN = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}
_ANSWER_S = 60
_TORCH_S = 300  # the first import of a CUDA build reads gigabytes from a cold disk
_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64", "/opt/nccl*/lib")
_BUNDLED = "lib/python*/site-packages/nvidia/nccl/lib"
_TORCH = "lib/python*/site-packages/torch/lib/libtorch_cuda.so"
# Prints the file that a fresh interpreter has mapped once PyTorch is there.
_ASK_TORCH = """
import torch
for line in open("/proc/self/maps"):
    name = line.rstrip().rpartition("/")[2]
    if name.startswith("libnccl.so"):
        print("mapped", line.split(None, 5)[5].rstrip())
        break
else:
    print("mapped none")
"""


class Reach:
    """The NCCL libraries of one host."""

    def __init__(self, given: Dict[str, Any]) -> None:
        """Read the parameters; nothing is started yet."""
        self.link = str(given["link"])
        self.env = str(given["python_env"])
        self.check = f"{self.link}/libexec/clusterctl-nccl-check"
        self.ours = os.path.realpath(f"{self.link}/lib/{_LIBRARY}")
        self.file = str(given["environment_file"])
        self.session = self._session()
        self.versions: Dict[str, str] = {}

    def _session(self) -> Dict[str, str]:
        try:
            found = read_environment_file(Path(self.file).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            found = {}
        loader = {name: found[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if found.get(name)}
        return {"PATH": command.SYSTEM_PATH, "HOME": "/", "LC_ALL": "C", **loader}

    def version_of(self, path: str) -> str:
        """Return the version by a file's ncclGetVersion; '' where it cannot be called."""
        if path not in self.versions:
            done = command.run([self.check, path], _ANSWER_S, _PLAIN, powerless=True)
            try:
                self.versions[path] = str(json.loads(done.output)["version"]) if done.ok else ""
            except (ValueError, KeyError, TypeError):
                self.versions[path] = ""
        return self.versions[path]

    def libraries(self) -> List[Dict[str, Any]]:
        """Return every library, the cluster's first."""
        ways = [(self.ours, "the cluster's")]
        folders = self.session.get("LD_LIBRARY_PATH", "").split(":")
        ways += [(f"{folder}/{_LIBRARY}", f"LD_LIBRARY_PATH of {self.file}") for folder in folders if folder]
        ways += [(path, "the framework's") for path in glob.glob(f"{self.env}/{_BUNDLED}/{_LIBRARY}")]  # noqa: PTH207
        cache = command.run(["ldconfig", "-p"], _ANSWER_S, _PLAIN)
        cached = [line.split() for line in cache.output.splitlines() if line.split()[:1] == [_LIBRARY]]
        ways += [(words[-1], "the loader's cache") for words in cached]
        for pattern in _FOLDERS:
            ways += [(path, pattern) for path in glob.glob(f"{pattern}/{_LIBRARY}")]  # noqa: PTH207
        found: Dict[str, Dict[str, Any]] = {}
        for path, way in ways:
            real = os.path.realpath(path)
            if real not in found and os.path.isfile(real):  # noqa: PTH113
                version = self.version_of(real)
                found[real] = {"path": real, "version": version, "found": way, "ours": real == self.ours}
        return list(found.values())

    def of_session(self) -> Tuple[Dict[str, str], str]:
        """Return the library that a program of a session maps, or the error where it maps none."""
        done = command.run([self.check], _ANSWER_S, self.session, powerless=True)
        if not done.ok:
            return {}, done.errors.strip()
        found = json.loads(done.output)
        return {"path": str(found["path"]), "version": str(found["version"])}, ""

    def of_torch(self) -> Optional[Tuple[Dict[str, str], str]]:
        """Return the library that PyTorch maps, or the error where it cannot be loaded; None without a CUDA build."""
        if not glob.glob(f"{self.env}/{_TORCH}"):  # noqa: PTH207
            return None
        done = command.run([f"{self.env}/bin/python", "-c", _ASK_TORCH], _TORCH_S, self.session, powerless=True)
        lines = [line for line in done.output.splitlines() if line.startswith("mapped ")]
        if not done.ok or not lines:
            return {}, (done.errors.strip().splitlines() or [f"it ended with {done.status}"])[-1]
        path = lines[-1].partition(" ")[2]
        if path == "none":
            return {"path": "", "version": ""}, ""
        return {"path": os.path.realpath(path), "version": self.version_of(os.path.realpath(path))}, ""


def judge_session(reach: Reach, mapped: Dict[str, str], complaint: str, version: str) -> str:
    """Return the problem with the library of a session, or ''."""
    if complaint:
        return f"A session here cannot load NCCL: {complaint}"
    if mapped["path"] == reach.ours and mapped["version"] == version:
        return ""
    cause = next((f"{name} of {reach.file} is '{reach.session[name]}'" for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")
                  if name in reach.session), "the loader's cache has it first")  # fmt: skip
    return (
        f"A session here gets NCCL {mapped['version']} of {mapped['path']} instead of {version} of {reach.ours},"
        f" because {cause}; remove that folder."
    )


def judge_torch(reach: Reach, mapped: Dict[str, str], complaint: str, version: str, align: str) -> str:
    """Return the problem with the library that PyTorch maps, or ''."""
    if complaint:
        return f"PyTorch of {reach.env} cannot be loaded here, so its NCCL is unknown: {complaint}"
    if not mapped["path"] or align == "report":
        return ""
    if align == "cluster" and mapped["path"] != reach.ours:
        return (
            f"PyTorch takes NCCL {mapped['version'] or '?'} of {mapped['path']}, and nccl_align 'cluster' requires"
            f" the cluster's {version} of {reach.ours}; run the role python_env again, which links it there."
        )
    if align == "framework" and mapped["version"] != version:
        return (
            f"PyTorch takes NCCL {mapped['version'] or '?'} of {mapped['path']}, and the cluster's is {version}: leave"
            " nccl_version empty to take the framework's, or set nccl_align to 'cluster' or 'report'."
        )
    return ""


def words(libraries: List[Dict[str, Any]], mapped: Dict[str, Dict[str, str]]) -> str:
    """Return the report as one sentence."""
    users = {about["path"]: [] for about in mapped.values()}  # type: Dict[str, List[str]]
    for who, about in mapped.items():
        users[about["path"]].append(who)
    parts = []
    for library in libraries:
        who = " and ".join(users.get(library["path"], []))
        parts.append(
            f"{library['version'] or 'one that does not answer'} of {library['path']}"
            f" ({library['found']}{', mapped by ' + who if who else ''})"
        )
    return f"NCCL on this host: {'; '.join(parts)}."


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "align": {"type": "str", "choices": ["framework", "cluster", "report"], "default": "framework"},
            "link": {"type": "str", "default": "/usr/local/nccl"},
            "python_env": {"type": "str", "default": "/usr/local/python_env"},
            "environment_file": {"type": "str", "default": "/etc/environment"},
        },
        supports_check_mode=True,
    )
    given: Dict[str, Any] = module.params
    reach = Reach(given)
    libraries = reach.libraries()
    session, complaint = reach.of_session()
    mapped = {"session": session} if session else {}
    problems = [judge_session(reach, session, complaint, given["version"])]
    torch = reach.of_torch()
    if torch is not None:
        if torch[0].get("path"):
            mapped["torch"] = torch[0]
        problems.append(judge_torch(reach, *torch, given["version"], given["align"]))
    answer = {"changed": False, "changes": [], "watch": [], "libraries": libraries, "mapped": mapped}
    problem = " ".join(text for text in problems if text)
    if problem:
        module.fail_json(msg=problem, **answer)
    module.exit_json(msg=words(libraries, mapped), **answer)


if __name__ == "__main__":
    main()
