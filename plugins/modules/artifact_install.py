# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Install packed artifacts beside their other versions."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_install
short_description: Install artifacts from the controller's cache beside their other versions
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Internal to the role software. M(clusterctl.hpc.software_stage) and M(clusterctl.hpc.software_build) call it for
    each phase, and copy packs only to hosts that need them.
  - Compares the folder C(ROOT/NAME-VERSION-KEY) with its marker and manifest, and replaces a damaged one.
  - Takes the bytes of a pack out of reach of other users, checks them, and unpacks what the manifest names beside its
    place. A pack that holds anything else is refused.
  - Then asks the host's loader about every program and library in it. A missing library is named.
  - Writes the marker last. Other versions and the link stay. M(clusterctl.hpc.artifact_switch) switches the links.
  - All artifacts are installed in one call, in their order. One that fails keeps only those from being installed that
    use it.
options:
  artifacts:
    description: What to install.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the artifact.
        type: str
        required: true
      version:
        description: Version of the artifact.
        type: str
        required: true
      key:
        description: The artifact's key.
        type: str
        required: true
      root:
        description: Folder below which artifacts are installed.
        type: str
        default: /usr/local
      link:
        description: Path of the link. The default is V(ROOT/NAME).
        type: str
      uses:
        description: Names of artifacts of this call, before this one, whose libraries it loads.
        type: list
        elements: str
        default: []
      library_path:
        description: Folders that the loader searches first. Relative ones are below the artifact.
        type: list
        elements: str
        default: [lib]
      waiting_paths:
        description:
          - Paths through the links of O(artifacts[].uses), for the loader. They count only where such a link does not
            lead to the artifact yet, and then mean its folder.
        type: list
        elements: str
        default: []
      links_to:
        description: Folders to which links may lead beside O(artifacts[].root). Root alone must write there.
        type: list
        elements: str
        default: []
      closure:
        description: Ask the loader about every program and library.
        type: bool
        default: true
      closure_ignore:
        description: Patterns of library names that may be missing.
        type: list
        elements: str
        default: []
      closure_within:
        description:
          - Accept a library that lies anywhere in the artifact. Python packages load the libraries of other packages
            first, which a single file does not tell.
        type: bool
        default: false
      libraries:
        description: Libraries of the distribution that programs need beside it. RV(artifacts) tells which are missing.
        type: list
        elements: str
        default: []
      content:
        description:
          - Compare the sha256 of every installed file, not only its size, mode and owner.
          - The variable C(preflight_distrusted) sets it for the hosts that it names.
        type: bool
        default: false
      push_dir:
        description: Folder on the host for the pack while it is unpacked.
        type: str
        default: /var/tmp
      pack:
        description: The pack on the host, with its size, digests and inputs.
        type: dict
      lost:
        description: Libraries of the distribution that the host had lost before the call.
        type: list
        elements: str
        default: []
  phase:
    description: V(inspect) tells what V(apply) would change.
    type: str
    choices: [inspect, apply]
    default: inspect
  host:
    description: Name of the host for messages.
    type: str
    default: ""
attributes:
  check_mode:
    description: Reports what would be installed, and how the links would be switched.
    support: full
  diff_mode: {support: full, description: "Shows each link's target before and after."}
"""

EXAMPLES = """
---
# The action plugins software_build and software_stage give the options.
"""

RETURN = r"""
artifacts:
  description:
    - By name, the C(key), the folder (C(tree)), the C(link), where it led C(before), and the C(changes). Of one that
      failed, C(msg) says why. Of one that was not tried, C(left_out) names the artifact that failed before.
  type: dict
  returned: always
changes: {description: A short phrase for each change., type: list, returned: always}
watch: {description: States of paths that hold from now on., type: list, returned: always}
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    artifact_links,
    artifact_pack,
    audited_module,
    brought,
    disk_files,
    library_closure,
    origins,
    pack_extract,
    tree_removal,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MARKER,
    ArtifactError,
    BadPackError,
    TreeState,
    forget_leftovers,
    inspect_tree,
    marker_bytes,
    tree_name,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.command import SYSTEM_PATH
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.libraries import in_library_cache

_NAMED_LIBRARIES = 5


class NotWholeError(ArtifactError):
    """The copy of the pack on this host is missing or is not what the controller has."""


def make_folders(root: str) -> None:
    """Make the folder of the artifacts and what is missing on the way to it; ``uninstall`` removes them again.

    Raises:
        OSError: a folder cannot be made, or the record of origins not be written.
    """
    missing = [path for path in (Path(root), *Path(root).parents) if not path.is_dir()]
    for path in reversed(missing):
        origins.note_path(str(path))
        path.mkdir()
        path.chmod(0o755)  # whatever the umask is


