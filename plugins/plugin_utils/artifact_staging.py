# SPDX-License-Identifier: GPL-3.0-or-later
"""Install artifacts on a host: ask for their states, and push only the packs that the host needs."""

from __future__ import annotations

import copy
import functools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.constants import DEFAULT_LOCAL_TMP
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    ArtifactError,
    tree_name,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_chain, planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import DamagedPackError, content_digest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import (
    SHARED,
    ArtifactActionBase,
    ModuleFailedError,
    pushed_name,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import ArtifactCache, CachedArtifact


class StagingAction(ArtifactActionBase):
    """Installs artifacts on a host: one look for all, the packs that it lacks, and one installation for all."""

    def _staged(self, artifacts: Sequence[Mapping[str, Any]], variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Install artifacts, and return the result of each by name; a failure is a result as well.

        Args:
            artifacts: options of M(clusterctl.hpc.artifact_install), each with its key, in the order of installation.
            variables: of the task.
        """
        host = self._host(variables)
        given: dict[str, dict[str, Any]] = {}
        for one in artifacts:
            base = dict(one)
            if host in (variables.get("preflight_distrusted") or ()):
                base["content"] = True
            given[str(one["name"])] = base
        check = self._task.check_mode
        known = {} if check else {name: self._known_of(base, variables) for name, base in given.items()}
        seen = {name: lacks for name, lacks in known.items() if lacks}
        if len(seen) < len(given):
            seen = self._asked("inspect", list(given.values()), variables)
        results = {name: {"changed": False, **_state(told)} for name, told in seen.items()}
        wanted = [name for name, told in seen.items() if not _has_failed(told) and _is_wanting(told)]
        if check:
            for name in wanted:
                results[name]["changed"] = True
        elif wanted:
            results |= self._applied([given[name] for name in wanted], seen, variables)
        return {name: {"key": given[name]["key"], **result} for name, result in results.items()}

    def _known_of(self, base: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a look at the host would say of an artifact, where that is known without one."""
        return lacks_tree(base, planned.facts_of(variables))

    def _installed(self, artifacts: list[dict[str, Any]], variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Install artifacts of a plan with the distribution's packages, and return the result of each by name.

        Args:
            artifacts: as recipes plan them; what they use is among them, before them, or on the host.
            variables: of the task.
        """
        results = {}
        for one in artifacts:
            before, packages = self._made_room(one, variables), one["install"].get("packages") or []
            added = {} if before.get("failed") else self._packages_of(one, packages, variables)
            results[one["name"]] = planned.sum_of(before, added)
        failed = [name for name, result in results.items() if result.get("failed")]
        results |= users_of(failed, artifacts)
        failed = [name for name, result in results.items() if _has_failed(result)]
        asked = [planned.installation(one) for one in artifacts if one["name"] not in failed]
        staged = self._staged(asked, variables) if asked else {}
        for one in artifacts:
            name = one["name"]
            if name in staged:
                lacking = staged[name].pop("lacking", ())
                known = one["install"].get("libraries") or {}
                packages = sorted({package for library in known if library in lacking for package in known[library]})
                added = {} if _has_failed(staged[name]) else self._packages_of(one, packages, variables)
                places = {"tree": one["tree"], "link": one["link"]} if "tree" in staged[name] else {}
                results[name] = planned.sum_of(results.get(name, {}), staged[name] | places, added)
        return {one["name"]: results[one["name"]] for one in artifacts}

    def _made_room(self, one: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run the modules that make room for the packages of an artifact, and return the result."""
        try:
            return planned.sum_of(*(self._call(name, given, variables) for name, given in one["before"].items()))
        except ModuleFailedError as error:
            return {**failure(""), **error.result, "changed": False}

    def _packages_of(self, one: Mapping[str, Any], packages: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """Install packages of the distribution for an artifact, and return the result."""
        if not packages or self._task.check_mode:
            return {}
        options = one["install"].get("package_options") or one["build"].get("package_options") or {}
        try:
            came, complaint = self._packages(packages, options, variables)
        except ModuleFailedError as error:
            return {**failure(""), **error.result, "changed": False}
        if complaint:
            return failure(complaint)
        changes = [f"installed the packages {', '.join(came)}"] if came else []
        return {"changed": bool(came), "changes": changes, "watch": []}

    def _asked(
        self, phase: str, artifacts: list[dict[str, Any]], variables: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        host = self._host(variables)
        given = [{name: value for name, value in one.items() if name != "cache_dir"} for one in artifacts]
        asked = {"artifacts": given, "phase": phase, "host": host}
        return planned.answers_of(self._call("artifact_install", asked, variables), artifacts, host)

    def _applied(
        self, artifacts: list[dict[str, Any]], seen: dict[str, dict[str, Any]], variables: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Bring the packs that the host needs, and have the host install all."""
        pushed: list[str] = []
        host = self._host(variables)
        results: dict[str, dict[str, Any]] = {}
        try:
            ready = self._with_packs(artifacts, seen, results, pushed, variables, passed_on=True)
            self._restore(
                sorted({name for one in artifacts for name in seen[one["name"]]["needs_packages"]}), variables
            )
            results |= self._asked("apply", [one for one, _unused in ready], variables) if ready else {}
            damaged = [one["name"] for one, came in ready if came and results[one["name"]].get("not_whole")]
            for name in damaged:
                self._note(host, f"{results[name]['msg']} The controller sends it anew.")
            if damaged:
                anew = [one for one in artifacts if one["name"] in damaged or results[one["name"]].get("left_out")]
                ready = self._with_packs(anew, seen, results, pushed, variables, passed_on=False)
                results |= self._asked("apply", [one for one, _unused in ready], variables) if ready else {}
            for one in artifacts:
                result = results[one["name"]]
                if result.get("bad_pack"):
                    cache, note = _cache(one), functools.partial(self._note, host)
                    artifact = cache.lookup(*_identity(one)).artifact
                    result["msg"] = _judged(cache, artifact, result["msg"], _root(one), note)
        finally:
            self._drop(pushed)
        return results

    def _with_packs(
        self,
        artifacts: list[dict[str, Any]],
        seen: dict[str, dict[str, Any]],
        results: dict[str, dict[str, Any]],
        pushed: list[str],
        variables: dict[str, Any],
        *,
        passed_on: bool,
    ) -> list[tuple[dict[str, Any], bool]]:
        """Return the artifacts with their packs, and whether each came by a chain; the others have a result."""
        ready: list[tuple[dict[str, Any], bool]] = []
        failed: set[str] = set()
        for one in artifacts:
            name, told = one["name"], seen[one["name"]]
            if left_out := users_of(failed, [one]):
                results |= left_out
                failed.add(name)
                continue
            try:
                pack = self._brought(one, told, pushed, variables) if passed_on else None
                came = pack is not None
                if told["needs_pack"] and pack is None:
                    pack = self._bring(one, told, pushed, variables)
            except (ArtifactError, OSError) as error:
                results[name] = failure(str(error))
                failed.add(name)
            else:
                ready.append(({**one, "pack": pack, "lost": told["lost"]}, came))
        return ready

    def _restore(self, packages: list[str], variables: dict[str, Any]) -> None:
        """Install packages that the host has lost; where that fails, the loader's answer afterwards says what lacks."""
        complaint = self._install_packages(packages, {}, variables)
        if complaint:  # a host without a list of packages, for example
            self._install_packages(packages, {"update_cache": True}, variables)

    @staticmethod
    def _cached(one: Mapping[str, Any], host: str, cache: ArtifactCache) -> CachedArtifact:
        name, version, key = _identity(one)
        found = cache.lookup(name, version, key, read=False)
        if found.artifact is None:
            why = f" ({found.damaged})" if found.damaged else ""
            raise ArtifactError(
                f"The cache has no {name} {version} with key {key} for {host}{why}: its build did not finish,"
                " see the builder's message above, or the build was skipped by --tags or --limit; run again."
            )
        return found.artifact

    def _bring(
        self, one: Mapping[str, Any], seen: Mapping[str, Any], pushed: list[str], variables: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Copy the pack to the host, and return what the module needs to know of it."""
        host, cache = self._host(variables), _cache(one)
        note = functools.partial(self._note, host)
        cached = self._cached(one, host, cache)
        try:
            artifact = cached if seen["zstd"] else cache.gzip_of(cached, note)
        except DamagedPackError as error:
            raise ArtifactError(_judged(cache, cached, f"{host}: {error}", _root(one), note)) from error
        pushed.append(self._push(artifact.path, str(one.get("push_dir", SHARED))))
        return {"path": pushed[-1], **_described(artifact, zstd=seen["zstd"])}

    def _brought(
        self, one: Mapping[str, Any], seen: Mapping[str, Any], pushed: list[str], variables: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the pack that came to the host by a chain of nodes; None where the controller is to send it."""
        if not seen["needs_pack"]:
            return None
        host, cache = self._host(variables), _cache(one)
        settings = artifact_chain.Settings.of(variables, self._templar.template)
        if not settings.suffice(cache.pack_path(*_identity(one)), variables.get("ansible_play_hosts") or ()):
            return None
        tree, note = tree_name(*_identity(one)), functools.partial(self._note, host)
        meeting = artifact_chain.Meeting(Path(DEFAULT_LOCAL_TMP), f"{tree}-{'zst' if seen['zstd'] else 'gz'}")
        longest_s = settings.longest_s(cache.pack_path(*_identity(one)))
        try:
            with meeting.held(note, longest_s) as known:
                if host in known["brought"]:
                    pushed.append(known["brought"][host])
                    return {"path": pushed[-1], **known["pack"]}
                artifact = self._cached(one, host, cache)
                try:
                    artifact = artifact if seen["zstd"] else cache.gzip_of(artifact, note)
                except DamagedPackError as error:
                    raise ArtifactError(f"{host}: {error}") from error
                nodes = artifact_chain.nodes_of(host, variables, known, artifact)
                tried = host in known["tried"] or known["heads"] >= artifact_chain.MOST_HEADS
                if tried or len(nodes) + 1 < settings.min_hosts:
                    return None
                known["heads"] += 1
                known["pack"] = _described(artifact, zstd=seen["zstd"])
                pushed.append(self._lead(one, artifact, settings, nodes, known, tree, variables))
                return {"path": pushed[-1], **known["pack"]}
        except TimeoutError:
            note(f"another node should have passed {tree} on within {longest_s:.0f} s, so the controller sends it")
            return None

    def _lead(
        self,
        one: Mapping[str, Any],
        artifact: CachedArtifact,
        settings: artifact_chain.Settings,
        nodes: list[artifact_chain.Node],
        known: dict[str, Any],
        tree: str,
        variables: dict[str, Any],
    ) -> str:
        """Copy the pack to this host while it passes it on to the others, and return the path of its own copy."""
        host, what = self._host(variables), f"{one['name']} {one['version']}"
        folders = artifact_chain.folders(str(one.get("push_dir", SHARED)))
        name = pushed_name(artifact.path)
        paths = [f"{folder}/{name}" for folder in folders]
        user = artifact_chain.mesh_user(variables, str(self._play_context.remote_user or ""))
        given = {"root": _root(one), "tree": tree, "folders": folders, "paths": paths}
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
            self._note(node, f"gets {what}, and the chain goes around it: it is slow, or what it gives is lost")
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


def failure(message: str) -> dict[str, Any]:
    """Return the result of an artifact that failed."""
    return {"failed": True, "changed": False, "msg": message, "changes": [], "watch": []}


def users_of(failed: Iterable[str], artifacts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the result of each artifact that is left out, because it uses one that failed, by name."""
    causes, results = {name: name for name in failed}, {}
    for one in artifacts:
        cause = next((causes[used] for used in one.get("uses") or () if used in causes), "")
        if cause:
            causes[str(one["name"])] = cause
            results[str(one["name"])] = {"changed": False, "changes": [], "watch": [], "left_out": cause}
    return results


def _has_failed(told: Mapping[str, Any]) -> bool:
    return bool(told.get("failed") or told.get("left_out"))


def _is_wanting(told: Mapping[str, Any]) -> bool:
    return bool(told["needs_pack"] or told["needs_link"] or told["lost"])


_STATE = ("tree", "link", "before", "changes", "watch", "diff", "failed", "msg", "left_out", "lacking")


def _state(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the result of a task says of an artifact that was looked at."""
    return {field: told[field] for field in _STATE if field in told}


def _identity(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(one["name"]), str(one["version"]), str(one["key"])


def _cache(one: Mapping[str, Any]) -> ArtifactCache:
    return ArtifactCache(Path(str(one["cache_dir"])))


def _root(one: Mapping[str, Any]) -> str:
    return str(one.get("root", "/usr/local"))


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
