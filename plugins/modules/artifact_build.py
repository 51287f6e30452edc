# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Build an artifact (configure, make, install) on this host and pack it for the controller's cache."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_build
short_description: Build an artifact on one host and pack it for the controller's cache
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Internal to the role software. M(clusterctl.hpc.software_build) brings O(files) and packages to the host, calls this
    module for each phase, and takes the pack into the controller's cache.
  - Runs O(steps) in a fresh folder and a clean environment, and packs the result.
  - A host that has this artifact installed, with every file's sha256 as built, packs it instead of building. The
    controller refuses the pack if its content differs from what it accepted before, and the host builds.
  - If the module runs as root, the steps run as an unprivileged user id without an account.
  - A build ends with all its child processes when the connection that started it ends.
options:
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
  files:
    description: Files that are put into the work folder if a build is needed.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The copy on the host.
        type: str
      sha256:
        description: Checksum of the file at O(files[].path).
        type: str
      size:
        description: Bytes of the file at O(files[].path).
        type: int
      dest:
        description: Place of the file below the work folder. With O(files[].unpack) the folder to unpack into.
        type: str
        required: true
      unpack:
        description: Unpack the archive.
        type: bool
        default: false
      strip:
        description: How many leading folders to remove from the archive's paths.
        type: int
        default: 1
      exclude:
        description:
          - Patterns of paths (after O(files[].strip)) that are not unpacked.
          - A folder's pattern covers what is below it.
        type: list
        elements: str
        default: []
  prefix:
    description: Path of the artifact's link, where programs find it. The default is V(ROOT/NAME).
    type: str
  root:
    description: Folder on hosts below which artifacts are installed.
    type: str
    default: /usr/local
  links_to:
    description: Folders to which links of the artifact may lead beside O(root). Root alone must write there.
    type: list
    elements: str
    default: []
  steps:
    description:
      - Commands in order.
      - C(@WORK@), C(@STAGE@), C(@TREE@) (the stage's O(prefix)) and C(@JOBS@) are replaced in all fields.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the step for messages.
        type: str
        required: true
      argv:
        description: The command as tokens.
        type: list
        elements: str
        required: true
      chdir:
        description: Folder to run in, relative to the work folder.
        type: str
        default: .
      environment:
        description: Variables in addition to the clean environment.
        type: dict
        default: {}
      speaks:
        description: The last line of a failed step is a sentence with the cure. It becomes the message.
        type: bool
        default: false
  prune:
    description: Patterns of paths, relative to O(prefix), that are left out of the pack.
    type: list
    elements: str
    default: []
  jobs:
    description: Value of C(@JOBS@). V(0) takes the number of cores, limited by the available memory.
    type: int
    default: 0
  memory_per_job_bytes:
    description: Memory that one job may need.
    type: int
    default: 1073741824
  memory_strict:
    description: Refuse to start without the memory for one job, instead of trying with one job.
    type: bool
    default: false
  needs_bytes:
    description: Free space that O(work_dir) must have before the build starts.
    type: int
    default: 0
  work_dir:
    description: Folder on the host for the temporary work folder. Every user must be able to enter it.
    type: str
    default: /var/tmp
  log_dir:
    description: Folder on the host where the build's log is kept.
    type: str
    default: /var/log/clusterctl
  links:
    description:
      - Links that lead to other folders while the host builds, for software that is installed and not yet switched to.
        A host on which jobs run refuses this, unless the variable C(software_while_busy) is true.
    type: dict
    default: {}
  while_busy:
    description: Whether links may lead elsewhere while jobs run.
    type: bool
    default: false
  fresh:
    description: Whether the host's own tree or pack was refused, so that the host builds.
    type: bool
    default: false
  phase:
    description: V(inspect) tells what the host has for a build. V(release) removes the pack that was taken.
    type: str
    choices: [inspect, build, release]
    default: build
  host: {description: Name of the host for messages., type: str, default: ""}
attributes:
  check_mode: {support: full, description: Reports whether a build is needed and changes nothing.}
  diff_mode: {support: none, description: The module changes no text.}
"""

EXAMPLES = """
---
# The action plugin software_build gives the options.
"""

RETURN = r"""
way: {description: "How the pack came: built, packed or kept.", type: str, returned: in phase build}
log: {description: Path of the build's log on the host., type: str, returned: when built}
seconds: {description: Wall time of the steps in s., type: float, returned: when built}
cpu_seconds: {description: User and system time of the steps in s., type: float, returned: when built}
steps: {description: "Each step with its name, seconds and cpu_seconds.", type: list, returned: when built}
"""

import errno
import os
import signal
from pathlib import Path
from typing import Any, BinaryIO, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    artifact_links,
    artifact_pack,
    build_files,
    build_user,
    disk_files,
    user_identity,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    MARKER,
    ArtifactError,
    forget_leftovers,
    inspect_tree,
    jobs_for,
    manifest_bytes,
    tree_name,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.command import SYSTEM_PATH
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import machine

_PUSHED = "clusterctl-push-????????????????-*"


_SPEC = {
    "name": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "key": {"type": "str", "required": True, "no_log": False},
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            **{text: {"type": "str"} for text in ("path", "sha256")},
            "size": {"type": "int"},
            "dest": {"type": "str", "required": True},
            "unpack": {"type": "bool", "default": False},
            "strip": {"type": "int", "default": 1},
            "exclude": {"type": "list", "elements": "str", "default": []},
        },
    },
    "prefix": {"type": "str"},
    "root": {"type": "str", "default": "/usr/local"},
    "links_to": {"type": "list", "elements": "str", "default": []},
    "steps": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "argv": {"type": "list", "elements": "str", "required": True},
            "chdir": {"type": "str", "default": "."},
            "environment": {"type": "dict", "default": {}},
            "speaks": {"type": "bool", "default": False},
        },
    },
    "prune": {"type": "list", "elements": "str", "default": []},
    "jobs": {"type": "int", "default": 0},
    "memory_per_job_bytes": {"type": "int", "default": 1 << 30},
    "memory_strict": {"type": "bool", "default": False},
    "needs_bytes": {"type": "int", "default": 0},
    "work_dir": {"type": "str", "default": "/var/tmp"},  # noqa: S108 - a fresh folder is made inside
    "log_dir": {"type": "str", "default": "/var/log/clusterctl"},
    "links": {"type": "dict", "default": {}},
    "while_busy": {"type": "bool", "default": False},
    "fresh": {"type": "bool", "default": False},
    "phase": {"type": "str", "choices": ["inspect", "build", "release"], "default": "build"},
    "host": {"type": "str", "default": ""},
}


class Build:
    """One build in its own folder."""

    def __init__(self, module: AnsibleModule) -> None:
        """Read the module's parameters; nothing is touched yet."""
        self.p: Dict[str, Any] = module.params
        self.base = tree_name(self.p["name"], self.p["version"], self.p["key"])
        self.prefix = str(self.p["prefix"] or f"{self.p['root']}/{self.p['name']}")
        self.log = Path(self.p["log_dir"]) / f"{self.base}.log"
        self.progress_file = self.log.with_suffix(".progress")
        self.tree_root = Path(self.p["root"]) / self.base
        self.packs = artifact_pack.Packs(artifact_pack.FOLDER, self.base)
        self.memory = machine.available_memory_bytes()
        self.jobs = jobs_for(self.p["jobs"], len(os.sched_getaffinity(0)), self.memory, self.p["memory_per_job_bytes"])
        self.times: List[Dict[str, Any]] = []
        self.site = build_files.Site(
            self.p["host"],
            self.p["name"],
            self.p["version"],
            self.p["work_dir"],
            self.p["needs_bytes"],
            self.jobs,
            self.log,
        )

    def inspect(self) -> Dict[str, Any]:
        """Return what the host has for a build; change nothing."""
        installed = inspect_tree(str(self.tree_root), self.p["name"], self.p["version"], self.p["key"], content=True)
        work_dir = self.p["work_dir"]
        if not Path(work_dir).is_dir():
            raise ArtifactError(
                f"{self.p['host']}: the work folder {work_dir} does not exist; create it or set preflight_work_dir."
            )
        ready = not self.p["fresh"] and (installed.ok or self.packs.kept() is not None)
        if not ready:
            self.check_memory()
        return {
            "ready": ready,
            "installed": installed.ok,
            "free_bytes": machine.free_bytes(work_dir),
            "jobs": self.jobs,
        }

    def check_room(self) -> None:
        """Refuse a build that would fill the disk."""
        if machine.free_bytes(self.p["work_dir"]) < self.p["needs_bytes"]:
            raise self.site.disk_full()

    def check_memory(self) -> None:
        """Refuse a build whose compiler the kernel would kill."""
        needed = self.p["memory_per_job_bytes"]
        if self.p["memory_strict"] and self.memory < needed:
            raise build_files.memory_short(self.site, needed, self.memory)

    def run(self) -> Dict[str, Any]:
        """Build the artifact, or take the installed one, and pack it; always remove the work folder."""
        self.log.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(artifact_pack.FOLDER).mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.p["fresh"]:
            # without its marker the refused tree is not whole, so the install replaces it
            (self.tree_root / MARKER).unlink(missing_ok=True)
            self.packs.release()
        kept = self.packs.kept()
        if kept is not None:
            return {**kept, "way": "kept"}
        if self.inspect()["installed"]:
            return self._packed(self.tree_root, "packed")
        forget_leftovers(self.p["work_dir"], [_PUSHED, f"clusterctl-{self.p['name']}-????????"])
        self.check_room()
        self.check_memory()
        try:
            with artifact_links.borrowed(self.p["links"], self.p["host"], while_busy=self.p["while_busy"]):
                return self._build()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise self.site.disk_full() from error
            raise
        finally:
            self.progress_file.unlink(missing_ok=True)

    def _build(self) -> Dict[str, Any]:
        with build_user.space(self.p["work_dir"], self.p["name"]) as space:
            return self._packed(self._staged(space), "built")

    def _staged(self, space: build_user.Space) -> Path:
        work = space.work
        (work / "stage").mkdir()
        self.log.unlink(missing_ok=True)
        with self.log.open("ab") as log:  # what a step writes to /dev/stderr comes after the rest
            self.log.chmod(0o644)
            build_files.bring(self.p["files"], work, f"{self.p['name']} {self.p['version']}", self._say)
            with build_user.owning(space, log):
                for step in self.p["steps"]:
                    self._step(step, space, log)
        tree = Path(self._replace("@TREE@", work))
        link = user_identity.first_link(str(tree), str(work))
        if link:
            raise ArtifactError(
                f"The build of {self.p['name']} left a link at {link}; its steps must make a folder there."
            )
        if not tree.is_dir() or not any(tree.iterdir()):
            raise ArtifactError(f"The build of {self.p['name']} installed no file in {self.prefix}; read {self.log}.")
        build_files.prune(tree, [*self.p["prune"], MANIFEST])  # a step could have made a link of that name
        entries = artifact_pack.packable(str(tree), self.p["root"], self.p["name"], self.p["links_to"])
        (tree / MANIFEST).write_bytes(manifest_bytes(entries))
        return tree

    def _replace(self, text: str, work: Path) -> str:
        stage = str(work / "stage")
        for mark, value in (
            ("@WORK@", str(work)),
            ("@STAGE@", stage),
            ("@TREE@", stage + self.prefix),
            ("@JOBS@", str(self.jobs)),
        ):
            text = text.replace(mark, value)
        return text

    def _step(self, step: Dict[str, Any], space: build_user.Space, log: BinaryIO) -> None:
        work = space.work
        environment = {"PATH": SYSTEM_PATH, "LC_ALL": "C", "TZ": "UTC", **space.environment()}
        environment.update({name: self._replace(str(value), work) for name, value in step["environment"].items()})
        argv = [self._replace(token, work) for token in step["argv"]]
        command = build_user.Step(step["name"], argv, work / self._replace(step["chdir"], work), environment, space.uid)
        outcome = build_user.run_step(command, log, self._say)
        self.times.append(outcome.times(step["name"]))
        if outcome.status:
            raise build_files.step_failed(
                self.site, step["name"], outcome.status, outcome.log_start, speaks=step["speaks"]
            )

    def _say(self, text: str) -> None:
        disk_files.write(self.progress_file, text)

    def _packed(self, tree: Path, way: str) -> Dict[str, Any]:
        self._say("pack")
        try:
            pack = self.packs.make(tree)
        finally:
            self.progress_file.unlink(missing_ok=True)
        answer = {
            **pack,
            "way": way,
            "log": str(self.log),
            "steps": self.times,
            "seconds": round(sum(step["seconds"] for step in self.times), 2),
            "cpu_seconds": round(sum(step["cpu_seconds"] for step in self.times), 2),
            "jobs": self.jobs,
        }
        self.packs.keep(answer)
        return answer

    def release(self) -> Dict[str, Any]:
        """Remove the pack that was kept for the controller."""
        self.packs.release()
        return {}


def main() -> None:
    """Run the phase that the action plugin asked for."""
    module = AnsibleModule(argument_spec=_SPEC, supports_check_mode=True)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, build_user.abandon)
    build = Build(module)
    try:
        phase = module.params["phase"]
        answer = {"inspect": build.inspect, "build": build.run, "release": build.release}[phase]
        module.exit_json(changed=phase == "build", **answer())
    except ArtifactError as error:
        module.fail_json(msg=str(error), log=str(build.log), problems=getattr(error, "problems", []))
    except OSError as error:
        module.fail_json(msg=disk_files.sentence(module.params["host"], error))
    except build_user.Abandoned:
        os._exit(1)  # the result has no reader; whatever was started is ended by now


if __name__ == "__main__":
    main()
