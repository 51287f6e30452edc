# SPDX-License-Identifier: Apache-2.0
"""Build an artifact on this host; the action plugin of the same name decides whether it is needed."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_build
short_description: Build an artifact on one host and keep it in the controller's cache
version_added: "0.1.0"
author: The clusterctl authors
description:
  - Makes sure that the controller's cache holds the artifact whose key follows from O(inputs).
  - Where the cache has it, nothing happens on the host at all.
  - Where it has not, the host installs O(packages), gets O(files), runs O(steps) in a fresh folder and a clean
    environment, and the packed result goes to the cache.
  - A host that has the very artifact installed, with every file's sha256 as built, packs that instead of building.
  - A build ends, with all its children, when the connection that started it ends.
  - Progress comes as lines C(clusterctl-note|HOST|TEXT) on standard output.
options:
  name:
    description: Name of the artifact.
    type: str
    required: true
  version:
    description: Version of the artifact.
    type: str
    required: true
  inputs:
    description: Everything that shapes the artifact. Its key is derived from it.
    type: dict
    required: true
  cache_dir:
    description: The controller's cache folder.
    type: str
    required: true
  packages:
    description:
      - Packages that the build needs, installed on the host by M(ansible.builtin.package) if something is to be built.
    type: list
    elements: str
    default: []
  package_options:
    description: More options for M(ansible.builtin.package), as the host's package manager takes them.
    type: dict
    default: {}
  files:
    description: Files brought into the work folder if something is to be built.
    type: list
    elements: dict
    default: []
    suboptions:
      source:
        description: A source as M(clusterctl.hpc.source_fetch) takes it (V(name), V(version), V(sources), V(variable)).
        type: dict
      wheels:
        description:
          - Python wheels that fit V(platform) and satisfy V(requirements), as M(clusterctl.hpc.wheel_lock) pins them
            under V(name), or V(pinned), the wheels that it answered with. V(variable) is the user's variable for
            messages, V(wheel_dir) a folder to look into instead of an index.
          - They go into the folder O(files[].dest), or are all unpacked there with O(files[].unpack).
        type: dict
      sdist:
        description: The source archive of a Python package (V(name), V(version), V(sha256), V(variable), V(wheel_dir)).
        type: dict
      path:
        description: A file on the controller.
        type: str
      content:
        description: The file's text.
        type: str
      dest:
        description: Where it goes, relative to the work folder; the folder to unpack into with O(files[].unpack).
        type: str
        required: true
      unpack:
        description: Unpack the archive.
        type: bool
        default: false
      strip:
        description: How many leading folders of the archive's paths are left out.
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
    description: Where the artifact will be found, the path of its link. The default is V(/usr/local/NAME).
    type: str
  root:
    description: Folder on hosts below which artifacts are installed.
    type: str
    default: /usr/local
  steps:
    description:
      - Commands in order.
      - C(@WORK@), C(@STAGE@), C(@TREE@) (the stage's O(prefix)) and C(@JOBS@) are replaced in all fields.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: A word for messages.
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
        description: Variables besides the clean environment.
        type: dict
        default: {}
      speaks:
        description: The last line that the step writes before it fails is a sentence with the cure, and the message.
        type: bool
        default: false
  prune:
    description: Patterns of paths, relative to O(prefix), that are left out of the pack.
    type: list
    elements: str
    default: []
  jobs:
    description: How many jobs C(@JOBS@) stands for; V(0) takes the cores, bounded by the memory that is available.
    type: int
    default: 0
  memory_per_job_bytes:
    description: Memory one job may need.
    type: int
    default: 1073741824
  memory_strict:
    description: Refuse to start where not even one job's memory is available, instead of trying with one.
    type: bool
    default: false
  needs_bytes:
    description: Free space that O(work_dir) must have before anything starts.
    type: int
    default: 0
  work_dir:
    description: Folder on the host in which the fresh work folder is made.
    type: str
    default: /var/tmp
  log_dir:
    description: Folder on the host where the build's log is kept.
    type: str
    default: /var/log/clusterctl
  controller_log_dir:
    description:
      - Folder on the controller to which the log of a failed build is copied. The default is C(logs) in O(cache_dir).
    type: str
  phase:
    description: Set by the action plugin.
    type: str
    choices: [inspect, build, release]
    default: build
  host:
    description: Set by the action plugin.
    type: str
    default: ""
  key:
    description: Set by the action plugin.
    type: str
    default: ""
attributes:
  check_mode:
    description: Says whether something would be built, and touches nothing.
    support: full
  diff_mode:
    description: There is no text to compare.
    support: none
"""