class Install:
    """One artifact on this host.

    Attributes:
        whole: whether its folder is known to be as it must be.
        problem: the result of its failure; None without one.
    """

    def __init__(self, given: Dict[str, Any], *, check_mode: bool = False, uses: Sequence[Install] = ()) -> None:
        """Read what is asked for; nothing is touched yet.

        Args:
            given: the options of the artifact, and ``host``.
            check_mode: whether nothing may change.
            uses: the artifacts of the same call whose libraries it loads.
        """
        self.p = given
        self.check_mode = check_mode
        self.uses = uses
        self.whole = False
        self.problem: Optional[Dict[str, Any]] = None
        self.base = tree_name(self.p["name"], self.p["version"], self.p["key"])
        self.tree = str(Path(self.p["root"], self.base))
        self.link = self.p["link"] or str(Path(self.p["root"], self.p["name"]))
        self.target = artifact_links.target_of(self.link, self.tree)
        self.host = self.p["host"]
        # of the distribution, each with its package
        self.libraries: Dict[str, str] = library_closure.recall(self.base) or {}

    def state(self, *, content: bool) -> TreeState:
        """Return the state of the artifact's folder."""
        return inspect_tree(self.tree, self.p["name"], self.p["version"], self.p["key"], content=content)

    def linked(self) -> Optional[str]:
        """Return the link's target; None without a link."""
        try:
            return str(Path(self.link).readlink())
        except OSError:
            return None

    def answer(self, state: TreeState, changes: List[str], before: Optional[str]) -> Dict[str, Any]:
        """Return the part of the result that describes the state."""
        watch = [
            {"path": self.tree, "kind": "artifact", "marker_sha256": state.marker_sha256, "files": state.files},
            {"path": self.link, "kind": "link", "target": self.target},
            *({"path": path, "kind": "library"} for path in self.libraries),
        ]
        diff = (
            {}
            if before == self.target or not self.check_mode
            else {"before": f"{self.link} -> {before}\n", "after": f"{self.link} -> {self.target}\n"}
        )
        return {
            "tree": self.tree,
            "link": self.link,
            "before": os.path.normpath(Path(self.link).parent / before) if before else "",
            "changes": changes,
            "watch": watch if state.ok else [],
            "diff": diff,
        }

    def inspect(self) -> Dict[str, Any]:
        """Return the necessary changes without making them; a link that a killed build borrowed is given back."""
        if not self.check_mode:
            artifact_links.give_back()
        state, linked = self.state(content=self.p["content"]), self.linked()
        self.whole = state.ok
        changes = []
        lost = self._look_at_libraries() if state.ok else []
        if not state.ok:
            changes.append(self._phrase(state))
        elif lost:
            changes.append(f"restored {', '.join((Path(path).name for path in lost))}, which {self.p['name']} needs")
        if linked != self.target and self.check_mode:
            changes.append(f"{self.link} -> {self.target}")
        return {
            **self.answer(state, changes, linked),
            "needs_pack": not state.ok,
            "needs_link": linked != self.target,
            "lost": lost,
            "needs_packages": sorted({self.libraries[path] for path in lost} - {""}),
            "zstd": bool(artifact_pack.library() or shutil.which("zstd", path=SYSTEM_PATH)),
            "free_bytes": shutil.disk_usage(self.p["root"]).free if Path(self.p["root"]).is_dir() else 0,
        }

    def _look_at_libraries(self) -> List[str]:
        """Return the libraries of the distribution that the installed artifact needs and the host has lost."""
        known = self.libraries or not all(used.whole for used in self.uses)  # what it uses is repaired first
        if self.p["closure"] and not known and not self.check_mode:
            self._check_closure(self.tree)  # an earlier release kept no record
        return [path for path in self.libraries if not Path(path).is_file()]

    def _phrase(self, state: TreeState) -> str:
        what = f"{self.p['name']} {self.p['version']}"
        return f"repaired {what}: {state.problem}" if state.present else f"installed {what}"

    def apply(self) -> Dict[str, Any]:
        """Install what is missing."""
        problem = artifact_links.problem(self.link)
        if problem:
            raise ArtifactError(f"{self.host}: {problem}")
        artifact_links.give_back()  # without a look before it
        before, changes = self.linked(), []
        lost = self.p["lost"]
        state = self.state(content=self.p["content"])
        if not state.ok:
            if not self.p["pack"]:
                raise ArtifactError(
                    f"{self.host}: {self.tree} is damaged ({state.problem}) and the pack is missing; run again."
                )
            self._unpack()
            changes.append(self._phrase(state))
            state = self.state(content=False)
        elif before != self.target or lost:
            self._check_closure(self.tree)
        if lost:
            changes.append(f"restored {', '.join((Path(path).name for path in lost))}, which {self.p['name']} needs")
        if before != self.target and (before is None or not brought.is_tree_name(Path(before).name)):
            origins.note_path(self.link)  # a link of another hand, or none
        return {"changed": bool(changes), **self.answer(state, changes, before)}

    def _unpack(self) -> None:
        pack = self.p["pack"]
        make_folders(self.p["root"])
        self._forget_partials()
        forget_leftovers(self.p["push_dir"], ["clusterctl-push-????????????????-*"])
        # Nobody else sees the tree before its pack has proven whole; then it leaves this folder of mode 0700.
        private = ""
        try:
            private = tempfile.mkdtemp(prefix=f".{self.base}.", dir=self.p["root"])
            partial, taken = str(Path(private, "tree")), str(Path(private, "pack"))
            Path(partial).mkdir()
            self._take(pack, taken)
            self._extract(pack, taken, partial)
            Path(partial).chmod(0o755)
            Path(private).chmod(0o711)  # the loader is not asked as root
            self._check_closure(partial)
            marker = marker_bytes(
                self.p["name"], self.p["version"], self.p["key"], pack["inputs"], pack["manifest_sha256"]
            )
            self._finish(partial, marker)
        except OSError as error:
            if error.errno in disk_files.FULL:
                what = disk_files.no_room(f"{self.host}: the", self.p["root"], self.base, error.errno)
                raise ArtifactError(what) from error
            raise
        finally:
            if private:
                shutil.rmtree(private, ignore_errors=True)

    def _forget_partials(self) -> None:
        """Remove the leftovers of an interrupted install; only one run at a time works on a host."""
        for path in Path(self.p["root"]).glob(f".{self.base}.*"):
            shutil.rmtree(path, ignore_errors=True)

    def _finish(self, partial: str, marker: bytes) -> None:
        """Write the files to the disk, then the marker, then the tree's name: a power cut leaves no marked half."""
        artifact_links.mark(partial, MARKER, marker)
        self._place(partial)
        artifact_links.names_in(self.p["root"])

    def _place(self, partial: str) -> None:
        """Rename the finished tree to its name, after moving a broken one away."""
        if not os.path.lexists(self.tree):
            Path(partial).replace(self.tree)
            return
        aside = tempfile.mkdtemp(prefix=f".{self.base}.", dir=self.p["root"])
        broken = Path(aside, "broken")
        try:
            if not tree_removal.put_aside(self.tree, str(broken)):
                tree_removal.remove_in_place(self.tree, MARKER)
            Path(partial).replace(self.tree)
        except OSError:
            if broken.exists():
                broken.replace(self.tree)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _take(self, pack: Dict[str, Any], taken: str) -> None:
        """Copy the pack to where only this user can change it, and compare its size and digest."""
        try:
            artifact_pack.take_pushed(pack["path"], pack["sha256"], pack["size"], taken)
        except (ArtifactError, OSError) as error:
            if disk_files.is_of_disk(error):
                raise
            raise NotWholeError(f"{self.host}: the pack of {self.base} did not arrive whole: {error}") from error
        Path(pack["path"]).unlink()

    def _extract(self, pack: Dict[str, Any], taken: str, partial: str) -> None:
        try:
            with open(taken, "rb", buffering=0) as packed:  # noqa: PTH123 - the type of an unbuffered file
                pack_extract.extract(
                    packed,
                    pack["compression"],
                    partial,
                    pack["manifest_sha256"],
                    self.p["root"],  # type: ignore[arg-type]
                    self.p["links_to"],
                )
        except BadPackError as error:
            raise BadPackError(f"{self.host}: the pack of {self.base} is refused: {error}") from error
        Path(taken).unlink()

    def _check_closure(self, tree: str) -> None:
        """Refuse a tree whose libraries this host lacks; remember those that it takes from the distribution."""
        if not self.p["closure"]:
            return
        waiting = {used.link: used.tree for used in self.uses if used.linked() != used.target}
        library_path = self.p["library_path"] + artifact_links.by_tree(self.p["waiting_paths"], waiting)
        closure = library_closure.ask_loader(
            tree, library_path, self.p["closure_ignore"], within=self.p["closure_within"]
        )
        if closure.missing:
            named = "; ".join(
                f"{item.library}, needed by {item.needed_by}" for item in closure.missing[:_NAMED_LIBRARIES]
            )
            more = f" and {rest} more" if (rest := len(closure.missing) - _NAMED_LIBRARIES) > 0 else ""
            raise ArtifactError(
                f"{self.host}: {self.p['name']} {self.p['version']} would not run here, because the host lacks"
                f" {named}{more}; {self.link} was not switched. {self._cure(closure.missing)}"
            )
        root = f"{self.p['root']}/"
        outside = [path for path in closure.found if not path.startswith(root)]
        if self.libraries.keys() != set(outside) and not self.check_mode:
            self.libraries = library_closure.packages_of(outside)
            library_closure.remember(self.base, self.libraries)

    def _cure(self, missing: List[library_closure.Missing]) -> str:
        """Return what brings the missing libraries back, as far as the record of an earlier run names packages."""
        names = {item.library for item in missing}
        packages = {owner for path, owner in self.libraries.items() if owner and Path(path).name in names}
        if packages:
            return f"Install {', '.join(sorted(packages))} again on this host, with the package manager's 'reinstall'."
        return "Install the library on this host, or build without it."

    def run(self, phase: str) -> Dict[str, Any]:
        """Return the result of a phase; a failure is a result as well."""
        failed = next((used.problem.get("left_out", used.p["name"]) for used in self.uses if used.problem), "")
        try:
            if failed:
                self.problem = {"left_out": failed}
            else:
                return self.inspect() if phase == "inspect" else self.apply()
        except BadPackError as error:
            self.problem = {"failed": True, "msg": str(error), "bad_pack": True}
        except NotWholeError as error:
            self.problem = {"failed": True, "msg": str(error), "not_whole": True}
        except ArtifactError as error:
            self.problem = {"failed": True, "msg": str(error)}
        except OSError as error:
            self.problem = {"failed": True, "msg": disk_files.sentence(self.p["host"], error)}
        return {"changed": False, "changes": [], "watch": [], **self.problem}


