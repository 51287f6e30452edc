# SPDX-License-Identifier: GPL-3.0-or-later
"""Make sure that the controller's cache has an artifact: from there, from a shared cache, or built by the host."""

from __future__ import annotations

import re
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's own name for them
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MOST_UNPACKED,
    ArtifactError,
    artifact_key,
    sha256_of,
    tree_name,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_pack import FOLDER, SUFFIXES
from ansible_collections.clusterctl.hpc.plugins.module_utils.build_files import disk_full
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source, wheels
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import (
    Accepted,
    DamagedPackError,
    content_digest,
    default_folder,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ModuleFailedError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import (
    ArtifactCache,
    CachedArtifact,
    SharedCache,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import StagingAction

_LOG_MARK = "@LOG@"
_MOST_LOG = 1 << 28  # bytes
_OF_THE_CONTROLLER = {"inputs", "cache_dir", "packages", "package_options", "controller_log_dir"}
_PLACES = {"source", "content", "path", "wheels", "sdist"}
_WAYS = ("built", "packed", "kept")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_STEPS = 100
_MOST_JOBS = 1 << 16
_LONGEST_S = 1e8
_LONGEST_NAME = 100
_SMALL = 8 << 20  # bytes; a larger file travels alone, so that no copy of it fills the disk


class _RefusedError(Exception):
    """The host's own tree or pack has other content than the artifact that was accepted."""


class BuildingAction(StagingAction):
    """Makes sure that the cache has artifacts; a host that builds one gets what the build uses before."""

    def _made(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Make sure that the cache has an artifact; a failure is a result as well."""
        self._warnings: list[str] = []
        arguments["while_busy"] = bool(variables.get("software_while_busy"))
        cache = ArtifactCache(Path(str(arguments["cache_dir"])))
        return self._attempted(lambda: self._ensure(arguments, variables, cache))

    def _links_of_uses(self, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, str]:
        """Return the links that lead to other folders while the host builds."""
        raise NotImplementedError

    def _ensure(self, arguments: dict[str, Any], variables: dict[str, Any], cache: ArtifactCache) -> dict[str, Any]:
        name, version, key = _identity(arguments)
        host = self._host(variables)
        answer: dict[str, Any] = {"changed": False, "changes": [], "watch": [], "key": key}
        accepted = Accepted(default_folder())
        found = cache.lookup(name, version, key)
        if found.artifact:
            if not self._task.check_mode:
                accepted.accept(name, version, key, str(found.artifact.record["manifest_sha256"]))
            return answer
        if not self._task.check_mode and (taken := self._from_shared(cache, name, version, key, variables)):
            accepted.accept(name, version, key, str(taken.record["manifest_sha256"]))
            pulled = {"changed": True, "changes": [f"took {name} {version} from the shared cache"]}
            return {**answer, **pulled}
        if self._task.check_mode:
            seen = self._call("artifact_build", _phase(arguments, host, key, "inspect"), variables)
            would = f"copy {name} {version} from" if seen["ready"] else f"build {name} {version} on"
            return {**answer, "changed": True, "changes": [f"would {would} {host}"]}
        with cache.lock(name, version, key, lambda text: self._note(host, text)):
            found = cache.lookup(name, version, key)  # another run may have built it in the meantime
            if found.artifact:
                return answer
            if found.damaged:
                self._note(host, f"{found.damaged}: thrown away, made again")
                cache.throw_away(name, version, key)
            return {**answer, **self._make(arguments, variables, cache, accepted, key)}

    def _from_shared(
        self, cache: ArtifactCache, name: str, version: str, key: str, variables: Mapping[str, Any]
    ) -> CachedArtifact | None:
        """Bring a pack from the shared cache; None where it has none, or none that may be taken."""
        shared = SharedCache.of(lambda variable: self._templar.template(variables.get(variable) or ""))
        if shared is None:
            return None
        self._note(self._host(variables), f"looking for {name} {version} in the shared cache")
        problem = shared.pull(tree_name(name, version, key), cache.folder.parent)
        if problem:
            self._warnings.append(f"{name} {version} is not taken from the shared cache, and built here: {problem}")
            self._note(self._host(variables), self._warnings[-1])
            return None
        return cache.lookup(name, version, key).artifact

    def _make(
        self, arguments: dict[str, Any], variables: dict[str, Any], cache: ArtifactCache, accepted: Accepted, key: str
    ) -> dict[str, Any]:
        """Have the host build the artifact or pack its own tree, and take the pack into the cache."""
        name, version, host = str(arguments["name"]), str(arguments["version"]), self._host(variables)
        known = accepted.digests(name, version, key)
        built = self._built(arguments, variables, cache, accepted, key)
        try:
            self._take(cache, built, _record(arguments, key, host, built), host, known)
        except _RefusedError as refused:
            self._warnings.append(str(refused))
            self._note(host, str(refused))
            built = self._built({**arguments, "fresh": True}, variables, cache, accepted, key)
            self._take(cache, built, _record(arguments, key, host, built), host, known)
        accepted.accept(name, version, key, str(built["manifest_sha256"]))
        self._call("artifact_build", _phase(arguments, host, key, "release"), variables)
        how = {
            "built": f"built {name} {version}",
            "packed": f"packed {name} {version} again from {host}",
            "kept": f"fetched {name} {version} that was built on {host} before",
        }[built["way"]]
        return {
            "changed": True,
            "changes": [how],
            **{field: built[field] for field in ("log", "seconds", "cpu_seconds", "steps", "jobs")},
            **({"warnings": self._warnings} if self._warnings else {}),
        }

    def _built(
        self, arguments: dict[str, Any], variables: dict[str, Any], cache: ArtifactCache, accepted: Accepted, key: str
    ) -> dict[str, Any]:
        """Have the host build the artifact or pack its own tree; return the module's result and when it began."""
        name, version, host = str(arguments["name"]), str(arguments["version"]), self._host(variables)
        seen = self._call("artifact_build", _phase(arguments, host, key, "inspect"), variables)
        needs = int(arguments.get("needs_bytes", 0))
        work_dir = str(arguments.get("work_dir", "/var/tmp"))  # noqa: S108 - see the module
        if not seen["ready"] and seen["free_bytes"] < needs:
            raise disk_full(host, name, version, work_dir, seen["free_bytes"], needs)
        pushed: list[str] = []
        began = int(time.time())
        links: dict[str, str] = {}
        try:
            files = []
            if not seen["ready"]:
                links = self._links_of_uses(arguments, variables)
                # A source that cannot be had is told before the host gets a compiler for it.
                files = self._bring_files(arguments, host, work_dir, pushed)
                packages = arguments.get("packages") or []
                options = arguments.get("package_options") or {}
                complaint = self._install_packages(packages, options, variables)
                if complaint:
                    raise ArtifactError(
                        f"{host}: the packages that building {name} needs ({', '.join(packages)})"
                        f" could not be installed: {complaint}"
                    )
            log = f"{arguments.get('log_dir', '/var/log/clusterctl')}/{tree_name(name, version, key)}"
            with self._notes_from(host, f"{log}.progress", f"{name}: "):
                asked = {**_phase(arguments, host, key, "build"), "files": files, "links": links}
                said = self._call("artifact_build", asked, variables)
        except ModuleFailedError as error:
            raise ModuleFailedError(self._with_log(error.result, arguments, cache, key, host)) from error
        finally:
            self._drop(pushed)
        built = told(said, host, tree_name(name, version, key), f"{log}.log")
        if built["way"] == "built":  # a later run may fetch the pack, if this one cannot
            accepted.accept(name, version, key, str(built["manifest_sha256"]))
        root, links_to = str(arguments.get("root", "/usr/local")), arguments.get("links_to") or ()
        return {**built, "root": root, "links_to": tuple(links_to), "began": began}

    def _bring_files(
        self, arguments: Mapping[str, Any], host: str, work_dir: str, pushed: list[str]
    ) -> list[dict[str, Any]]:
        brought = []
        for item in arguments.get("files") or []:
            rest = {field: value for field, value in item.items() if field not in _PLACES}
            if "wheels" in item or "sdist" in item:
                cache_dir = Path(str(arguments["cache_dir"])).expanduser()
                found = wheels.bring(item, cache_dir, self._warnings.append, lambda text: self._note(host, text))
                small = [local for local, _dest in found if "wheels" in item and local.stat().st_size <= _SMALL]
                if len(small) > 1 and not item.get("unpack"):
                    brought.append({**rest, **self._copied_together(small, work_dir, pushed)})
                    found = [(local, dest) for local, dest in found if local not in small]
                brought += [{**rest, "dest": dest, **self._copied(local, work_dir, pushed)} for local, dest in found]
            elif "source" in item:
                wanted = item["source"]
                local = source.fetch(
                    str(wanted["name"]),
                    str(wanted["version"]),
                    wanted.get("sources") or [],
                    Path(str(arguments["cache_dir"])).expanduser(),
                    variable=str(wanted.get("variable") or f"{wanted['name']}_sources"),
                    note=lambda text: self._note(host, text),
                ).path
                brought.append({**rest, **self._copied(local, work_dir, pushed)})
            elif "content" in item:
                with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=C.DEFAULT_LOCAL_TMP) as text:
                    text.write(str(item["content"]))
                    text.flush()
                    brought.append({**rest, **self._copied(Path(text.name), work_dir, pushed)})
            else:
                local = Path(str(item["path"])).expanduser()
                if not local.is_file():
                    raise ArtifactError(f"The file {local} that building {arguments['name']} needs is missing.")
                brought.append({**rest, **self._copied(local, work_dir, pushed)})
        return brought

    def _copied(self, local: Path, work_dir: str, pushed: list[str]) -> dict[str, Any]:
        """Copy a file to the host; return its path there, sha256 and size in bytes."""
        pushed.append(self._push(local, work_dir))
        return {"path": pushed[-1], "sha256": sha256_of(local), "size": local.stat().st_size}

    def _copied_together(self, files: list[Path], work_dir: str, pushed: list[str]) -> dict[str, Any]:
        """Copy files to the host as one archive, because each copy is a session of ssh; return how it is unpacked."""
        with tempfile.NamedTemporaryFile(suffix=".zip", dir=C.DEFAULT_LOCAL_TMP) as archive:
            with zipfile.ZipFile(archive, "w", strict_timestamps=False) as bundle:
                for path in files:
                    bundle.write(path, path.name)
            archive.flush()
            return {"unpack": True, "strip": 0, **self._copied(Path(archive.name), work_dir, pushed)}

    def _take(
        self, cache: ArtifactCache, built: Mapping[str, Any], record: dict[str, Any], host: str, accepted: list[str]
    ) -> None:
        """Fetch a pack into the cache.

        Raises:
            ArtifactError: it is not what the host said, or holds what no host takes.
            _RefusedError: the same, and a build makes another; or its content is not what was accepted before.
        """
        cache.make_room(built["size"])
        with cache.staging() as partial:
            self._fetch(host, built["pack"], partial, built["size"])
            found = sha256_of(partial)
            if found != built["sha256"]:
                raise ArtifactError(
                    f"The artifact arrived damaged from {host} (sha256 {found}, expected {built['sha256']});"
                    " it is kept there, so the next run fetches it again without a build."
                )
            _refuse_other_content(partial, built, record, host, accepted)
            if built["compression"] == "zst":
                cache.store(partial, record)
                return
            with cache.staging() as squeezed:
                cache.compress(partial, squeezed)
                artifact = cache.store(squeezed, record)
            cache.keep_gzip(artifact, partial)

    def _with_log(
        self, result: dict[str, Any], arguments: Mapping[str, Any], cache: ArtifactCache, key: str, host: str
    ) -> dict[str, Any]:
        """Fetch a failed build's log and name both places in the message."""
        message = str(result.get("msg", ""))
        if _LOG_MARK not in message:
            return result
        folder = Path(str(arguments.get("controller_log_dir") or cache.logs)).expanduser()
        local = folder / f"{tree_name(str(arguments['name']), str(arguments['version']), key)}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            log_dir = str(arguments.get("log_dir", "/var/log/clusterctl"))
            self._fetch(host, f"{log_dir}/{local.name}", local, _MOST_LOG)
            copied = f" and {local} on this controller"
        except Exception as error:  # noqa: BLE001 - the build's failure must be reported, not the copy's
            copied = f" (it could not be copied here: {error})"
        return {**result, "msg": message.replace(_LOG_MARK, copied), "controller_log": str(local)}


def told(said: Mapping[str, Any], host: str, base: str, log: str) -> dict[str, Any]:
    """Return a builder's answer; each path in it is one that the controller has chosen.

    Args:
        said: the answer, which may hold anything.
        host: the builder.
        base: base name of the artifact's folder.
        log: the build's log on the host.

    Raises:
        ArtifactError: a field is missing, or has another form.
    """
    try:
        compression, way = said["compression"], said["way"]
        if way not in _WAYS:
            raise ValueError("way")  # noqa: TRY301 - as for any other field
        return {
            "pack": f"{FOLDER}/{base}{SUFFIXES[compression]}",
            "compression": compression,
            "way": way,
            "sha256": _digest(said["sha256"]),
            "manifest_sha256": _digest(said["manifest_sha256"]),
            "size": _number(said["size"], MOST_UNPACKED),
            "jobs": _number(said["jobs"], _MOST_JOBS),
            "log": log,
            "seconds": _seconds(said["seconds"]),
            "cpu_seconds": _seconds(said["cpu_seconds"]),
            "steps": [
                {
                    "name": one_line(str(step["name"]), _LONGEST_NAME),
                    "seconds": _seconds(step["seconds"]),
                    "cpu_seconds": _seconds(step["cpu_seconds"]),
                }
                for step in list(said["steps"])[:_MOST_STEPS]
            ],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{host}: its answer about the pack of {base} has another form ({one_line(str(error), 80)}); look at this"
            " node, or build on another one."
        ) from error


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("a digest")
    return value


def _number(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("a number")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST_S:
        raise ValueError("a time")  # also where it is not a number
    return value


def _identity(arguments: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return name, version and key of the artifact."""
    return str(arguments["name"]), str(arguments["version"]), artifact_key(arguments["inputs"])


def _phase(arguments: Mapping[str, Any], host: str, key: str, phase: str) -> dict[str, Any]:
    """Return the arguments of one phase of the module."""
    given = {name: value for name, value in arguments.items() if name not in _OF_THE_CONTROLLER}
    return {**given, "files": [], "host": host, "key": key, "phase": phase}


def _refuse_other_content(
    pack: Path, built: Mapping[str, Any], record: Mapping[str, Any], host: str, accepted: list[str]
) -> None:
    """Compare each entry of a pack with its manifest, and the manifest with what the host said and what is accepted."""
    name, version, key = (str(record[field]) for field in ("name", "version", "key"))
    fresh = built["way"] == "built"
    wanted = {built["manifest_sha256"]} if fresh or not accepted else {*accepted} & {built["manifest_sha256"]}
    try:
        found = content_digest(pack, built["compression"], built["root"], built["links_to"])
    except DamagedPackError as error:
        why = str(error)
    else:
        if found in wanted:
            return
        why = f"sha256 {found}, accepted {' or '.join(accepted or wanted)}"
    base = tree_name(name, version, key)
    if fresh:
        raise ArtifactError(f"{host}: the pack of {base} that this node built is not used ({why}); run again.")
    raise _RefusedError(
        f"{host}: the content of {base} on this node differs from what was accepted ({why});"
        f" it is not used, and {name} is built anew. Find out who changed it."
    )


def _record(arguments: Mapping[str, Any], key: str, host: str, built: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the cache keeps about an artifact beside its pack."""
    return {
        "name": str(arguments["name"]),
        "version": str(arguments["version"]),
        "key": key,
        "inputs": arguments["inputs"],
        "manifest_sha256": built["manifest_sha256"],
        "built": {
            "host": host,
            "started": built["began"],
            "way": built["way"],
            **{field: built[field] for field in ("seconds", "cpu_seconds", "steps", "jobs")},
        },
    }