EXAMPLES = r"""
- name: Build the library once
  clusterctl.hpc.artifact_build:
    name: demo
    version: "1.0"
    inputs: {version: "1.0", platform: "{{ platform }}"}
    cache_dir: "{{ lookup('ansible.builtin.env', 'HOME') }}/.cache/clusterctl"
    packages: [gcc, make]
    files:
      - {path: /srv/demo-1.0.tar.gz, dest: src, unpack: true}
    steps:
      - {name: make, argv: [make, "-j@JOBS@"], chdir: src}
      - {name: install, argv: [make, install, "DESTDIR=@STAGE@"], chdir: src}
"""

RETURN = r"""
key: {description: The artifact's key., type: str, returned: always}
path: {description: The pack in the controller's cache., type: str, returned: success}
cached: {description: Whether the cache had it already., type: bool, returned: success}
log: {description: Path of the build's log on the host., type: str, returned: when built}
seconds: {description: Wall time of the steps in s., type: float, returned: when built}
cpu_seconds: {description: User and system time of the steps in s., type: float, returned: when built}
steps: {description: Each step with its name, seconds and cpu_seconds., type: list, returned: when built}
changes: {description: What changed in short phrases., type: list, returned: always}
"""

import errno
import fnmatch
import hashlib
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Dict, Iterator, List, NoReturn, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import zstd_library
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    MARKER,
    ArtifactError,
    Progress,
    forget_leftovers,
    inspect_tree,
    jobs_for,
    make_manifest,
    manifest_bytes,
    sha256_of,
    tree_name,
)

_POLL_S = 0.25
_PROGRESS_S = 1.0
_GRACE_S = 3.0
_LAST_LINES = 20
_TAIL_BYTES = 16384
_CHUNK = 1 << 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKS = "/var/cache/clusterctl/packs"
_PUSHED = "clusterctl-push-????????????????-*"


class _Abandoned(BaseException):
    """Nobody waits for the result any more; not an Exception, so that no handler on the way swallows it."""


def _abandon(_signum: int, _frame: Any) -> NoReturn:
    raise _Abandoned


