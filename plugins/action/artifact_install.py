# SPDX-License-Identifier: GPL-3.0-or-later
"""Install an artifact on a host: ask for its state, and push the pack only if the host needs it."""

from __future__ import annotations

import copy
import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.constants import DEFAULT_LOCAL_TMP
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    ArtifactError,
    artifact_key,
    plain,
    tree_name,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_chain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import DamagedPackError, content_digest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import (
    SHARED,
    ArtifactActionBase,
    ModuleFailedError,
    pushed_name,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import ArtifactCache, CachedArtifact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
        if not self._task.check_mode and (lacks := lacks_tree(base, variables.get("preflight_node") or {})):
            return self._apply(arguments, {**base, "phase": "apply", "pack": None}, lacks, variables)
        seen = self._call("artifact_install", {**base, "phase": "inspect"}, variables)
        state = {field: seen[field] for field in ("tree", "link", "before", "changes", "watch", "diff")}
        if not seen["needs_pack"] and not seen["needs_link"] and not seen["lost"]:
            return {"changed": False, **state}
        if self._task.check_mode:
            return {"changed": True, **state}
        given = {**base, "phase": "apply", "pack": None, "lost": seen["lost"]}
        return self._apply(arguments, given, seen, variables)

    def _apply(
        self, arguments: dict[str, Any], given: dict[str, Any], seen: dict[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        """Bring the pack where the host needs it, and have the host install it."""
        pushed: list[str] = []
        key, host = given["key"], given["host"]
        cache = ArtifactCache(Path(str(arguments["cache_dir"])))
        note = functools.partial(self._note, host)
        artifact: CachedArtifact | None = None
        try:
            given["pack"] = self._brought(arguments, key, seen, pushed, cache, variables)
            if given["pack"]:
                try:
                    self._restore(seen["needs_packages"], variables)
                    return self._call("artifact_install", given, variables)
                except ModuleFailedError as error:
                    if not error.result.get("not_whole"):
                        raise
                    self._note(host, f"{error} The controller sends it anew.")
            if seen["needs_pack"]:
                artifact = self._cached(arguments, key, host, cache)
                given["pack"] = self._bring(arguments, artifact, seen, pushed, cache, note)
            self._restore(seen["needs_packages"], variables)
            return self._call("artifact_install", given, variables)
        except DamagedPackError as error:
            raise ArtifactError(_judged(cache, artifact, f"{host}: {error}", _root(arguments), note)) from error
        except ModuleFailedError as error:
            if error.result.get("bad_pack"):
                artifact = artifact or self._cached(arguments, key, host, cache)
                error.result["msg"] = _judged(cache, artifact, str(error), _root(arguments), note)
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
        note: Callable[[str], None],
    ) -> dict[str, Any]:
        """Copy the pack to the host, and return what the module needs to know of it."""
        artifact = cached if seen["zstd"] else cache.gzip_of(cached, note)
        pushed.append(self._push(artifact.path, str(arguments.get("push_dir", SHARED))))
        return {"path": pushed[-1], **_described(artifact, zstd=seen["zstd"])}

    def _brought(
        self,
        arguments: dict[str, Any],
        key: str,
        seen: dict[str, Any],
        pushed: list[str],
        cache: ArtifactCache,
        variables: dict[str, Any],
    ) -> dict[str, Any] | None:
        """Return the pack that came to the host by a chain of nodes; None where the controller is to send it."""
        if not seen["needs_pack"]:
            return None
        host, name, version = self._host(variables), str(arguments["name"]), str(arguments["version"])
        settings = artifact_chain.Settings.of(variables, self._templar.template)
        if not settings.suffice(cache.pack_path(name, version, key), variables.get("ansible_play_hosts") or ()):
            return None
        tree, note = tree_name(name, version, key), functools.partial(self._note, host)
        meeting = artifact_chain.Meeting(Path(DEFAULT_LOCAL_TMP), f"{tree}-{'zst' if seen['zstd'] else 'gz'}")
        with meeting.held(note) as known:
            if host in known["brought"]:
                pushed.append(known["brought"][host])
                return {"path": pushed[-1], **known["pack"]}
            artifact = self._cached(arguments, key, host, cache)
            artifact = artifact if seen["zstd"] else cache.gzip_of(artifact, note)
            nodes = artifact_chain.nodes_of(host, variables, known, artifact)
            tried = host in known["tried"] or known["heads"] >= artifact_chain.MOST_HEADS
            if tried or len(nodes) + 1 < settings.min_hosts:
                return None
            known["heads"] += 1
            known["pack"] = _described(artifact, zstd=seen["zstd"])
            pushed.append(self._lead(arguments, artifact, settings, nodes, known, tree, variables))
            return {"path": pushed[-1], **known["pack"]}

    def _lead(
        self,
        arguments: dict[str, Any],
        artifact: CachedArtifact,
        settings: artifact_chain.Settings,
        nodes: list[artifact_chain.Node],
        known: dict[str, Any],
        tree: str,
        variables: dict[str, Any],
    ) -> str:
        """Copy the pack to this host while it passes it on to the others, and return the path of its own copy."""
        host, what = self._host(variables), f"{arguments['name']} {arguments['version']}"
        folders = artifact_chain.folders(str(arguments.get("push_dir", SHARED)))
        name = pushed_name(artifact.path)
        paths = [f"{folder}/{name}" for folder in folders]
        user = artifact_chain.mesh_user(variables, str(self._play_context.remote_user or ""))
        given = {"root": _root(arguments), "tree": tree, "folders": folders, "paths": paths}
        asked = artifact_chain.request(host, user, artifact, settings, nodes, given)
        self._note(host, f"passes {what} on to {len(nodes)} more nodes in a chain")
        connection = copy.copy(self._connection)
        copying = artifact_chain.Copying(lambda: self._push_as(connection, artifact.path, paths))
        try:
            with self._notes_from(host, asked["progress"]):
                said = self._call("artifact_spread", asked, variables)
        except ModuleFailedError as error:
            own = copying.path()  # where it failed as well, another host may begin a chain
            self._note(host, f"{error} The controller sends {what} to the other hosts.")
            known["tried"] += [node.name for node in nodes]
            return own
        told = artifact_chain.told(said, nodes, folders)
        known["brought"].update(told.brought)
        known["tried"] += told.left_out
        self._note(host, f"{len(told.brought)} more nodes got {what} in {told.seconds:.1f} s, from node to node")
        for node, why in told.failed.items():
            self._note(node, f"the chain leaves it out, so the controller sends it {what}: {why}")
        for node in told.slow:
            self._note(node, f"took {what} so slowly that the chain went around it")
        return copying.path()

    def _push_as(self, connection: Any, local: Path, paths: list[str]) -> str:
        """Copy a file of the controller to the first of these paths that the login user may write, and return it."""
        reasons = []
        for path in paths:
            quoted = shlex.quote(path)
            # the user of the mesh reads it; what it unpacks to is readable for everybody as well
            code, _unused, said = connection.exec_command(f"touch {quoted} && chmod 0644 {quoted}", sudoable=False)
            if code == 0:
                try:
                    connection.put_file(str(local), path)
                except AnsibleConnectionFailure:
                    raise
                except AnsibleError as error:
                    self._drop([path])  # which ends the chain
                    raise ArtifactError(f"{local.name} could not be copied to the host ({error}).") from error
                return path
            reasons.append(said.decode(errors="replace").strip() if isinstance(said, bytes) else str(said).strip())
        raise ArtifactError(f"{local.name} could not be copied to the host ({'; '.join(reasons)}).")


def lacks_tree(base: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a look at the host would say where the run's first facts rule the artifact out; else None.

    These facts are minutes old. Where the folder came to be meanwhile, the module keeps it and uses no pack.
    """
    prefix, tools = node.get("prefix") or {}, node.get("tools") or {}
    root = str(base.get("root", "/usr/local"))
    trees = prefix.get("trees")
    if trees is None or prefix.get("path") != root or tree_name(base["name"], base["version"], base["key"]) in trees:
        return None
    if not tools.get("zstd") and not tools.get("libzstd"):
        return None  # the module itself finds out what unpacks there
    return {"needs_pack": True, "needs_link": True, "lost": [], "needs_packages": [], "zstd": True}


def _described(artifact: CachedArtifact, *, zstd: bool) -> dict[str, Any]:
    return {
        "sha256": artifact.sha256,
        "size": artifact.size,
        "compression": "zst" if zstd else "gz",
        "manifest_sha256": artifact.record["manifest_sha256"],
        "inputs": artifact.record["inputs"],
    }


def _root(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("root", "/usr/local"))


def _judged(
    cache: ArtifactCache, artifact: CachedArtifact | None, why: str, root: str, note: Callable[[str], None]
) -> str:
    """Look at the pack that a host could not use, remove it if it is bad, and return the message."""
    if artifact is None:
        return why
    try:
        whole = content_digest(artifact.path, "zst", root) == artifact.record["manifest_sha256"]
    except DamagedPackError:
        whole = False
    if whole:
        return f"{why}; the pack in the cache is whole, so look at the disk and memory of this host, and run again."
    cache.refuse(artifact, note)
    return f"{why}; the pack was removed from the cache, so run again: the builder makes it anew."
