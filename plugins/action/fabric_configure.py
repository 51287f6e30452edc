# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure Open MPI, NCCL and the firewall of a node for the network that the cluster uses."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils.prefix_rules import folders_to
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase

_RECORD = "/etc/clusterctl/fabric.json"
_OF_ROOT = {"owner": "root", "group": "root"}


class ActionModule(ArtifactActionBase):
    """Its options: ``decision``, of the cluster's network; ``facts``, ``open_firewall`` and ``prefix``."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        given, host = self._task.args, self._host(variables)

        def work() -> dict[str, Any]:
            decision, opens = given["decision"], boolean(given["open_firewall"])
            record = (variables.get(given["facts"]) or {}).get("fabric") or {}
            opened: dict[str, Any] = {}
            if opens or record.get("opened"):
                networks = decision["openings"][host] if opens else []
                opened = self._call("fabric_firewall", {"networks": networks}, variables)
            files = files_of(str(given["prefix"]), decision["files"][host])
            return planned.sum_of(opened, self._call("file_set", {"files": files}, variables))

        return self._attempted(work)


def files_of(prefix: str, texts: dict[str, str]) -> list[dict[str, Any]]:
    """Return the files of a node, as ``file_set`` takes them.

    Args:
        prefix: the folder below which Open MPI looks for its parameters.
        texts: by name, as the decision has them for the node. An empty one removes its block or file.
    """
    parameters = f"{prefix}/etc/openmpi"
    blocks = {
        f"{parameters}/openmpi-mca-params.conf": texts["openmpi"],
        f"{parameters}/prte-mca-params.conf": texts["prrte"],
        "/etc/nccl.conf": texts["nccl"],
    }
    record: dict[str, Any] = {"path": _RECORD, "state": "absent"}
    if texts["record"]:
        record = {"path": _RECORD, "content": texts["record"], "mode": "0644", **_OF_ROOT}
    return [
        *({"path": path, "state": "directory"} for path in (*folders_to(prefix), f"{prefix}/etc", parameters)),
        *(
            {"path": path, "state": "block", "marker": "fabric", "content": text, "mode": "0644", **_OF_ROOT}
            for path, text in blocks.items()
        ),
        {"path": "/etc/clusterctl", "state": "directory", "mode": "0755", **_OF_ROOT},
        record,
    ]