def channel_is_gone(descriptor: int = 1) -> bool:
    """Tell whether whoever reads our standard output has gone away."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poller.poll(0))


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and everything it started: asked first, killed after a grace period."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            process.poll()  # reaps the leader, else its group would look alive for ever
            if not _group_alive(process.pid):
                return
            time.sleep(0.05)


def last_lines(log: Path, count: int = _LAST_LINES) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-count:])


def free_bytes(path: str) -> int:
    """Return how much an ordinary process may still write below ``path``."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def available_memory_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how much memory a new process may take: what the kernel has to give, within every limit of our group."""
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE))
    room = [int(meminfo["MemAvailable"]) * 1024]
    own = re.search(r"^0::/(.*)$", (proc / "self/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    folder = groups / own.group(1) if own and ".." not in own.group(1) else groups
    for group in [folder, *folder.parents]:
        with suppress(OSError, ValueError):  # without a limit the file says max, and the root has no such file
            limit = int((group / "memory.max").read_text(encoding="ascii"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            used = int((group / "memory.current").read_text(encoding="ascii"))
            # what only caches files is given back when somebody needs it
            room.append(limit - used + int(stat["inactive_file"]) + int(stat["active_file"]))
        if group == groups:
            break
    return max(0, min(room))


_ERROR = re.compile(r"(?:\b(?:fatal )?error: |^CMake Error|: undefined reference to |: multiple definition of )")
_KILLED = re.compile(r"Killed signal terminated program|\bOut of memory\b|virtual memory exhausted")


def first_match(log: Path, start: int, pattern: "re.Pattern[str]") -> str:
    """Return the first line of a log, from byte ``start`` on, in which the pattern is found; empty without one."""
    with log.open("rb") as stream:
        stream.seek(start)
        lines = (raw.decode(errors="replace").strip() for raw in stream)
        return next((line for line in lines if pattern.search(line)), "")


def _target_of(name: str, strip: int, exclude: List[str]) -> Optional[str]:
    parts = [part for part in PurePosixPath(name).parts if part not in {"/", "."}]
    if ".." in parts:
        raise ArtifactError(f"The archive holds the path {name}, which leads out of it.")
    parts = parts[strip:]
    if not parts:
        return None
    heads = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return None if any(fnmatch.fnmatchcase(head, pattern) for head in heads for pattern in exclude) else heads[-1]


def _members(archive: tarfile.TarFile, strip: int, exclude: List[str]) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        target = _target_of(member.name, strip, exclude)
        if target is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            continue
        member.name = target
        if member.islnk():
            linked = _target_of(member.linkname, strip, exclude)
            if linked is None:
                continue
            member.linkname = linked
        # whoever made the archive has no say in owners here, and the builder must be able to write
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode |= 0o700 if member.isdir() else 0o600
        yield member


def unpack(archive: str, target: Path, strip: int, exclude: List[str]) -> None:
    """Unpack a tar (any compression Python knows) or zip archive below ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
                name = _target_of(member.filename, strip, exclude)
                if name is not None and not member.is_dir():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    with bundle.open(member) as source, (target / name).open("wb") as out:
                        shutil.copyfileobj(source, out)
                    if member.external_attr >> 16 & 0o111:  # a zip made on Unix says which files are programs
                        (target / name).chmod(0o755)
        return
    with tarfile.open(archive, "r|*") as bundle:
        if hasattr(tarfile, "tar_filter"):
            bundle.extraction_filter = staticmethod(tarfile.tar_filter)
        # members were checked by _members, which is why S202 does not apply
        bundle.extractall(str(target), members=_members(bundle, strip, exclude))  # noqa: S202


class Build:
    """One build in its own folder."""

    def __init__(self, module: AnsibleModule) -> None:
        """Read the module's parameters; nothing is touched yet."""
        self.p: Dict[str, Any] = module.params
        self.base = tree_name(self.p["name"], self.p["version"], self.p["key"])
        self.prefix = str(self.p["prefix"] or f"/usr/local/{self.p['name']}")
        self.log = Path(self.p["log_dir"]) / f"{self.base}.log"
        self.progress_file = self.log.with_suffix(".progress")
        self.tree_root = Path(self.p["root"]) / self.base
        self.kept = Path(_PACKS) / f"{self.base}.json"
        self.memory = available_memory_bytes()
        self.jobs = jobs_for(self.p["jobs"], len(os.sched_getaffinity(0)), self.memory, self.p["memory_per_job_bytes"])
        self.times: List[Dict[str, Any]] = []

    # -- looking ------------------------------------------------------------------------------------------------

    def inspect(self) -> Dict[str, Any]:
        """Say what the host has to build with, without changing anything."""
        installed = inspect_tree(str(self.tree_root), self.p["name"], self.p["version"], self.p["key"], content=True)
        work_dir = self.p["work_dir"]
        if not Path(work_dir).is_dir():
            raise ArtifactError(f"{self.p['host']}: the work folder {work_dir} does not exist.")
        ready = installed.ok or self.kept_pack() is not None
        if not ready:
            self.check_memory()
        return {"ready": ready, "installed": installed.ok, "free_bytes": free_bytes(work_dir), "jobs": self.jobs}

    def kept_pack(self) -> Optional[Dict[str, Any]]:
        """Return what an earlier run packed and could not hand over, if it is still whole."""
        try:
            answer: Dict[str, Any] = json.loads(self.kept.read_bytes())
            return answer if sha256_of(answer["pack"]) == answer["sha256"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def check_room(self) -> None:
        """Refuse to start what cannot end."""
        free = free_bytes(self.p["work_dir"])
        if free < self.p["needs_bytes"]:
            raise self.full(free)

    def check_memory(self) -> None:
        """Refuse to start a compiler that the kernel would kill."""
        needed = self.p["memory_per_job_bytes"]
        if self.p["memory_strict"] and self.memory < needed:
            raise ArtifactError(
                f"{self.p['host']}: free some memory there or name another host ({self.p['name']}_builder): building"
                f" {self.p['name']} {self.p['version']} needs {needed / 1e9:.1f} GB for one compiler, and"
                f" {self.memory / 1e9:.1f} GB are available."
            )

    def full(self, free: int) -> ArtifactError:
        """Return the sentence for a full disk."""
        return ArtifactError(
            f"{self.p['host']}: the builder's disk is full: {self.p['work_dir']} has {free} bytes free and building"
            f" {self.p['name']} {self.p['version']} needs about {self.p['needs_bytes']}; make room there or name"
            f" another folder ({self.p['name']}_work_dir)."
        )

    # -- building -----------------------------------------------------------------------------------------------

    def run(self) -> Dict[str, Any]:
        """Build (or take what is installed) and pack it; the work folder is gone afterwards in any case."""
        self.log.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(_PACKS).mkdir(mode=0o755, parents=True, exist_ok=True)
        kept = self.kept_pack()
        if kept is not None:
            return {**kept, "way": "kept"}
        if self.inspect()["installed"]:
            return self._packed(self.tree_root, "packed")
        forget_leftovers(self.p["work_dir"], [_PUSHED, f"clusterctl-{self.p['name']}-????????"])
        self.check_room()
        self.check_memory()
        work = Path(tempfile.mkdtemp(prefix=f"clusterctl-{self.p['name']}-", dir=self.p["work_dir"]))
        try:
            return self._build(work)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise self.full(free_bytes(self.p["work_dir"])) from error
            raise
        finally:
            self.progress_file.unlink(missing_ok=True)
            shutil.rmtree(work, ignore_errors=True)

    def _build(self, work: Path) -> Dict[str, Any]:
        for folder in ("home", "tmp", "stage"):
            (work / folder).mkdir()
        with self.log.open("wb") as log:
            self.log.chmod(0o644)
            self._bring(work)
            for step in self.p["steps"]:
                self._step(step, work, log)
        tree = Path(self._replace("@TREE@", work))
        if not tree.is_dir() or not any(tree.iterdir()):
            raise ArtifactError(f"The build of {self.p['name']} left nothing in {self.prefix}; its log is {self.log}.")
        for pattern in self.p["prune"]:
            for path in sorted(tree.glob(pattern), reverse=True):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        (tree / MANIFEST).write_bytes(manifest_bytes(make_manifest(str(tree))))
        return self._packed(tree, "built")

    def _bring(self, work: Path) -> None:
        for item in self.p["files"]:
            target = work / item["dest"]
            if work not in Path(os.path.normpath(target)).parents:
                raise ArtifactError(f"The file's place {item['dest']} is not below the work folder.")
            self._say(f"unpack: {item['dest']}")
            if item["unpack"]:
                try:
                    unpack(item["path"], target, item["strip"], item["exclude"])
                except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
                    raise ArtifactError(
                        f"The source of {self.p['name']} {self.p['version']} cannot be unpacked ({error})."
                    ) from error
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(item["path"], target)
            Path(item["path"]).unlink()

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

    def _step(self, step: Dict[str, Any], work: Path, log: BinaryIO) -> None:
        argv = [self._replace(token, work) for token in step["argv"]]
        environment = {
            "PATH": _PATH,
            "HOME": str(work / "home"),
            "TMPDIR": str(work / "tmp"),
            "LC_ALL": "C",
            "TZ": "UTC",
        }
        environment.update({name: self._replace(str(value), work) for name, value in step["environment"].items()})
        log.write(f"==> {step['name']}: {argv}\n".encode())
        log.flush()
        start = log.tell()
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            process = subprocess.Popen(
                argv,
                cwd=work / self._replace(step["chdir"], work),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ArtifactError(
                f"The step '{step['name']}' of building {self.p['name']} needs {error.filename}, which is not there."
            ) from error
        try:
            returned = self._watch(process, step["name"], start)
        finally:
            end_group(process)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.times.append(
            {
                "name": step["name"],
                "seconds": round(time.monotonic() - began, 2),
                "cpu_seconds": round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, 2),
            }
        )
        if returned:
            self.complain(step, returned, start)

    def _watch(self, process: "subprocess.Popen[bytes]", step: str, start: int) -> int:
        progress, said = Progress(step), 0.0
        with self.log.open("rb") as log:
            log.seek(start)
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_S)
                if channel_is_gone():
                    raise _Abandoned
                if time.monotonic() - said >= _PROGRESS_S:
                    said = time.monotonic()
                    progress.feed(log.read().decode(errors="replace"))
                    self._say(progress.line())

    def _say(self, text: str) -> None:
        partial = self.progress_file.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o644)
        partial.replace(self.progress_file)

    def complain(self, step: Dict[str, Any], returned: int, start: int) -> NoReturn:
        """Raise what is to be said about a step that failed; its output begins at byte ``start`` of the log."""
        tail = last_lines(self.log)
        free = free_bytes(self.p["work_dir"])
        host, what, name = self.p["host"], f"{self.p['name']} {self.p['version']}", self.p["name"]
        if "No space left on device" in tail:
            raise self.full(free)
        if step["speaks"] and returned > 0:
            sentence = last_lines(self.log, 1)
            raise ArtifactError(f"{host}: {sentence} (Before building {what}; the log is {self.log}@LOG@.)")
        killed = first_match(self.log, start, _KILLED)
        if killed:
            raise ArtifactError(
                f"{host}: free some memory there, set {name}_make_jobs to less than {self.jobs} or name another host"
                f" ({name}_builder): a compiler was killed while building {what} with {self.jobs} of them side by side"
                f" ({killed}); the whole log is {self.log} on {host}@LOG@."
            )
        ended = f"was killed by signal {-returned}" if returned < 0 else f"ended with {returned}"
        error = first_match(self.log, start, _ERROR)
        first = f", its first error is '{error}'" if error and error not in tail else ""
        raise ArtifactError(
            f"{host}: the step '{step['name']}' of building {what} {ended}{first};"
            f" the whole log is {self.log} on {host}@LOG@, its last lines are:\n{tail}"
        )

    # -- packing ------------------------------------------------------------------------------------------------

    def _packed(self, tree: Path, way: str) -> Dict[str, Any]:
        zstd = shutil.which("zstd", path=_PATH)
        compression = "zst" if zstd or zstd_library.library() else "gz"
        pack = self.kept.with_name(f"{self.base}.tar.{compression}")
        partial = pack.with_suffix(".partial")
        self._say("pack")
        try:
            with partial.open("wb") as out:
                # one fast level: higher ones cost more time than the bytes are worth
                if zstd:
                    self._pack_by([zstd, "-3", "-q", "-c"], tree, out)
                elif compression == "zst":
                    compressor = zstd_library.Compressor(out.write, 3)
                    self._add_all(compressor, tree)
                    compressor.close()
                else:
                    self._pack_by(["gzip", "-4", "-n", "-c"], tree, out)
            partial.chmod(0o644)
            partial.replace(pack)
        finally:
            partial.unlink(missing_ok=True)
            self.progress_file.unlink(missing_ok=True)
        manifest = (tree / MANIFEST).read_bytes()
        answer = {
            "pack": str(pack),
            "sha256": sha256_of(pack),
            "size": pack.stat().st_size,
            "compression": compression,
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
            "way": way,
            "log": str(self.log),
            "steps": self.times,
            "seconds": round(sum(step["seconds"] for step in self.times), 2),
            "cpu_seconds": round(sum(step["cpu_seconds"] for step in self.times), 2),
            "jobs": self.jobs,
        }
        self.kept.write_text(json.dumps(answer), encoding="utf-8")
        return answer

    def _pack_by(self, squeeze: List[str], tree: Path, out: BinaryIO) -> None:
        with subprocess.Popen(squeeze, stdin=subprocess.PIPE, stdout=out) as process:
            self._add_all(process.stdin, tree)
            if process.stdin:
                process.stdin.close()
            if process.wait():
                raise OSError(errno.ENOSPC, "the pack could not be written", out.name)

    @staticmethod
    def _add_all(sink: Any, tree: Path) -> None:
        def owned_by_root(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
            if member.name in {".", MARKER}:
                return None
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            return member

        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK) as bundle:
            for path in sorted(tree.rglob("*")):
                bundle.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=owned_by_root)

    def release(self) -> Dict[str, Any]:
        """Remove what was kept for the controller to fetch."""
        self.kept.unlink(missing_ok=True)
        for suffix in (".tar.zst", ".tar.gz"):
            self.kept.with_name(self.base + suffix).unlink(missing_ok=True)
        return {}


def main() -> None:
    """Run the phase that the action plugin asked for."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "inputs": {"type": "dict", "required": True},
            "cache_dir": {"type": "str", "required": True},
            "packages": {"type": "list", "elements": "str", "default": []},
            "package_options": {"type": "dict", "default": {}},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "source": {"type": "dict"},
                    "path": {"type": "str"},
                    "content": {"type": "str"},
                    "dest": {"type": "str", "required": True},
                    "unpack": {"type": "bool", "default": False},
                    "strip": {"type": "int", "default": 1},
                    "exclude": {"type": "list", "elements": "str", "default": []},
                },
            },
            "prefix": {"type": "str"},
            "root": {"type": "str", "default": "/usr/local"},
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
            "controller_log_dir": {"type": "str"},
            "phase": {"type": "str", "choices": ["inspect", "build", "release"], "default": "build"},
            "host": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": False},
        },
        supports_check_mode=True,
    )
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _abandon)
    build = Build(module)
    try:
        if module.params["phase"] == "inspect":
            module.exit_json(changed=False, **build.inspect())
        elif module.params["phase"] == "release":
            module.exit_json(changed=False, **build.release())
        else:
            module.exit_json(changed=True, **build.run())
    except ArtifactError as error:
        module.fail_json(msg=str(error), log=str(build.log))
    except OSError as error:
        module.fail_json(msg=f"{module.params['host']}: {error}")
    except _Abandoned:
        os._exit(1)  # the result has no reader; whatever was started is ended by now


if __name__ == "__main__":
    main()