def run(artifacts: Sequence[Dict[str, Any]], phase: str, host: str, *, check_mode: bool) -> Dict[str, Dict[str, Any]]:
    """Return the result of each artifact, by name."""
    known: Dict[str, Install] = {}
    answers = {}
    for given in artifacts:
        uses = [known[name] for name in given["uses"] if name in known]
        install = known[given["name"]] = Install({**given, "host": host}, check_mode=check_mode, uses=uses)
        answers[given["name"]] = {
            **install.run(phase),
            "lacking": [name for name in given["libraries"] if not in_library_cache(name.encode())],
        }
    return answers


_ARTIFACT: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "key": {"type": "str", "required": True, "no_log": False},
    "root": {"type": "str", "default": "/usr/local"},
    "link": {"type": "str"},
    "uses": {"type": "list", "elements": "str", "default": []},
    "library_path": {"type": "list", "elements": "str", "default": ["lib"]},
    "waiting_paths": {"type": "list", "elements": "str", "default": []},
    "closure": {"type": "bool", "default": True},
    "links_to": {"type": "list", "elements": "str", "default": []},
    "closure_ignore": {"type": "list", "elements": "str", "default": []},
    "closure_within": {"type": "bool", "default": False},
    "libraries": {"type": "list", "elements": "str", "default": []},
    "content": {"type": "bool", "default": False},
    "push_dir": {"type": "str", "default": "/var/tmp"},  # noqa: S108 - only unguessable names are used in it
    "pack": {"type": "dict"},
    "lost": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    """Run the phase that the action plugin asked for."""
    module = audited_module.AuditedModule(
        argument_spec={
            "artifacts": {"type": "list", "elements": "dict", "required": True, "options": _ARTIFACT},
            "phase": {"type": "str", "choices": ["inspect", "apply"], "default": "inspect"},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        answers = run(given["artifacts"], given["phase"], given["host"], check_mode=module.check_mode)
        module.exit_json(
            changed=any(answer.get("changed") for answer in answers.values()),
            changes=[change for answer in answers.values() for change in answer["changes"]],
            watch=[entry for answer in answers.values() for entry in answer["watch"]],
            artifacts=answers,
        )
    finally:
        for one in given["artifacts"]:
            if one["pack"]:
                with suppress(OSError):
                    Path(one["pack"]["path"]).unlink()


if __name__ == "__main__":
    main()
