# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure Open MPI, NCCL and the firewall of a node for the network that the cluster uses."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.module_utils.prefix_rules import folders_to
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.planned import facts_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.step_action import StepAction

_RECORD = "/etc/clusterctl/fabric.json"
_OF_ROOT = {"owner": "root", "group": "root"}


class ActionModule(StepAction):
    """Its options: ``decision``, the name of a variable; ``open_firewall`` and ``prefix``."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given, host = self._task.args, str(variables["inventory_hostname"])
        decision, opens = variables[given["decision"]], boolean(given["open_firewall"])
        if host in decision["disputed"]:
            return {**result, **plain(decision["disputed"][host])}
        opened_before = (facts_of(variables).get("fabric") or {}).get("opened")
        opening = ("fabric_firewall", {"networks": plain(decision["openings"][host]) if opens else []})
        files = ("file_set", {"files": files_of(str(given["prefix"]), plain(decision["files"][host]))})
        steps = [*([opening] if opens or opened_before else []), files]
        return {**result, **self._in_order(steps, variables)}


def files_of(prefix: str, texts: dict[str, str]) -> list[dict[str, Any]]:
    """Return the files of a node, as ``file_set`` takes them.

    Args:
        prefix: the folder below which Open MPI looks for its parameters.
        texts: by name, as the decision has them for the node. An empty one removes its block or file. A node without
            UCX has no text ``ucx``.
    """
    parameters = f"{prefix}/etc/openmpi"
    blocks = {
        f"{parameters}/openmpi-mca-params.conf": texts["openmpi"],
        f"{parameters}/prte-mca-params.conf": texts["prrte"],
        "/etc/nccl.conf": texts["nccl"],
    }
    folders = [*folders_to(prefix), f"{prefix}/etc", parameters]
    if "ucx" in texts:
        blocks[f"{prefix}/etc/ucx/ucx.conf"] = texts["ucx"]
        folders += [f"{prefix}/etc/ucx"] if texts["ucx"] else []
    record: dict[str, Any] = {"path": _RECORD, "state": "absent"}
    if texts["record"]:
        record = {"path": _RECORD, "content": texts["record"], "mode": "0644", **_OF_ROOT}
    return [
        *({"path": path, "state": "directory"} for path in folders),
        *(
            {"path": path, "state": "block", "marker": "fabric", "content": text, "mode": "0644", **_OF_ROOT}
            for path, text in blocks.items()
        ),
        {"path": "/etc/clusterctl", "state": "directory", "mode": "0755", **_OF_ROOT},
        record,
    ]
