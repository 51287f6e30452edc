# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which NCCL each platform gets and pin it, on the controller, without a connection to the host."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import nccl, source
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import Target, WheelStore, parse_requirements

if TYPE_CHECKING:
    from collections.abc import Mapping


_CACHED_AS = "source"  # only the archive itself tells its version


class ActionModule(ArtifactActionBase):
    """Its options are those that the roles give; plugins/modules has a note of what it does."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the plan by platform, or a sentence about the problem."""
        super().run(tmp, task_vars)
        arguments: dict[str, Any] = plain(self._task.args)
        nothing: dict[str, Any] = {
            "changed": False,
            "changes": [],
            "watch": [],
            "platforms": {},
            "hosts": [],
            "sources": [],
        }
        if not arguments.get("cache_dir"):
            return {**nothing, "failed": True, "msg": "nccl_source needs cache_dir."}
        wish = nccl.Options(
            **{entry.name: str(arguments[entry.name]) for entry in fields(nccl.Options) if arguments.get(entry.name)}
        )
        try:
            return {**nothing, "problem": "", **self._decide(wish, arguments, self._host(task_vars or {}))}
        except (ArtifactError, OSError) as error:
            return {**nothing, "problem": str(error)}

    def _decide(self, wish: nccl.Options, arguments: Mapping[str, Any], host: str) -> dict[str, Any]:
        members, frameworks = arguments.get("members") or [], arguments.get("frameworks") or {}
        cache_dir = Path(str(arguments["cache_dir"])).expanduser()
        contents, sources = None, []
        if nccl.targets(members, wish.install):
            # problems that need no download come first
            first = next(iter(nccl.plan(wish, members, frameworks).values()))
            sources = nccl.sources(wish, first.version)
        if sources:
            fetched = self._fetch(wish, sources, cache_dir, host)
            contents = nccl.look_into(fetched.path, wish.archive or fetched.source, wish.source)
            sources = [{"path": str(fetched.path), "sha256": fetched.sha256}]
        plans = nccl.plan(wish, members, frameworks, contents)
        store = WheelStore(cache_dir, str(arguments.get("wheel_dir") or ""), note=lambda text: self._note(host, text))
        answer = {}
        for platform, found in plans.items():
            wheels = []
            if wish.source == "wheel":
                wanted = parse_requirements([found.requirement], "nccl_version")
                wheels = [asdict(wheel) for wheel in store.lock("nccl", Target.of(platform), wanted, "nccl_version")]
            answer[platform] = {**asdict(found), "release": nccl.release(found.version), "wheels": wheels}
        hosts = [name for found in plans.values() for name in found.hosts]
        for note in store.notes:
            self._note(host, note)
        return {"platforms": answer, "hosts": hosts, "sources": sources, "warnings": store.notes}

    def _fetch(self, wish: nccl.Options, sources: list[dict[str, Any]], cache_dir: Path, host: str) -> source.Fetched:
        try:
            return source.fetch(
                "nccl", _CACHED_AS, sources, cache_dir, variable="", note=lambda text: self._note(host, text)
            )
        except source.SourceError as error:
            reason = str(error).partition(" could be used: ")[2].partition(" Put the release's")[0] or str(error)
            cure = "correct nccl_archive or nccl_sha256" if wish.archive else "set nccl_archive and nccl_sha256"
            raise nccl.NcclError(f"NCCL cannot be had from {reason.rstrip('.')}; {cure}.") from error
