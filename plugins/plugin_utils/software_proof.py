# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the host find the artifacts of a plan, prove all of them in one call, and report on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import (
    ArtifactActionBase,
    ModuleFailedError,
)


class ProvingAction(ArtifactActionBase):
    """Proves artifacts of a plan on a host."""

    def _proved(self, artifacts: list[dict[str, Any]], variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the result of each artifact that has something to prove or to make known, by name.

        Args:
            artifacts: of the plan, those of this host.
            variables: of the task; ``software_staged`` may hold the result of M(clusterctl.hpc.software_stage).
        """
        staged = (variables.get("software_staged") or {}).get("artifacts") or {}
        results: dict[str, dict[str, Any]] = {}
        for one in artifacts:
            now = staged.get(one["name"]) or {}
            installed = bool(now.get("changed") or now.get("before", one["tree"]) != one["tree"])
            for name, options in one["after"].items():
                self._add(results, one, name, {**options, "installed": installed}, variables)
        if self._task.check_mode:
            return results
        asked = [
            {"name": one["name"], "link": one["link"], **one["proof"]}
            for one in artifacts
            if one["proof"] and not results.get(one["name"], {}).get("failed")
        ]
        for name, proof in (self._checked(asked, variables) if asked else {}).items():
            results[name] = planned.sum_of(results.get(name, {}), proof)
        for one in artifacts:
            for name, options in one["reports"].items():
                self._add(results, one, name, options, variables)
        return {one["name"]: results[one["name"]] for one in artifacts if one["name"] in results}

    def _checked(self, asked: list[dict[str, Any]], variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Run the proofs, and return the result of each by name."""
        try:
            said = self._call("artifact_check", {"artifacts": asked}, variables)
        except ModuleFailedError as error:
            if "artifacts" not in error.result:
                raise
            said = error.result
        return planned.answers_of(said, asked, self._host(variables))

    def _add(
        self,
        results: dict[str, dict[str, Any]],
        one: Mapping[str, Any],
        module: str,
        options: Mapping[str, Any],
        variables: dict[str, Any],
    ) -> None:
        """Run a module for an artifact, unless it has failed before, and add what it returns."""
        before = results.get(one["name"], {})
        if before.get("failed") or before.get("left_out"):
            return
        try:
            told = self._call(module, options, variables)
        except ModuleFailedError as error:
            told = {"failed": True, **error.result, "changed": False}
        sentences = [str(result["msg"]) for result in (before, told) if result.get("msg")]
        results[one["name"]] = planned.sum_of(before, told)
        if sentences:
            results[one["name"]]["msg"] = str(told["msg"]) if told.get("failed") else " ".join(sentences)
