# SPDX-License-Identifier: GPL-3.0-or-later
"""Install an artifact on a host: ask for its state, and push the pack only if the host needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, artifact_key, plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import DamagedPackError, content_digest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import (
    ArtifactActionBase,
    ModuleFailedError,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import ArtifactCache, CachedArtifact


class ActionModule(ArtifactActionBase):
    """See the module of the same name for the options."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result for one host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments: dict[str, Any] = plain(self._task.args)
        missing = [name for name in ("name", "version", "cache_dir") if not arguments.get(name)]
        if not arguments.get("inputs") and not arguments.get("key"):
            missing.append("inputs or key")
        if missing:
            return {
                "failed": True,
                "msg": f"artifact_install needs {', '.join(missing)}.",
                "changed": False,
                "changes": [],
            }
        key = str(arguments.get("key") or artifact_key(arguments["inputs"]))
        try:
            return {"key": key, **self._install(arguments, variables, key)}
        except ModuleFailedError as error:
            return {"changes": [], "watch": [], **error.result, "changed": False, "key": key}
        except (ArtifactError, OSError) as error:
            return {"failed": True, "changed": False, "msg": str(error), "changes": [], "watch": [], "key": key}

    def _install(self, arguments: dict[str, Any], variables: dict[str, Any], key: str) -> dict[str, Any]:
        host = self._host(variables)
        base = {**arguments, "key": key, "host": host}
        if host in (variables.get("preflight_distrusted") or ()):
            base["content"] = True
        if variables.get("software_two_phases"):
            base["switch"] = False
        base.pop("inputs", None)  # the pack's own record carries them
        seen = self._call("artifact_install", {**base, "phase": "inspect"}, variables)
        state = {field: seen[field] for field in ("tree", "link", "before", "changes", "watch", "diff")}
        if not seen["needs_pack"] and not seen["needs_link"] and not seen["lost"]:
            return {"changed": False, **state}
        if self._task.check_mode:
            return {"changed": True, **state}
        pushed: list[str] = []
        cache = ArtifactCache(Path(str(arguments["cache_dir"])))
        artifact = self._cached(arguments, key, host, cache) if seen["needs_pack"] else None
        try:
            pack = self._bring(arguments, artifact, seen, pushed, cache) if artifact else None
            self._restore(seen["needs_packages"], variables)
            given = {**base, "phase": "apply", "pack": pack, "lost": seen["lost"]}
            return self._call("artifact_install", given, variables)
        except DamagedPackError as error:
            raise ArtifactError(_judged(cache, artifact, f"{host}: {error}")) from error
        except ModuleFailedError as error:
            if error.result.get("bad_pack"):
                error.result["msg"] = _judged(cache, artifact, str(error))
            raise
        finally:
            self._drop(pushed)

    def _restore(self, packages: list[str], variables: dict[str, Any]) -> None:
        """Install packages that the host has lost; where that fails, the loader's answer afterwards says what lacks."""
        complaint = self._install_packages(packages, {}, variables)
        if complaint:  # a host without a list of packages, for example
            self._install_packages(packages, {"update_cache": True}, variables)

    @staticmethod
    def _cached(arguments: dict[str, Any], key: str, host: str, cache: ArtifactCache) -> CachedArtifact:
        name, version = str(arguments["name"]), str(arguments["version"])
        found = cache.lookup(name, version, key)
        if found.artifact is None:
            why = f" ({found.damaged})" if found.damaged else ""
            raise ArtifactError(
                f"The cache has no {name} {version} with key {key} for {host}{why}: its build did not finish,"
                " see the builder's message above, or the build was skipped by --tags or --limit; run again."
            )
        return found.artifact

    def _bring(
        self,
        arguments: dict[str, Any],
        cached: CachedArtifact,
        seen: dict[str, Any],
        pushed: list[str],
        cache: ArtifactCache,
    ) -> dict[str, Any]:
        artifact = cached if seen["zstd"] else cache.gzip_of(cached)
        folder = str(arguments.get("push_dir", "/var/tmp"))  # noqa: S108 - see the module
        pushed.append(self._push(artifact.path, folder))
        return {
            "path": pushed[0],
            "sha256": artifact.sha256,
            "compression": "zst" if seen["zstd"] else "gz",
            "manifest_sha256": artifact.record["manifest_sha256"],
            "inputs": artifact.record["inputs"],
        }


def _judged(cache: ArtifactCache, artifact: CachedArtifact | None, why: str) -> str:
    """Look at the pack that a host could not use, remove it if it is bad, and return the message."""
    if artifact is None:
        return why
    try:
        whole = content_digest(artifact.path, "zst") == artifact.record["manifest_sha256"]
    except DamagedPackError:
        whole = False
    if whole:
        return f"{why}; the pack in the cache is whole, so look at the disk and memory of this host, and run again."
    cache.refuse(artifact)
    return f"{why}; the pack was removed from the cache, so run again: the builder makes it anew."
