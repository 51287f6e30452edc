# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the artifacts of a plan that fall to this host, and take them into the controller's cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_links import links_to_switch
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ModuleFailedError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_building import BuildingAction
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import users_of


class ActionModule(BuildingAction):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        return self._attempted(lambda: self._built_of_plan(variables))

    def _built_of_plan(self, variables: dict[str, Any]) -> dict[str, Any]:
        host, of_round = self._host(variables), int(self._task.args.get("round", 0))
        self._plan = planned.artifacts_of(variables, str(self._task.args.get("plan", "")), host)
        self._used: dict[str, dict[str, Any]] = {}  # what was installed here for a build, by name
        results: dict[str, dict[str, Any]] = {}
        for one in self._plan:
            if one["round"] != of_round or not planned.builds(host, one, variables):
                continue
            failed = [name for name, result in results.items() if result.get("failed")]
            left_out = users_of(failed, [one])
            results |= left_out or {one["name"]: self._made(planned.building(one), variables)}
        every = {
            one["name"]: planned.sum_of(results.get(one["name"], {}), self._used.get(one["name"], {}))
            for one in self._plan
            if one["name"] in results or one["name"] in self._used
        }
        return planned.together(self._plan, every)

    def _known_of(self, base: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was installed for an earlier build is younger than the facts."""
        return None if base["name"] in self._used else super()._known_of(base, variables)

    def _links_of_uses(self, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, str]:
        """Install what the build uses, and make room for its packages."""
        of = {str(one["name"]): one for one in self._plan}
        own = of[str(arguments["name"])]
        needed = self._needed(own, of)
        results = self._installed([one for one in self._plan if one["name"] in needed], variables)
        whole = {name: result for name, result in results.items() if result.get("tree")}
        self._used |= {name: planned.sum_of(self._used.get(name, {}), result) for name, result in whole.items()}
        if len(whole) < len(results):
            raise ArtifactError("\n".join(str(result["msg"]) for result in results.values() if result.get("failed")))
        room = self._made_room(own, variables)
        if room.get("failed"):
            raise ModuleFailedError(room)
        self._used[own["name"]] = room
        return links_to_switch([result for name, result in results.items() if name in own["uses"]])

    def _needed(self, one: Mapping[str, Any], of: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Return the names of what an artifact uses, and of what these use, as far as the plan has them."""
        found: set[str] = set()
        waiting = list(one["uses"])
        while waiting:
            name = waiting.pop()
            if name in of and name not in found:
                found.add(name)
                waiting += of[name]["uses"]
        return found
