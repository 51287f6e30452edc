# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay out the programs of the checks on a node, and prove that its Python starts them, in one trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.module_utils.prefix_rules import folders_to

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLLECTION = Path(__file__).resolve().parents[2]
_PROGRAMS = _COLLECTION / "roles" / "validation" / "files"
_SHARED = _COLLECTION / "plugins" / "module_utils"
# of all programs in one call: the modules that they import lie beside them only when all are in place
_COMPILES = "import sys; [compile(open(path, 'rb').read(), path, 'exec') for path in sys.argv[1:]]"
_OF_ROOT = {"owner": "root", "group": "root"}


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core carries no types
    """See the module of the same name for the options."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of file_set."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = arguments_of(plain(self._task.args))
        done = self._execute_module(module_name="clusterctl.hpc.file_set", module_args=arguments, task_vars=task_vars)
        return {**result, **done}


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what file_set gets.

    Args:
        given: ``prefix``; ``python``, which compiles the programs before they are installed; the names of ``programs``
            in the role's files, and of modules that they ``share`` with the collection; ``gpus``, as the node's facts
            have them.
    """
    folder, python = f"{given['prefix']}/libexec/clusterctl", str(given["python"])
    compiles = [python, "-I", "-c", _COMPILES, "%s..."]
    below = (f"{folder}/{name}" for name in ("node_look", "pace", "pace/clusterctl"))
    folders = (f"{given['prefix']}/libexec", folder, *below)
    # what the node has now; check_node.py compares it with what the node has before a job
    made_with = json.dumps({"gpus": given["gpus"]}, sort_keys=True)
    return {
        "files": [
            *({"path": path, "state": "directory"} for path in folders_to(str(given["prefix"]))),
            {"path": f"{folder}/node_probe", "state": "absent"},  # of release 0.2 and older
            *({"path": path, "state": "directory", **_OF_ROOT, "mode": "0755"} for path in folders),
            *(
                {**_file(f"{folder}/{name}", _PROGRAMS / name, "0755"), "validate": compiles}
                for name in given["programs"]
            ),
            *(_file(f"{folder}/{name}", _SHARED / name, "0644") for name in given["shared"]),
            {"path": f"{folder}/node.json", "content": f"{made_with}\n", **_OF_ROOT, "mode": "0644"},
        ],
        "proof": [python, f"{folder}/job_supervisor.py", "--help"],  # it finds the modules that they import
    }


def _file(path: str, source: Path, mode: str) -> dict[str, Any]:
    return {"path": path, "content": source.read_text(encoding="utf-8"), **_OF_ROOT, "mode": mode}
